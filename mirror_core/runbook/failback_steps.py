"""The steps of a failback. Each may be repeated after a crash at any point.

M is the failed-over mirror; its state is on the new primary. M-back, its reverse, is recorded on the old source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.local import LocalRunner
from mirror_core.dataplane.results import raise_if_failed
from mirror_core.decide.failback import written_since
from mirror_core.decide.headway import catching_up
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.mirrors.creation import ensure_state_topic, new_producer_id
from mirror_core.mirrors.gaps import gaps_home
from mirror_core.model.clock import now_ms
from mirror_core.model.drift import Part
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.mirror import (
    ZOMBIE_MS,
    Desired,
    FailureKind,
    Mirror,
    PartitionState,
    PartitionStatus,
    is_fresh,
)
from mirror_core.model.names import Partition, reverse_name
from mirror_core.model.run import Evidence, Mode
from mirror_core.runbook.tails import TailSteps
from mirror_core.runbook.way_home import home_already, home_run, refuse_unless_home, reverse_link
from mirror_core.state.link import Link, link_of
from mirror_core.state.records import Forget, PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.topic import read_state, read_whole
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.access import demote
from mirror_core.sync.closing_commands import closable
from mirror_core.sync.closings import Shut
from mirror_core.sync.cycle import SyncReport, sync
from mirror_core.sync.fence import RESOLVE_S, STILL_S, await_stillness, lift_denials
from mirror_core.sync.homecoming import bring_home
from mirror_core.sync.ledger import remember_there_too, stage_again
from mirror_core.sync.lifting import forget_lifted, forget_revoked, note_withdrawn
from mirror_core.sync.principals import own_principals
from mirror_core.sync.shutting import closed_through

CLOSE_OFFSETS: Final = 1_000
CLOSE_S: Final = 5.0
"""In seconds of writes on a busy cluster."""
STALL_S: Final = 120.0
TELL_S: Final = 10.0
SETTLED: Final = frozenset({Part.CONFIGS, Part.ACLS})
"""Rights too: a later withdrawal is detected by them."""


class FailbackSteps(TailSteps):
    __slots__ = ()

    def demote(self) -> Evidence:
        """On the old source: deny applications, then lift the fence, so only the mirror can write."""
        self._await_zombies()
        topics = self._present_topics(self.link.source, self._topics())
        rows = demote(self.link, self.writer, topics, self.link.source.name, self._shut(self.link, self.link.source))
        return {"access": len(rows), "such_as": some(f"{r.action} {r.subject}" for r in rows)}

    def create_reverse(self) -> Evidence:
        """Record M-back with all existing partitions. Their logs are aligned, so copying may begin."""
        back, run = self._reverse_mirror(), self.journal.run_id
        given_up: Evidence = {"mirror": back.name, "made": f"no further: {self.link.destination.name} was given up"}
        if home_already(read_whole(self.link.source), back.name, run):  # before taking over a conductor
            return given_up
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            ensure_state_topic(old)
            there, here = existing(new, self._topics()), existing(old, self._topics())
        with StateWriter(self.link.source, control_id(back.name)) as writer:
            if home_already(writer.state, back.name, run):
                return given_up
            # First: if the new primary dies from here on, only this ledger has the denials on the old source, and
            # which of them stand for withdrawn rights.
            remember_there_too(writer, back.name, self.writer.state, self.link.source.name, self._topics())
            begins = link_of(self.link.config, back)
            with ClusterClient(self.link.destination) as new:
                note_withdrawn(begins, self.writer.state, writer, new)
            known = writer.state.mirrors.get(back.name)
            if known is None or known.homecoming != run:
                with ClusterClient(self.link.source) as old:
                    forget_revoked(begins, writer, old)
                writer.put(back, *self._beginnings(back, writer.state, there, here))
            link = link_of(self.link.config, writer.state.mirrors[back.name])
            with ClusterClient(self.link.source) as old:
                lift_denials(back, writer, old)  # of an earlier failback, against its tasks
                stage_again(writer, back.name, old, own_principals(link))  # the mirror exists again
                groups = bring_home(back, old, self._topics(), writer)
            forget_lifted(link, writer, self.writer.state)
            report = sync(link, writer, only=SETTLED)
            # After the sync, which staged current grants: detects later revocations.
            with ClusterClient(self.link.destination) as new:
                note_withdrawn(link, self.writer.state, writer, new)
            writer.put(replace(writer.state.mirrors[back.name], begins=False))
        return {
            "mirror": back.name,
            "groups_brought_home": groups,
            "settings_changed": _settings_changed(report),
        }

    def _beginnings(
        self, back: Mirror, state: State, there: Mapping[str, TopicView], here: Mapping[str, TopicView]
    ) -> Iterator[Record | Forget]:
        began = after(PartitionState.UNKNOWN, Event.START, Event.ALIGNED)
        fresh = {
            p: PartitionStatus(
                partition=p,
                state=began,
                source_topic_id=there[p.topic].id,
                destination_topic_id=here[p.topic].id,
            )
            # Recorded by M or not. A topic deleted on the new primary is left alone.
            for topic in sorted(there.keys() & here.keys())
            for p in (Partition(topic, index) for index in sorted(there[topic].partitions))
            if p.index in here[topic].partitions
        }
        left = state.partitions.get(back.name, {})
        yield from (Forget(PartitionRecord(back.name, s)) for p, s in sorted(left.items()) if p not in fresh)
        yield from (PartitionRecord(back.name, s) for s in fresh.values())
        # It is about an earlier failback.
        yield from (Forget(proof) for proof in [state.proofs.get(back.name)] if proof)

    def catch_up(self) -> Evidence:
        link = self._reverse_link()
        if home_run(read_state(self.link.source), self.journal.run_id):
            return {"lag": f"not copied: {self.link.destination.name} was given up, and applications are home"}
        started = time.monotonic()
        best, moved, told = None, started, started
        first_end, first = None, None
        while True:
            lag, end = self._lag(link)
            now = time.monotonic()
            first_end = end if first_end is None else first_end
            first = (lag, now) if first is None and lag is not None else first
            if now - told >= TELL_S:
                told = now
                self.say(f"catch_up: {catching_up(lag, first, now)}, until {self.link.source.name} is close behind")
            busy = (end - first_end) / max(1.0, now - started) * CLOSE_S
            if lag is not None and lag <= max(CLOSE_OFFSETS, busy):
                return {"lag": lag, "seconds": round(now - started, 1)}
            if lag is not None and (best is None or lag < best):
                best, moved = lag, now
            if now - moved > STALL_S:
                raise MirrorError(
                    f"mirror {link.mirror.name}: its data plane has made no progress for {STALL_S:.0f} s, "
                    f"{'an unknown number of' if lag is None else lag} offset(s) left; see `mirrorbook mirror describe "
                    f"{link.mirror.name}`, then resume the failback"
                )
            if not is_fresh(read_state(self.link.source).leases.get(link.mirror.name), now_ms()):
                self._copy_here(link)
                continue
            time.sleep(0.5)

    def reprotect(self) -> Evidence:
        """Make the new primary the mirror's destination again."""
        link = self._reverse_link()
        # Before taking over its conductor.
        refuse_unless_home(link, read_whole(self.link.source), self.journal.run_id)
        with StateWriter(self.link.source, control_id(link.mirror.name)) as back:
            given_up = refuse_unless_home(link, back.state, self.journal.run_id).plan.mode is Mode.UNPLANNED
            statuses = dict(sorted(back.state.partitions.get(link.mirror.name, {}).items()))
            # Includes topics created on the new primary.
            topics, cluster = sorted({p.topic for p in statuses}), self.link.destination
            with ClusterClient(cluster) as client:
                self._await_zombies()
                there = self._present_topics(cluster, topics)
                rows = demote(link, back, there, cluster.name, self._shut(link, cluster))
                own = self._own_records(client, statuses, at_rest=not given_up)
                lift_denials(self.link.mirror, self.writer, client)
                stage_again(self.writer, self.link.mirror.name, client, own_principals(self.link))
                remember_there_too(self.writer, self.link.mirror.name, back.state, cluster.name, topics)
                bring_home(self.link.mirror, client, topics, self.writer)
            forget_lifted(self.link, self.writer, back.state)
            mirror = self.writer.state.mirrors[self.link.mirror.name]
            recorded = dict(self.writer.state.partitions.get(mirror.name, {}))
            self.writer.put(
                # A new producer id: under the old one the applications' records would look like foreign writes.
                replace(mirror, desired=Desired.STARTED, producer_id=new_producer_id()),
                *(PartitionRecord(mirror.name, self._protected(s, own.get(p))) for p, s in statuses.items()),
                # Not copied back: the old source's records are new to the mirror.
                *(Forget(PartitionRecord(mirror.name, s)) for p, s in recorded.items() if p not in statuses),
                # It is about the old source before truncation.
                *(Forget(proof) for proof in [self.writer.state.proofs.get(mirror.name)] if proof),
            )
        report = sync(self.link, self.writer, only=SETTLED, run_id=self.journal.run_id)
        with ClusterClient(self.link.source) as old:
            note_withdrawn(self.link, back.state, self.writer, old)
        return {
            "access": len(rows),
            "such_as": some(f"{r.action} {r.subject}" for r in rows),
            "settings_changed": _settings_changed(report),
            "partitions": len(statuses),
            **({"to_be_saved": some(f"{p} {went}" for p, went in own.items())} if own else {}),
        }

    def _protected(self, came_home: PartitionStatus, own: str | None) -> PartitionStatus:
        reason = None
        if own:
            reason = (
                f"somebody wrote to {self.link.destination.name} after applications had left it, or it was given up "
                f"while they were there: its log goes {own}, and {self.link.source.name} never got that: save it first"
            )
        if came_home.reason:
            reason = (
                f"it was FAILED when applications came home, so {self.link.destination.name} holds records that "
                f"{self.link.source.name} never got ({came_home.reason}): save them first"
            )
        last = Event.FAIL if reason else Event.ALIGNED
        return PartitionStatus(
            partition=came_home.partition,
            state=after(PartitionState.STOPPED, Event.START, last),
            source_topic_id=came_home.destination_topic_id,
            destination_topic_id=came_home.source_topic_id,
            reason=reason,
            failed_at=came_home.lmo if own else None,
            kind=FailureKind.DIVERGED if reason else None,
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _shut(self, link: Link, cluster: ClusterConfig) -> Callable[[Collection[str]], bool]:

        def note() -> None:  # fails unless we conduct this run
            self.journal.keep("demote", Shut(cluster=cluster.name))

        run = self.journal.run_id
        return lambda topics: closed_through(link, closable(self.link, cluster.name, run, topics), note)

    def _present_topics(self, cluster: ClusterConfig, topics: list[str]) -> list[str]:
        with ClusterClient(cluster) as client:
            return sorted(existing(client, topics))

    def _await_zombies(self) -> None:
        """Wait until no task of an earlier data plane, in either direction, can still write."""
        until = 0
        for cluster, name in (
            (self.link.destination, self.link.mirror.name),
            (self.link.source, reverse_name(self.link.mirror.name)),
        ):
            state = read_state(cluster)
            state.require(name)
            lease = state.leases.get(name)
            until = max(until, lease.writers_until_ms + ZOMBIE_MS if lease else 0)
        # A plain wait: a task without its driver cannot be asked.
        time.sleep(max(0, until - now_ms()) / 1000)

    def _reverse_mirror(self) -> Mirror:
        mirror = self.link.mirror
        return replace(
            mirror,
            name=reverse_name(mirror.name),
            source=mirror.destination,
            destination=mirror.source,
            source_id=mirror.destination_id,
            destination_id=mirror.source_id,
            producer_id=new_producer_id(),
            gaps=gaps_home(mirror, self.link),
            desired=Desired.STARTED,
            created_ms=now_ms(),
            homecoming=self.journal.run_id,
            begins=True,
        )

    def _copy_here(self, link: Link) -> None:
        options = Options(until_caught_up=True)
        try:
            copied = Replication(link, LocalRunner, options, stop=threading.Event(), say=self.say).run()
        except LostOwnership as error:  # of the reverse mirror's lease
            self.say(f"catch_up: not copied here any more: {error}")
            self.writer.put(*filter(None, [self.journal.record("catch_up")]))  # fails if the run was lost, too
        else:
            raise_if_failed(copied)

    def _reverse_link(self) -> Link:
        return reverse_link(self.link)

    def _lag(self, link: Link) -> tuple[int | None, int]:
        """(offsets behind, sum of source ends). The lag is None while topics are missing."""
        with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
            there, here = existing(source, self._topics()), existing(destination, self._topics())
            partitions = [Partition(t, i) for t, view in there.items() for i in view.partitions]
            missing = any(p.topic not in here or p.index not in here[p.topic].partitions for p in partitions)
            positions = {} if missing else list_offsets(destination, partitions, Point.LOG_END)
            ends = list_offsets(source, partitions, Point.STABLE_END)
        lag = None if missing else sum(max(0, ends[p] - positions[p]) for p in partitions)
        return lag, sum(ends.values())

    def _own_records(
        self, client: ClusterClient, statuses: Mapping[Partition, PartitionStatus], *, at_rest: bool
    ) -> Mapping[Partition, str]:
        """`is_quiescent`: fenced before, so one look suffices. Otherwise wait until logs stop moving."""
        there = _there(client, statuses)
        if at_rest:
            return written_since(statuses, list_offsets(client, there, Point.LOG_END))
        topics = {p.topic for p in there}
        return written_since(statuses, await_stillness(client, topics, there, pause_s=STILL_S, resolve_s=RESOLVE_S))


def _there(client: ClusterClient, partitions: Iterable[Partition]) -> list[Partition]:
    wanted = list(partitions)
    views = existing(client, {p.topic for p in wanted})
    return [p for p in wanted if p.topic in views and p.index in views[p.topic].partitions]


def _settings_changed(report: SyncReport) -> int:
    return sum(row.done for row in report.rows if row.part is Part.CONFIGS)
