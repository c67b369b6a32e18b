"""Fences without access to the cluster: commands to paste, lifting by file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.decide.fence_state import BrokerStartDecision, RecordedMirrors, decide_broker_start, has_failed_over
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.evidence.fence_file import (
    FenceFile,
    find_open_fences,
    find_overlapping_files,
    find_promoted_fence,
    mark_lifted,
)
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls, delete_acls, describe_acls, wait_until_acls_absent
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.mirrors.fence_watcher import FENCE_CHECK_INTERVAL_S
from mirror_core.mirrors.mirror_facts import format_offsets
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Resource
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Refused
from mirror_core.model.files import Unwritable
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import (
    HEARTBEAT_TOPIC_PREFIX,
    ClusterName,
    MirrorName,
    Partition,
    format_reverse_name,
    get_base_name,
)
from mirror_core.model.parity_verdict import SalvagedPartition
from mirror_core.model.run import RunKind, RunState
from mirror_core.model.text import format_count, format_option, format_shell_command, format_time
from mirror_core.model.timing import TIMEOUTS, now_ms
from mirror_core.rights.acl_rules import EVERYBODY, build_denial, format_acl_command
from mirror_core.state.active_cluster import (
    ActiveCluster,
    FenceLift,
    read_active_cluster,
    read_newest_announcements,
    record_lift,
)
from mirror_core.state.mirror_link import read_broker_time_ms, read_states
from mirror_core.state.point_of_no_return import is_past_no_return, make_holding_run
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.fence_command import FenceCommandTarget, run_unfence_command
from mirror_core.sync.fence_command_runner import TopicHolder, find_topic_holders, format_held_topics


def check_start(config: Config, name: str, cluster: str) -> BrokerStartDecision:
    """Asks all other clusters, since this one's brokers are down. BadRequest when there is none."""
    starting = config.cluster(cluster)
    others = {other: other_config for other, other_config in config.clusters.items() if other != starting.name}
    if not others:
        raise BadRequest(f"{config.path} names no cluster but {cluster}: nobody could remember a failover away from it")
    with ThreadPoolExecutor(len(others)) as pool:
        answers = dict(zip(others, pool.map(_read_memory, others.values()), strict=True))
    return decide_broker_start(starting.name, MirrorName(name), answers)


def _read_memory(cluster: ClusterConfig) -> RecordedMirrors | str:
    try:
        state = read_state(cluster, timeout_s=TIMEOUTS.mirror_lookup_s, wait_for_open=True)
    except MirrorError as error:
        return f"not known: {error}"
    return RecordedMirrors(tuple(state.mirrors.values()), state.pending_fences, state.log_start_offset, state.topic_id)


MAX_NAMES_PER_LINE: Final = 100
"""A shell limits the length."""


def format_fence_commands(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
    *,
    remove: bool = False,
) -> tuple[str, ...]:
    """`kafka-acls.sh` commands; existing entries stay."""
    names: dict[Resource, set[str]] = {Resource.TOPIC: {p.topic for p in partitions}}
    for entry in entries:
        if entry.purpose is AclPurpose.FENCE and entry.cluster == mirror.source:
            names.setdefault(entry.acl.resource, set()).add(entry.acl.name)
    bootstrap_option = format_option("--bootstrap-server", "BOOTSTRAP")
    if bootstrap_controller is not None:
        bootstrap_option = format_option("--bootstrap-controller", bootstrap_controller)
    action = ["--remove", "--force"] if remove else ["--add"]
    denial = [*bootstrap_option, "--command-config", "ADMIN.properties", *action, "--deny-principal", EVERYBODY]
    lines = []
    for resource, kind in ((Resource.TOPIC, "--topic"), (Resource.TRANSACTIONAL_ID, "--transactional-id")):
        names_of_resource = sorted(names.get(resource, ()))
        for start in range(0, len(names_of_resource), MAX_NAMES_PER_LINE):
            name_options = [
                word
                for name in names_of_resource[start : start + MAX_NAMES_PER_LINE]
                for word in format_option(kind, name)
            ]
            lines.append(format_shell_command("kafka-acls.sh", *denial, "--operation", "Write", *name_options))
    return tuple(lines)


