from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.decide.standing import failed_over, when
from mirror_core.decide.view import some
from mirror_core.evidence.fence_file import FenceFile, alike, mark_lifted
from mirror_core.kafka.acls import Acls, AuthorizerOff, absent_on_every_broker, delete_acls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Refused
from mirror_core.model.files import Unwritable
from mirror_core.model.mirror import Desired
from mirror_core.model.names import base_name
from mirror_core.model.run import RunKind, RunState
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.acls import denial
from mirror_core.state.active import newest
from mirror_core.state.link import states
from mirror_core.state.records import State
from mirror_core.state.turning import turned
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.closing_commands import Closable, open_again
from mirror_core.sync.kept_closed import kept_by, stay_closed

SEEN_S: Final = 5.0
"""Only for a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    there: frozenset[Acl]
    destination: State | None
    """Its state, if it answers."""
    warnings: tuple[str, ...]


def look(config: Config, cluster: ClusterConfig, fence: FenceFile) -> Outlook:
    """Lifting by file, when the destination with the state does not answer.

    If the run is resumed, missing denials refuse promotion, or are created again after it. BadRequest: another cluster;
    Refused: the fence must stand.
    """
    with ClusterClient(cluster) as client:
        found = client.metadata(()).cluster_id
        if found != fence.cluster_id:
            raise BadRequest(
                f"cluster {cluster.name} is {found}, and the fence of run {fence.run} is on {fence.cluster_id}, then "
                f"named {fence.cluster}: nothing is lifted"
            )
        held = describe_acls(client)
    _refuse_unlike(cluster, fence)
    there = frozenset[Acl]() if isinstance(held, AuthorizerOff) else fence.denials & held.entries
    warnings = list(_told_on(cluster, fence))
    answer = _state_of(config, fence)
    if isinstance(held, Acls) and not fence.command:
        warnings += _denied_besides(cluster, fence, held)
    if fence.command:
        warnings += (
            f"{who}: nobody knows whether a failover towards it keeps topics of {cluster.name} closed, which this opens"
            for who in _kept_closed(config, fence, answer)[1]
        )
    if isinstance(answer, State):
        refuse(answer, fence)
        warnings.insert(0, _answers(answer, fence))
        return Outlook(there=there, destination=answer, warnings=tuple(warnings))
    warnings.insert(
        0,
        f"{fence.destination} does not answer ({answer}), so nobody can tell whether run {fence.run} has promoted it. "
        f"If applications write there, both clusters take writes from here on, and what {cluster.name} takes is not on "
        f"{fence.destination}",
    )
    return Outlook(there=there, destination=None, warnings=tuple(warnings))


def lift(config: Config, cluster: ClusterConfig, fence: FenceFile, path: Path) -> tuple[str, ...]:
    """Delete the file's denials only; return when no broker shows one. Returns problems. May be repeated.

    If the destination answers now, the mirror is taken over, so that a conductor notices before it promotes.
    """
    trouble: list[str] = []
    with ExitStack() as held:
        answer = _state_of(config, fence)
        if isinstance(answer, State):
            refuse(answer, fence)
            try:
                writer = held.enter_context(StateWriter(config.cluster(fence.destination), control_id(fence.mirror)))
                refuse(writer.state, fence)
            except Refused:
                raise
            except MirrorError as error:  # it cannot be written: then no run promotes it either
                trouble.append(f"the run could not be taken over: {error}")
        for where, one in ((path, fence), *alike(path, fence)):  # files with the same denials
            try:
                mark_lifted(where, replace(one, lifted_ms=now_ms()), "whoever resumes the run is not told by this file")
            except Unwritable as error:
                trouble.append(str(error))
        if fence.command:
            kept, _ = _kept_closed(config, fence, answer)
            if rest := set(fence.topics) - kept:
                open_again(_closable(config, cluster, fence, rest))
            return (*trouble, *stay_closed(cluster.name, kept & set(fence.topics)))
        with ClusterClient(cluster) as client:
            if not isinstance(describe_acls(client), AuthorizerOff):
                delete_acls(client, fence.denials)
                absent_on_every_broker(client, fence.denials)
    return tuple(trouble)


def _kept_closed(
    config: Config, fence: FenceFile, answer: State | MirrorError
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Topics that other mirrors keep closed, and clusters that did not answer."""
    thirds = {name: one for name, one in config.clusters.items() if name != fence.destination}
    answers = [*states(replace(config, clusters=thirds))]
    if isinstance(answer, State):
        answers.append((fence.destination, answer))
    return kept_by(answers, fence.cluster_id, (fence.destination, fence.mirror))


