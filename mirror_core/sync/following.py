"""Follows commits of groups on the source, and repeats them on the destination within a second.

Must not disturb copying: failures are counted, and following starts over. The sync stays the truth.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Final

from mirror_core.decide.filters import group_filter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import GroupBatches
from mirror_core.kafka.groups import OFFSET_KINDS, Committed, list_groups
from mirror_core.kafka.offsets_topic import OffsetsTopic
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Indeterminate, MirrorError, MissingPermission, Unreachable
from mirror_core.model.groups import GroupsLeft, Uncommitted
from mirror_core.model.logs import logger
from mirror_core.model.mirror import GroupsSeen, PartitionState
from mirror_core.model.names import Partition
from mirror_core.state.lease import HeldLease
from mirror_core.state.link import Link
from mirror_core.sync.group_commits import OwnOffsets
from mirror_core.sync.group_rounds import AHEAD_S, BUSY_S, Rounds, Waiting
from mirror_core.wire.fields import MalformedAnswer
from mirror_core.wire.group_offsets import decode as decode_offset
from mirror_core.wire.records import Record

_log = logger(__name__)

_POLL_MS: Final = 250
_ROUND_S: Final = 0.2
_SILENT_S: Final = 5.0
"""What was read is still committed then."""
_TELL_S: Final = 5.0
_AGAIN_S: Final = (1.0, 30.0)
"""First, maximum."""
_NOT_ALLOWED_S: Final = 60.0
_LOOK_S: Final = 10.0
_IN_PART_S: Final = 60.0
_PROOF_S: Final = 5.0
_REMEMBERED: Final = 2_000
"""About 50 KiB every five seconds."""


class Follower:
    def __init__(self, link: Link, failed: Callable[[], None]) -> None:
        """`on_failure` runs on the follower's thread."""
        self._link = link
        self._failed = failed
        self._stop = threading.Event()
        self._proof, self._proof_wanted = threading.Event(), threading.Event()
        self._told_at = float("-inf")
        self._topics: Mapping[str, str] = MappingProxyType({})
        """Source topic ids."""
        self._unchecked: list[tuple[str, Partition, Committed | None]] = []
        """Their topics may have been recreated."""
        self._own: OwnOffsets | None = None
        self._refused: Mapping[tuple[str, str], Uncommitted] = MappingProxyType({})
        self._begun = threading.Event()
        self._seen: GroupsSeen | None = None
        self._told: GroupsSeen | None = None
        self.waiting = Waiting()
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)

    # -- on the driver's thread ----------------------------------------------------------------------------------

    def beat(self, lease: HeldLease) -> None:
        """Called on the driver's thread: takes its state, and writes for the follower."""
        now = time.monotonic()
        if now < self._told_at + _TELL_S and not self._proof_wanted.is_set():
            return
        statuses = lease.state.partitions.get(self._link.mirror.name, {}).values()
        copied = [s for s in statuses if s.state is not PartitionState.STOPPED]
        self._topics = {s.partition.topic: s.source_topic_id for s in copied}
        self.waiting.destination_ids = {s.partition.topic: s.destination_topic_id for s in copied}
        if self._own is None:
            self._own = OwnOffsets(self._link.mirror.name, lease.state)
        self._own.read(lease.state)
        wanted, seen = self._proof_wanted.is_set(), self._seen
        if wanted:
            lease.put(lease.lease)  # LostOwnership when the mirror is lost
            self._proof_wanted.clear()
            self._proof.set()
        if seen is not None and seen != self._told:
            lease.put(seen)
            self._told = seen
        self._remember(lease, self._own, _REMEMBERED)
        self._told_at = now
        self._begun.set()

    def _remember(self, lease: HeldLease, own: OwnOffsets, most: int | None = None) -> None:
        refused, known = self.waiting.refused, lease.state.groups_left.get(self._link.mirror.name)
        if refused != self._refused:
            known = known or GroupsLeft(mirror=self._link.mirror.name)
            others = [u for u in known.uncommitted if (u.group, u.partition) not in {*refused, *self._refused}]
            lease.put(replace(known, uncommitted=tuple(sorted([*others, *refused.values()], key=_name))))
            self._refused = refused
        news = own.news(most)
        try:
            if news:
                lease.put(*news)
        except MirrorError:
            own.again(news)
            raise

    def last_words(self, lease: HeldLease) -> None:
        if self._own is not None:
            self._remember(lease, self._own)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._begun.set()
        self._thread.join(_ROUND_S)  # it may hang on a silent cluster: do not wait

    # -- on the follower's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        self._begun.wait()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except MissingPermission as error:
                pause = _NOT_ALLOWED_S
                _log.info("groups are not followed, a sync has to look at each: %s", error)
            except Exception as error:  # noqa: BLE001 - copying goes on beside it, whatever this is
                failures = 1 if time.monotonic() - began > _NOT_ALLOWED_S else failures + 1
                pause = min(_AGAIN_S[0] * 2 ** (failures - 1), _AGAIN_S[1])
                self._failed()
                said = error if isinstance(error, MirrorError) else type(error).__name__
                _log.info("groups are not followed for %g s: %s", pause, said)
            else:
                pause = _AGAIN_S[0]
            self._go_on_without_source(pause)

    def _follow(self) -> None:
        with ExitStack() as opened:
            source = opened.enter_context(ClusterClient(self._link.source, timeout_s=_SILENT_S))
            rounds = opened.enter_context(self._rounds())
            topic = opened.enter_context(OffsetsTopic(source))
            if topic.empty:
                self._seen = GroupsSeen(mirror=self._link.mirror.name, synced_ms=now_ms(), followed=True)
                self._stop.wait(BUSY_S)
                return
            groups = _Groups(self._link, source)
            for record in topic.poll(0):  # first: it shows whether we may read at all
                self._read(record, groups)
            self._look_at_all(GroupBatches(source), groups.followed)
            self._let_through(source)
            until = time.monotonic() + _IN_PART_S if topic.in_part else float("inf")
            while not self._stop.is_set() and (began := time.monotonic()) < until:
                for record in topic.poll(_POLL_MS):
                    self._read(record, groups)
                seen = topic.seen_s()
                self._let_through(source)
                rounds.commit(self.waiting)
                if seen is not None:
                    ms = now_ms() - int((time.monotonic() - seen) * 1000)
                    self._seen = GroupsSeen(mirror=self._link.mirror.name, synced_ms=ms, followed=True)
                self._stop.wait(began + _ROUND_S - time.monotonic())

    def _look_at_all(self, batches: GroupBatches, groups: list[str]) -> None:
        """Groups whose coordinator stays away are left to a sync."""
        rest, until = set(groups), time.monotonic() + _SILENT_S
        while rest and not self._stop.is_set() and time.monotonic() < until:
            found = batches.fetch_now(dict.fromkeys(rest))
            for group, fault in found.faults.items():
                if isinstance(fault, Unreachable):
                    raise fault
                rest.discard(group)  # a sync reports it
                _log.info("left to a sync: %s", fault, group=group)
            for group, offsets in found.offsets.items():
                rest.discard(group)
                for partition, committed in offsets.committed.items():
                    self._take(group, partition, committed)
            if rest:
                self._stop.wait(_ROUND_S)

    def _go_on_without_source(self, pause_s: float) -> None:
        """Commit what was read, as far as the copy advances."""
        until = time.monotonic() + pause_s
        try:
            with self._rounds() as rounds:
                while not self._stop.is_set():
                    rounds.commit(self.waiting)
                    if self._stop.wait(min(AHEAD_S, until - time.monotonic())) or time.monotonic() >= until:
                        return
        except (MirrorError, OSError) as error:
            _log.debug("nothing committed meanwhile: %s", error)
            self._stop.wait(until - time.monotonic())

    def _read(self, record: Record, groups: _Groups) -> None:
        try:
            said = decode_offset(record.key, record.value)
        except MalformedAnswer as error:
            _log.info("a committed offset that cannot be read is left to the sync: %s", error)
            return
        if said is None or said.partition.topic not in self._topics or said.group not in groups:
            return
        value = said.value
        self._take(
            said.group,
            said.partition,
            None if value is None else Committed(value.offset, value.leader_epoch, value.metadata),
        )

    def _take(self, group: str, partition: Partition, committed: Committed | None) -> None:
        if partition.topic in self._topics:
            self._unchecked.append((group, partition, committed))

    def _let_through(self, source: ClusterClient) -> None:
        """Offsets of a recreated topic mean nothing in the old copy; a sync reports them."""
        if not self._unchecked:
            return
        found = source.metadata({partition.topic for _, partition, _ in self._unchecked}).topics
        for group, partition, committed in self._unchecked:
            topic = found.get(partition.topic)
            if topic is not None and topic.id == self._topics.get(partition.topic):
                self.waiting.take(group, partition, committed)
        self._unchecked = []

    def _rounds(self) -> Rounds:
        assert self._own is not None  # set in the driver's first exchange
        return Rounds(self._link.destination, self._still_ours, self._own)

    def _still_ours(self) -> None:
        """The driver shows it by a write to the state topic."""
        self._proof.clear()
        self._proof_wanted.set()
        if not self._proof.wait(_PROOF_S):
            raise Indeterminate(f"mirror {self._link.mirror.name}: its data plane does not show that it is ours")


def _name(left: Uncommitted) -> tuple[str, str]:
    return left.group, left.partition


class _Groups:
    def __init__(self, link: Link, source: ClusterClient) -> None:
        self._chosen = group_filter(link.mirror)
        self._source = source
        self._known: dict[str, bool] = {}
        self._gone: dict[str, float] = {}
        self._look()

    def __contains__(self, group: str) -> bool:
        now = time.monotonic()
        if group in self._chosen and group not in self._known and now >= self._gone.get(group, 0.0):
            self._look()
            if group not in self._known:  # deleted: its commits are still in the log
                self._gone[group] = now + _LOOK_S
        return self._known.get(group, False)

    @property
    def followed(self) -> list[str]:
        return [group for group, followed in self._known.items() if followed]

    def _look(self) -> None:
        kinds = {name: group.kind for name, group in list_groups(self._source).items() if name in self._chosen}
        self._known.update({name: kind in OFFSET_KINDS for name, kind in kinds.items()})