def format_manual_lift(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
) -> tuple[str, ...]:
    """Empty when a run has recorded the fence."""
    fenced = {e.acl.name for e in entries if e.purpose is AclPurpose.FENCE and e.cluster == mirror.source}
    unfenced = [p for p in partitions if p.topic not in fenced]
    if not unfenced:
        return ()
    return (
        (
            f"no run has fenced {mirror.source} for mirror {mirror.name}: what these lines put up is not Mirrorbook's."
            " A planned failover finds it there and leaves it, as its abort does: applications stay denied. These"
            " lift it:"
        ),
        *format_fence_commands(mirror, (), unfenced, bootstrap_controller, remove=True),
    )


ACTIVE_TOPIC_TIMEOUT_S: Final = 5.0


def explain_emptied(config: Config, fences: Collection[tuple[Path, FenceFile]]) -> Iterator[Finding]:
    """What the fenced cluster lacks of before, should the promoted destination, which is silent, be lost.

    `fences`: files of one mirror, on one cluster; the newest tells. A salvage is beside a failback's.
    """
    if not fences:
        return
    path, fence = max(fences, key=lambda row: row[1].written_ms)
    try:
        logs = _read_logs(config.cluster(fence.cluster), fence.topics)
    except MirrorError as error:
        yield Finding("old_source_unread", fence.cluster, destination=fence.destination, reason=error)
        return
    emptied = [t for t, topic_logs in logs.items() if t in fence.topic_ids and topic_logs.id != fence.topic_ids[t]]
    if emptied:
        counts = [logs[topic].held for topic in emptied]
        folders, records = _find_salvage(path.parent)
        yield Finding(
            "old_source_emptied",
            fence.cluster,
            run=fence.run,
            run_kind=fence.kind,
            topics=emptied,
            held=sum(filter(None, counts)),
            has_unknown=None in counts,
            destination=fence.destination,
            folders=folders,
            records=records,
        )
    if doubted := [f"{t} ({format_offsets(logs[t].held)})" for t in logs if t not in fence.topic_ids]:
        yield Finding("old_source_doubted", fence.cluster, destination=fence.destination, topics=doubted)


@dataclass(frozen=True, slots=True)
class TopicLogs:
    id: str | None
    """Null: there is no such topic."""
    held: int | None
    """In offsets. Null: a partition does not tell."""


def _read_logs(cluster: ClusterConfig, topics: Iterable[str]) -> dict[str, TopicLogs]:
    names = sorted(topic for topic in topics if not topic.startswith(HEARTBEAT_TOPIC_PREFIX))
    with ClusterClient(cluster, timeout_s=ACTIVE_TOPIC_TIMEOUT_S) as client:
        views = find_existing_topics(client, names)
        partitions = [Partition(name, index) for name, view in views.items() for index in view.partitions]
        starts, ends = (list_known_offsets(client, partitions, p) for p in (OffsetPoint.START, OffsetPoint.LOG_END))
    counts: dict[str, list[int | None]] = {name: [] for name in names}
    for p in partitions:
        counts[p.topic].append(ends[p] - starts[p] if p in ends and p in starts else None)
    return {
        name: TopicLogs(
            id=views[name].id if name in views else None,
            held=None if None in counts[name] else sum(filter(None, counts[name])),
        )
        for name in names
    }