def _closable(config: Config, cluster: ClusterConfig, fence: FenceFile, topics: Collection[str]) -> Closable:
    return Closable(
        cluster=cluster,
        cluster_id=fence.cluster_id,
        mirror=fence.mirror,
        run=fence.run,
        topics=topics,
        folder=config.path.parent,
    )


def _refuse_unlike(cluster: ClusterConfig, fence: FenceFile) -> None:
    if fence.command and cluster.ruling.unfence is None:
        raise BadRequest(
            f"cluster {cluster.name} was closed by its fence_command for run {fence.run}, and mirrorbook.yaml has no "
            f"unfence_command for it now: write it there again, or open {cluster.name} to applications by its own means"
        )
    if not fence.command and cluster.ruling.foreign:
        raise BadRequest(
            f"cluster {cluster.name}: the fence of run {fence.run} consists of Kafka's ACLs, and mirrorbook.yaml says "
            "`authorizer: foreign`: write `authorizer: kafka` there to lift it"
        )


def refuse(state: State, fence: FenceFile) -> None:
    reasons = tuple(_why_it_must_stand(state, fence))
    if reasons:
        raise Refused(f"run {fence.run}: its fence on {fence.cluster} is not lifted", reasons)


def _why_it_must_stand(state: State, fence: FenceFile) -> Iterator[str]:
    run, active = state.runs.get(fence.run), state.active_run(fence.mirror)
    mirror, place = state.mirrors.get(fence.mirror), fence.destination
    if active is not None and active.id != fence.run:
        yield f"run {active.id} holds mirror {fence.mirror} now: resume or abort that one"
        return
    if run is not None and run.plan.kind is RunKind.FAILBACK:
        yield f"it is a failback, in which applications write on {place}"
    elif run is not None and (run.state is RunState.DONE or turned(state, run)):
        yield (
            f"this run has promoted {place}, or has begun to: applications may write there. Only `mirrorbook failback` "
            f"leads back"
        )
    elif active is None and (
        failed_over(state.debts.get(fence.mirror)) or (mirror is not None and mirror.desired is Desired.STOPPED)
    ):
        yield f"mirror {fence.mirror} was failed over: applications write on {place}"


def _answers(state: State, fence: FenceFile) -> str:
    if state.active_run(fence.mirror) is None:
        return f"{fence.destination} answers, and no run holds mirror {fence.mirror} there"
    return (
        f"{fence.destination} answers: `mirrorbook failover abort {fence.mirror}` lifts the fence and ends the run. Go "
        "on here only if that fails"
    )


def _state_of(config: Config, fence: FenceFile) -> State | MirrorError:
    known = config.clusters.get(fence.destination)
    if known is None:
        return BadRequest(f"{config.path} does not know it")
    ((_, answer),) = states(replace(config, clusters={fence.destination: known}))
    try:
        if isinstance(answer, State):
            answer.require(fence.mirror)
    except Indeterminate as error:
        return error
    return answer


def _denied_besides(cluster: ClusterConfig, fence: FenceFile, held: Acls) -> Iterator[str]:
    """A watcher that applies a pending fence denies transactional ids that the file does not know."""
    names = (a.name for a in held.entries if a.resource is Resource.TRANSACTIONAL_ID)
    found = sorted(held.entries & {denial(name, resource=Resource.TRANSACTIONAL_ID) for name in names} - fence.denials)
    if found:
        how = acl_command(found[0], bootstrap=cluster.control["bootstrap.servers"], remove=True)
        yield (
            f"{len(found)} transactional id(s) are denied on {cluster.name} that the file does not name: "
            f"{some(a.name for a in found)}. If a watcher of mirror {fence.mirror} has denied them, their applications "
            f"stay shut out until somebody takes that away, one by one: {how}"
        )


def _told_on(cluster: ClusterConfig, fence: FenceFile) -> Iterator[str]:
    try:
        said = newest(cluster, base_name(fence.mirror), SEEN_S)
    except MirrorError as error:
        yield f"not known where applications were told to write: {error}"
        return
    if said is not None and said.cluster_id != fence.cluster_id:
        yield (
            f"applications were told to write on {said.active} at {when(said.since_ms)} (run {said.run}): what they "
            "have written there since is not here"
        )
