"""Failback: return from the new primary to the old source, protected again.

Two approvals: for what is discarded on the old source, and for the reverse failover, which moves applications. Until
then they write on the new primary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from mirror_core.decide import failback as decision
from mirror_core.decide.failback import FailbackView, NewPrimary, OldSource, UnmirroredTopic
from mirror_core.decide.failover import Decision
from mirror_core.decide.mirror_circles import circle_doubt, way_home_mirror
from mirror_core.decide.promotion import given_there
from mirror_core.decide.steps import Need, needing, point_of_no_return
from mirror_core.decide.strategies import CUTTING, Allowed, came
from mirror_core.decide.topics import cleans
from mirror_core.decide.view import Topic, Unseen
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.acls import Acls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import existing, undescribed
from mirror_core.kafka.offsets import Point, led_offsets, list_offsets
from mirror_core.kafka.rights import rights_on
from mirror_core.kafka.sizes import log_sizes
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Mirror, PartitionStatus
from mirror_core.model.names import Offset, Partition, reverse_name
from mirror_core.model.run import Evidence, Run, RunKind, RunState, StepState
from mirror_core.rights.acls import denial
from mirror_core.runbook.beside import look_beside
from mirror_core.runbook.checkpoints import all_left
from mirror_core.runbook.conductor import Conductor, steps_of
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.observe import Ask
from mirror_core.runbook.way_home import home_run, reverse_link
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link, link_of
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned
from mirror_core.state.watchers import watched
from mirror_core.state.writer import StateWriter
from mirror_core.sync.access import undemotable_rights
from mirror_core.sync.mirror_circles import CircleFindings, search_circles
from mirror_core.sync.topics import mirror_topics


class Failback(Conductor[Allowed]):
    """`link`: from the old source to the new primary.

    A driven run stays RUNNING while the reverse failover is due: see `make_reverse_failover`.
    """

    KIND = RunKind.FAILBACK
    DISTURBS = "takes logs of the old source back"

    def home(self) -> Failover:
        """The failover that moves applications back, driven before the last step."""
        home = Failover(
            reverse_link(self.link),
            self.services,
            started_by=self.started_by,
            say=self._say,
            gate_limit_s=self._gate_limit_s,
        )
        home.watches = self.watches
        return home

    def way_home(self, run: Run) -> Run | None:
        _, steps = self.status(run.id)
        done = {record.step for record in steps if record.state is StepState.DONE}
        due = next((name for name in steps_of(run) if name not in done), None)
        return self.home().active() if due in needing(self.KIND, Need.HOME) else None

    def is_home(self, run: Run) -> bool:
        return home_run(read_state(self.link.source), run.id) is not None

    def disturbs(self, run: Run) -> bool:
        return turned(read_state(self.link.destination), run)

    def _ready(self, run: Run, name: str) -> bool:
        return name not in needing(self.KIND, Need.HOME) or self.is_home(run)

    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], Evidence]:
        steps = FailbackSteps(self.link, self.services, writer, journal, self._say)
        if name == point_of_no_return(self.KIND) and not journal.begun(name):
            steps.check_approval()
        return steps.act(name)

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            steps = [r for r in (journal.record(name) for name in journal.steps) if r]
            statuses = writer.state.partitions.get(self.link.mirror.name, {})
            folder, sides = self.services.run_dir(journal.run_id), (self.link.source.name, self.link.destination.name)
            told = writer.state.chronicle(journal.run_id)
            write_run_report(folder, journal.run, steps, statuses, all_left(journal), sides=sides, told=told)
        return journal.end(RunState.DONE)

    def _no_way_back(self) -> str:
        return (
            f"{self.link.source.name} is being changed. Resume the run; applications stay where they are until the "
            "failover home is approved"
        )

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        return journal.end(RunState.ABORTED)

    def _decide(self, state: State, choice: Allowed | None) -> Decision:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        link = replace(self.link, mirror=mirror)
        recorded = state.partitions.get(mirror.name, {})
        statuses = came(recorded)
        never_came = {p.topic for p in recorded.keys() - statuses.keys()}
        beside = list[tuple[Mirror, frozenset[str]]]()
        third = Ask(partial(look_beside, link, {p.topic for p in statuses}, beside))
        circles = Ask(lambda: _look_for_circles(link, statuses))
        reverse = Ask(lambda: _look_at_reverse(link))
        allowed = choice or Allowed()
        old = Ask(lambda: _look_at_old(link, statuses, never_came, allowed))
        new = Ask(lambda: _look_at_new(link, statuses, never_came, state))
        sizes = [Ask(partial(_sizes, cluster, statuses)) for cluster in (link.source, link.destination)]
        deadline = time.monotonic() + LIMITS.planned_side_s
        seen_old, seen_new, seen_reverse = (
            old.while_heard(deadline),
            new.while_heard(deadline),
            reverse.while_heard(deadline),
        )
        silent, seen_circles = third.answer(deadline), circles.while_heard(deadline)
        # Optional: only cost figures need them.
        old_sizes, new_sizes = ({} if isinstance(s, Unseen) else s for s in (ask.answer(deadline) for ask in sizes))
        if isinstance(seen_old, OldSource):
            seen_old = replace(seen_old, sizes=old_sizes)
        if isinstance(seen_new, NewPrimary):
            seen_new = replace(seen_new, sizes=new_sizes)
        active = [state.active_run(mirror.name)]
        if isinstance(seen_reverse, State):
            active.append(seen_reverse.active_run(reverse_name(mirror.name)))
        return decision.decide(
            FailbackView(
                mirror=mirror,
                statuses=statuses,
                old=seen_old,
                new=seen_new,
                active_runs=tuple(run.id for run in active if run),
                reverse=seen_reverse if isinstance(seen_reverse, Unseen) else None,
                allowed=allowed,
                debt=state.debts.get(mirror.name),
                unwatched="; ".join(watched(state, mirror.name).alarms()),
                never_came=tuple(sorted(never_came)),
                owner=link.config.owner(mirror.name),
                new_ruling=link.destination.ruling,
                beside_unseen=("a third cluster",) if isinstance(silent, Unseen) else tuple(sorted(silent)),
                beside=tuple(sorted(beside, key=lambda one: one[0].name)),
                circles=() if isinstance(seen_circles, Unseen) else seen_circles.circles,
                circle_doubts=(
                    (circle_doubt(mirror.destination, seen_circles.reason),)
                    if isinstance(seen_circles, Unseen)
                    else seen_circles.doubts
                ),
            )
        )


def _look_at_reverse(link: Link) -> State:
    state = read_state(link.source, timeout_s=LIMITS.planned_state_s)
    state.require(reverse_name(link.mirror.name))
    return state


def _look_for_circles(link: Link, statuses: Mapping[Partition, PartitionStatus]) -> CircleFindings:
    """Other mirrors that would overwrite what is brought back."""
    back = link_of(link.config, way_home_mirror(link.mirror))
    found = search_circles(back, {p.topic for p in statuses})
    return replace(found, circles=tuple(one for one in found.circles if link.mirror.name not in one.mirrors))


def _look_at_old(
    link: Link, statuses: dict[Partition, PartitionStatus], never_came: Collection[str], allowed: Allowed
) -> OldSource:
    with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as client:
        logs = _look_at_logs(client, statuses)
        held = describe_acls(client)
        on_cluster, on_topics = rights_on(client, logs.topics)
        return OldSource(
            cluster_id=logs.cluster_id,
            topics=logs.topics,
            log_starts=logs.starts,
            log_ends=logs.ends,
            replicas=logs.replicas,
            compacted=_compacted(client, logs.topics) if CUTTING & allowed.strategies else frozenset(),
            authorizer=isinstance(held, Acls),
            by_command=link.source.ruling.fence is not None,
            fenced=isinstance(held, Acls) and {denial(topic) for topic in logs.topics} <= held.entries,
            undemotable=undemotable_rights(link, client.config, held, logs.topics),
            held=held.entries if isinstance(held, Acls) else None,
            cluster_rights=on_cluster or frozenset(),
            topic_rights=on_topics,
            unmirrored=_unmirrored(link, client, statuses, never_came),
        )


def _look_at_new(
    link: Link, statuses: dict[Partition, PartitionStatus], never_came: Collection[str], state: State
) -> NewPrimary:
    with ClusterClient(link.destination, timeout_s=LIMITS.planned_answer_s) as client:
        logs = _look_at_logs(client, statuses)
        held = describe_acls(client)
        return NewPrimary(
            cluster_id=logs.cluster_id,
            topics=logs.topics,
            unmirrored=_unmirrored(link, client, statuses, never_came),
            log_starts=logs.starts,
            log_ends=logs.ends,
            undemotable=undemotable_rights(link, client.config, held, logs.topics),
            given=given_there(state.ledger_of(link.mirror.name), held.entries) if isinstance(held, Acls) else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logs:
    cluster_id: str
    topics: dict[str, Topic]
    replicas: dict[str, int]
    starts: dict[Partition, Offset]
    ends: dict[Partition, Offset]


def _look_at_logs(client: ClusterClient, statuses: dict[Partition, PartitionStatus]) -> _Logs:
    view = client.metadata({p.topic for p in statuses})
    if view.denied:  # hidden is not missing: a missing topic is recreated
        raise undescribed(client, view.denied)
    topics = {name: Topic(id=v.id, partitions=len(v.partitions)) for name, v in view.topics.items()}
    # Unrecorded partitions too: a strategy applies to whole topics.
    present = [Partition(name, index) for name, v in sorted(view.topics.items()) for index in sorted(v.partitions)]
    return _Logs(
        cluster_id=view.cluster_id,
        topics=topics,
        replicas={name: v.replication_factor for name, v in view.topics.items()},
        starts=list_offsets(client, present, Point.START) if present else {},
        ends=list_offsets(client, present, Point.LOG_END) if present else {},
    )


def _unmirrored(
    link: Link, client: ClusterClient, statuses: Collection[Partition], never_came: Collection[str]
) -> dict[str, UnmirroredTopic]:
    mirrored = {p.topic for p in statuses}
    views = {name: view for name, view in mirror_topics(link, client).items() if name not in mirrored}
    views |= existing(client, never_came) if never_came else {}
    partitions = [Partition(name, index) for name, view in views.items() for index in view.partitions]
    starts, ends = (led_offsets(client, partitions, where).offsets for where in (Point.START, Point.LOG_END))
    found = {}
    for name, view in views.items():
        mine = [Partition(name, index) for index in view.partitions]
        known = ends.keys() >= set(mine) and starts.keys() >= set(mine)
        found[name] = UnmirroredTopic(
            partitions=len(mine),
            offsets=sum(ends[p] - starts[p] for p in mine) if known else None,
            log_ends=sum(ends[p] for p in mine) if known else None,
        )
    return found


def _compacted(client: ClusterClient, topics: Collection[str]) -> frozenset[str]:
    return frozenset(t for t, configs in describe_configs(client, topics).items() if cleans(configs.effective))


def _sizes(cluster: ClusterConfig, partitions: Collection[Partition]) -> dict[Partition, int]:
    with ClusterClient(cluster, timeout_s=LIMITS.planned_answer_s) as client:
        views = existing(client, {p.topic for p in partitions})
        return log_sizes(client, [Partition(name, index) for name, view in views.items() for index in view.partitions])