def _find_salvage(folder: Path) -> tuple[tuple[str, ...], int]:
    """A run's folders with what was saved before its logs were changed, and their records."""
    from mirror_core.parity.salvage import MANIFEST  # late: in an emergency only

    manifests = sorted(folder.glob(f"salvage*/{MANIFEST}"))
    saved = [msgspec.json.decode(manifest.read_bytes(), type=tuple[SalvagedPartition, ...]) for manifest in manifests]
    return tuple(str(m.parent) for m in manifests), sum(part.records for parts in saved for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftPreview:
    present_denials: frozenset[Acl]
    destination: State | None
    promotion: Finding | None
    """What says that applications write elsewhere. None: nothing known here."""
    warnings: tuple[str, ...]


def preview_lift(config: Config, cluster: ClusterConfig, fence: FenceFile, path: Path) -> LiftPreview:
    """Lifting by file, when the destination with the state does not answer.

    If the run is resumed, missing denials refuse promotion, or are created again after it. BadRequest: another cluster;
    Refused: the fence must stand.
    """
    with ClusterClient(cluster) as client:
        cluster_id = client.metadata(()).cluster_id
        if cluster_id != fence.cluster_id:
            raise BadRequest(
                f"cluster {cluster.name} is {cluster_id}, and the fence of run {fence.run} is on {fence.cluster_id},"
                f" then named {fence.cluster}: nothing is lifted"
            )
        current_acls = describe_acls(client)
    _check_configuration(cluster, fence)
    present_denials = (
        frozenset[Acl]() if isinstance(current_acls, AuthorizerOff) else fence.denials & current_acls.entries
    )
    try:
        promotion, warnings = _find_promotion(_read_announcement(cluster, fence), fence), list[str]()
    except MirrorError as error:
        promotion, warnings = None, [f"not known where applications were told to write: {error}"]
    state_or_error = _read_destination(config, fence)
    _check_held_by_others(config, fence, state_or_error)
    if isinstance(current_acls, BrokerAcls) and not fence.command:
        warnings += _list_other_denials(cluster, fence, current_acls)
    if isinstance(state_or_error, State):
        check_may_lift(state_or_error, fence)
        warnings.insert(0, _format_destination_answer(state_or_error, fence))
        return LiftPreview(
            present_denials=present_denials, destination=state_or_error, promotion=promotion, warnings=tuple(warnings)
        )
    is_told = promotion is not None or fence.kind is RunKind.FAILBACK
    unknown_text = "" if is_told else f", so nobody can tell whether run {fence.run} has promoted it"
    warnings.insert(
        0,
        f"{fence.destination} does not answer ({state_or_error}){unknown_text}. If applications write there, both"
        f" clusters take writes from here on, and what {cluster.name} takes is not on {fence.destination}",
    )
    again = Finding(
        "fenced_again_by_watchers",
        cluster.name,
        destination=fence.destination,
        mirror=fence.mirror,
        promoted=is_told,
        interval_s=FENCE_CHECK_INTERVAL_S,
    )
    warnings.insert(1, str(again))
    if is_told:
        others = find_open_fences(path.parent.parent, fence.mirror)
        fences = [(path, fence), *((p, f) for p, f in others if f.cluster_id == fence.cluster_id)]
        warnings = [*map(str, explain_emptied(config, fences)), *warnings]
    return LiftPreview(present_denials=present_denials, destination=None, promotion=promotion, warnings=tuple(warnings))


def lift_by_file(
    config: Config, cluster: ClusterConfig, fence: FenceFile, path: Path, *, lifted_by: str
) -> tuple[str, ...]:
    """Deletes only the file's denials; returns when no broker shows one. Returns problems. May be repeated.

    If the destination answers now, the mirror is taken over, so that a conductor notices before it promotes.
    """
    problems: list[str] = []
    with ExitStack() as resources:
        state_or_error = _read_destination(config, fence)
        _check_held_by_others(config, fence, state_or_error)
        if isinstance(state_or_error, State):
            check_may_lift(state_or_error, fence)
            try:
                writer = resources.enter_context(
                    StateWriter(config.cluster(fence.destination), make_control_id(fence.mirror))
                )
                check_may_lift(writer.state, fence)
            except Refused:
                raise
            except MirrorError as error:  # it cannot be written: then no run promotes it either
                problems.append(f"the run could not be taken over: {error}")
        for file_path, fence_file in (
            (path, fence),
            *find_overlapping_files(path, fence),
        ):  # files with the same denials
            try:
                mark_lifted(
                    file_path,
                    replace(fence_file, lifted_ms=now_ms()),
                    "whoever resumes the run is not told by this file",
                )
            except Unwritable as error:
                problems.append(str(error))
        if fence.command:
            holders, _ = _find_topic_holders(config, fence, state_or_error)
            held_topics = frozenset[str]().union(*(holder.topics for holder in holders))
            if openable := set(fence.topics) - held_topics:
                run_unfence_command(_build_lift_target(config, cluster, fence, openable))
            problems += _record_lift(cluster, fence, lifted_by)
            return (*problems, *format_held_topics(cluster.name, held_topics & set(fence.topics)))
        with ClusterClient(cluster) as client:
            if not isinstance(describe_acls(client), AuthorizerOff):
                delete_acls(client, fence.denials)
                wait_until_acls_absent(client, fence.denials)
    return (*problems, *_record_lift(cluster, fence, lifted_by))


def _record_lift(cluster: ClusterConfig, fence: FenceFile, lifted_by: str) -> list[str]:
    try:
        lift = FenceLift(cluster=cluster.name, by=lifted_by, at_ms=read_broker_time_ms(cluster))
        record_lift(cluster, get_base_name(fence.mirror), lift, ACTIVE_TOPIC_TIMEOUT_S)
    except MirrorError as error:
        return [f"who lifted the fence was not recorded: {error}"]
    return []


def _find_topic_holders(
    config: Config, fence: FenceFile, state_or_error: State | MirrorError
) -> tuple[tuple[TopicHolder, ...], tuple[str, ...]]:
    """Other mirrors that keep the file's topics closed, and clusters that did not answer."""
    other_clusters = {name: other_config for name, other_config in config.clusters.items() if name != fence.destination}
    states_by_cluster = [*read_states(replace(config, clusters=other_clusters))]
    if isinstance(state_or_error, State):
        states_by_cluster.append((fence.destination, state_or_error))
    return find_topic_holders(
        states_by_cluster, fence.cluster_id, (fence.destination, fence.mirror), frozenset(fence.topics)
    )


def _check_held_by_others(config: Config, fence: FenceFile, state_or_error: State | MirrorError) -> None:
    """Believes no destination or mirror that the file names: it may be edited."""
    holders, unanswered = _find_topic_holders(config, fence, state_or_error)
    reasons = [Finding("fence_maybe_anothers", fence.destination, clusters=unanswered)] if unanswered else []
    if not fence.command:  # with a command, what others hold stays closed
        reasons += [_explain_holder(holder, fence, state_or_error) for holder in holders]
    if reasons:
        raise Refused(f"run {fence.run}: its fence on {fence.cluster} is not lifted", reasons)


def _explain_holder(holder: TopicHolder, fence: FenceFile, state_or_error: State | MirrorError) -> Finding:
    mirror, run, topics = holder.mirror, holder.run, sorted(holder.topics)
    progress = "" if run is None else run.state
    if mirror.destination_id == fence.cluster_id:
        failback = state_or_error.runs.get(mirror.failback_run) if isinstance(state_or_error, State) else None
        return Finding(
            "fence_held_by_mirror",
            mirror.name,
            cluster=mirror.destination,
            source=mirror.source,
            topics=topics,
            failback_of=get_base_name(mirror.name) if mirror.failback_run else "",
            failback=mirror.failback_run,
            failback_state="" if failback is None else failback.state,
            run="" if run is None else run.id,
            run_state=progress,
        )
    return Finding(
        "fence_held_by_failover",
        mirror.name,
        cluster=mirror.source,
        destination=mirror.destination,
        topics=topics,
        run="" if run is None else run.id,
        run_kind="" if run is None else run.plan.kind,
        run_state=progress,
        named_mirror=fence.mirror,
        named_destination=fence.destination,
    )


def _build_lift_target(
    config: Config, cluster: ClusterConfig, fence: FenceFile, topics: Collection[str]
) -> FenceCommandTarget:
    return FenceCommandTarget(
        cluster=cluster,
        cluster_id=fence.cluster_id,
        mirror=fence.mirror,
        run=fence.run,
        topics=topics,
        config=config,
    )


def _check_configuration(cluster: ClusterConfig, fence: FenceFile) -> None:
    if fence.command and cluster.ruling.unfence_command is None:
        raise BadRequest(
            f"cluster {cluster.name} was closed by its fence_command for run {fence.run}, and mirrorbook.yaml has no "
            f"unfence_command for it now: write it there again, or open {cluster.name} to applications by its own means"
        )
    if not fence.command and cluster.ruling.is_foreign:
        raise BadRequest(
            f"cluster {cluster.name}: the fence of run {fence.run} consists of Kafka's ACLs, and mirrorbook.yaml says "
            "`authorizer: foreign`: write `authorizer: kafka` there to lift it"
        )


def check_may_lift(state: State, fence: FenceFile) -> None:
    reasons = tuple(_list_refusals(state, fence))
    if reasons:
        raise Refused(
            f"run {fence.run}: its fence on {fence.cluster} is not lifted", reasons, reason_code="fence_not_liftable"
        )


def _list_refusals(state: State, fence: FenceFile) -> Iterator[str]:
    run, active = state.runs.get(fence.run), state.active_run(fence.mirror)
    mirror, destination = state.mirrors.get(fence.mirror), fence.destination
    if active is not None and active.id != fence.run:
        yield str(make_holding_run(state, active).explain())
        return
    if run is not None and run.plan.kind is RunKind.FAILBACK:
        yield f"it is a failback, in which applications write on {destination}"
    elif run is not None and (run.state is RunState.DONE or is_past_no_return(state, run)):
        yield (
            f"this run has promoted {destination}, or has begun to: applications may write there. Only `mirrorbook"
            " failback` leads back"
        )
    elif active is None and (
        has_failed_over(state.pending_fences.get(fence.mirror))
        or (mirror is not None and mirror.desired is DesiredState.STOPPED)
    ):
        yield f"mirror {fence.mirror} was failed over: applications write on {destination}"


def _format_destination_answer(state: State, fence: FenceFile) -> str:
    if state.active_run(fence.mirror) is None:
        return f"{fence.destination} answers, and no run holds mirror {fence.mirror} there"
    return (
        f"{fence.destination} answers: `mirrorbook failover abort {fence.mirror}` lifts the fence and ends the run. Go "
        "on here only if that fails"
    )


def _read_destination(config: Config, fence: FenceFile) -> State | MirrorError:
    destination = config.clusters.get(fence.destination)
    if destination is None:
        return BadRequest(f"{config.path} does not know it")
    ((_, state_or_error),) = read_states(replace(config, clusters={fence.destination: destination}))
    try:
        if isinstance(state_or_error, State):
            state_or_error.require_readable(fence.mirror)
    except Indeterminate as error:
        return error
    return state_or_error


def _list_other_denials(cluster: ClusterConfig, fence: FenceFile, current_acls: BrokerAcls) -> Iterator[str]:
    """A watcher that applies a pending fence denies transactional ids that the file does not know."""
    names = (a.name for a in current_acls.entries if a.resource is Resource.TRANSACTIONAL_ID)
    unknown_denials = sorted(
        current_acls.entries
        & {build_denial(name, resource=Resource.TRANSACTIONAL_ID) for name in names} - fence.denials
    )
    if unknown_denials:
        lift_command = format_acl_command(
            unknown_denials[0], bootstrap=cluster.control["bootstrap.servers"], remove=True
        )
        ids_text = format_count(len(unknown_denials), "transactional id")
        yield (
            f"{ids_text} denied on {cluster.name} that the file does not name:"
            f" {join_limited(a.name for a in unknown_denials)}. If a watcher of mirror {fence.mirror} has denied them,"
            f" their applications stay shut out until somebody takes that away, one by one: {lift_command}"
        )


def _read_announcement(cluster: ClusterConfig, fence: FenceFile) -> ActiveCluster | None:
    return read_active_cluster(cluster, get_base_name(fence.mirror), ACTIVE_TOPIC_TIMEOUT_S)


def _find_promotion(announcement: ActiveCluster | None, fence: FenceFile) -> Finding | None:
    """`announcement`: the newest one that the fenced cluster has."""
    if announcement is None or announcement.cluster_id == fence.cluster_id:
        return None
    since_ms, run = announcement.since_ms, announcement.run
    return Finding("destination_was_promoted", announcement.active, since_ms=since_ms, run=run, cluster=fence.cluster)


def _find_lift(announcement: ActiveCluster | None) -> Iterator[Finding]:
    if announcement is not None and announcement.fence_lift:
        yield Finding(
            "fence_lifted_by",
            announcement.fence_lift.cluster,
            by=announcement.fence_lift.by,
            at_ms=announcement.fence_lift.at_ms,
            mirror=announcement.mirror,
            destination=announcement.active,
        )


def may_be_fenced(config: Config, name: MirrorName) -> bool:
    """By the files of runs that have not ended, in the usual folder."""
    files = find_open_fences((config.path.parent / "evidence").absolute(), name)
    return any(_may_stand(config, fence) for _, fence in files)


def list_ways_past_fences(config: Config, name: str) -> Iterator[str]:
    """For a mirror whose destination is silent: by files of runs that have not ended, in the usual folder."""
    yield from map(str, _find_way_home(config, MirrorName(name)))
    announcements, promotions, lines = dict[ClusterName, ActiveCluster | None](), dict[str, None](), list[str]()
    newest: tuple[Path, FenceFile] | None = None
    promoted_fences = list[tuple[Path, FenceFile]]()
    for file, fence in find_open_fences((config.path.parent / "evidence").absolute(), name):
        if fence.cluster not in announcements:
            announcements[fence.cluster] = None
            if (fenced := config.clusters.get(fence.cluster)) is not None:
                with suppress(MirrorError):  # `unfence` needs its answer, too, and asks again
                    announcements[fence.cluster] = _read_announcement(fenced, fence)
        if promotion := _find_promotion(announcements[fence.cluster], fence):
            promotions[f"{promotion}."] = None
            promoted_fences.append((file, fence))
            promotions |= {f"{lift}.": None for lift in _find_lift(announcements[fence.cluster])}
            if _may_stand(config, fence) and (newest is None or fence.written_ms > newest[1].written_ms):
                newest = file, fence
            continue
        if not _may_stand(config, fence):
            continue
        command = format_shell_command("mirrorbook", "cluster", "unfence", fence.cluster, "--from", str(file))
        lines.append(
            f"{fence.destination} keeps the state of {name}. Run {fence.run} put a fence on {fence.cluster}"
            f" at {format_time(fence.written_ms)}: if {fence.destination} is dead and was not promoted, this opens"
            f" {fence.cluster} again:\n    {command}"
        )
    if not (promotions or lines):
        yield from map(str, _explain_promotion(config, MirrorName(name)))
        return
    yield from (*promotions, *lines)
    if promotions:
        yield from (f"{finding}." for finding in explain_emptied(config, promoted_fences))
    if newest is not None:
        file, fence = newest
        yield str(_explain_lost(fence.destination, fence, file))


def _may_stand(config: Config, fence: FenceFile) -> bool:
    """False: the cluster shows none of its denials, so there is nothing to open."""
    cluster = config.clusters.get(fence.cluster)
    if cluster is None or fence.command:
        return True
    try:
        with ClusterClient(cluster, timeout_s=ACTIVE_TOPIC_TIMEOUT_S) as client:
            current_acls = describe_acls(client)
    except MirrorError:
        return True
    return isinstance(current_acls, BrokerAcls) and bool(fence.denials & current_acls.entries)


def _find_way_home(config: Config, name: MirrorName) -> Iterator[Finding]:
    reverse_name = format_reverse_name(name)
    for cluster, state in read_states(config):
        mirror = state.mirrors.get(reverse_name) if isinstance(state, State) else None
        if not isinstance(state, State) or mirror is None or mirror.destination != cluster:
            continue
        if run := state.active_run(reverse_name):
            yield Finding("way_home_is_moving", cluster, mirror=reverse_name, run=run.id, destination=mirror.source)
        elif mirror.desired is DesiredState.STARTED:
            yield Finding("way_home_is_copied", mirror.source, mirror=mirror.name, destination=cluster)
        return  # one cluster keeps it: do not wait for silent ones


def _explain_promotion(config: Config, name: MirrorName) -> Iterator[Finding]:
    """By the newest announcement, or by the evidence folder, which may know a later run."""
    newest = read_newest_announcements(list(config.clusters.values()), ACTIVE_TOPIC_TIMEOUT_S).get(get_base_name(name))
    promoted = find_promoted_fence((config.path.parent / "evidence").absolute(), name)
    if promoted is not None and (newest is None or promoted.promoted_ms > newest.since_ms):
        active, run, since_ms = promoted.fence.destination, promoted.fence.run, promoted.promoted_ms
    elif newest is not None:
        active, run, since_ms = newest.active, newest.run, newest.since_ms
    else:
        return
    file = promoted.file if promoted is not None and promoted.fence.run == run else None
    if file is None or promoted is None:
        yield Finding("active_was_announced", active, run=run, since_ms=since_ms, mirror=name)
        yield from _find_lift(newest)
        return
    cluster = promoted.fence.cluster
    yield Finding("destination_was_promoted", active, since_ms=since_ms, run=run, cluster=cluster)
    yield from _find_lift(newest)
    yield from explain_emptied(config, [(file, promoted.fence)])
    yield _explain_lost(active, promoted.fence, file)


def _explain_lost(active: ClusterName, fence: FenceFile, file: Path) -> Finding:
    return Finding("promoted_destination_lost", active, cluster=fence.cluster, mirror=fence.mirror, file=file)
