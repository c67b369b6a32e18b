"""Commits group offsets on the destination, safely against processes that act too late.

Where the data principal has no right to commit, ownership is checked again before the control principal commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple

from mirror_core.decide.group_coverage import CommitOffset, LogBounds, decide_group_offset
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ANONYMOUS, ClusterConfig, Principal
from mirror_core.kafka.consumer_groups import (
    ACTIVE_GROUP_ERRORS,
    COMMITTED_RESULTS,
    DENIED_GROUP_ERRORS,
    CommittedOffset,
    CommittedOffsets,
    FetchedGroupOffsets,
    GroupOffsetsClient,
    OffsetsToCommit,
)
from mirror_core.kafka.leader_epochs import LogPosition, find_epochs_before
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.model.acl import Acl, AclPurpose, Operation, Resource
from mirror_core.model.errors import Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.sync_state import GroupCoverage, OwnGroupOffsets, UncommittedGroupOffset
from mirror_core.model.text import format_count
from mirror_core.rights.acl_rules import build_denial
from mirror_core.state.journal import JournalLog
from mirror_core.state.state_records import State
from mirror_core.sync.acl_ledger import record_and_create
from mirror_core.sync.principals import explain_data_uncertainty

_log = get_logger(__name__)
_RETRY_INTERVAL_S: Final = 0.05
MAX_UNRECORDED_WAIT_S: Final = 30.0
"""A commit without a response for longer is recorded as waiting. A coordinator moves or loads in less time."""
_NO_COORDINATOR_TEXT: Final = "no coordinator on the destination has answered yet; the commit is retried"
RECREATED_TOPIC_TEXT: Final = "its topic was deleted and created anew on the source: the copy is of the old one"
UNCOPIED_TOPIC_TEXT: Final = "its topic is not copied"
UNCOPIED_PARTITION_TEXT: Final = "the destination does not have this partition yet"
OPEN_TRANSACTION_TEXT: Final = "somebody on the destination commits it in a transaction that is still open"
_DENIED_RETRY_S: Final = 60.0


class OffsetCommitter:
    """For groups without members. Not thread-safe."""

    def __init__(self, destination: ClusterClient, check_ownership: Callable[[], None] | None) -> None:
        """`check_ownership`: raises when the mirror is lost; None in a run's own steps."""
        self._check_ownership = check_ownership
        self._destination = destination
        self._control = GroupOffsetsClient(destination)
        self._client = ClusterClient(destination.config, Principal.DATA, timeout_s=destination.timeout_s)
        self._data = GroupOffsetsClient(self._client)
        self._data_retry_at = 0.0 if _find_data_user(destination.config) else float("inf")

    def commit_offsets(
        self, wanted: Mapping[str, OffsetsToCommit], share_groups: Collection[str] = ()
    ) -> dict[str, dict[Partition, str]]:
        """Returns error codes. Leader epochs go along: a consumer notices if the log has lost its end."""
        positions = {
            LogPosition(p, offset)
            for group, offsets in wanted.items()
            if group not in share_groups
            for p, (offset, _) in offsets.items()
        }
        epochs = find_epochs_before(self._destination, positions)
        if self._check_ownership is None:
            return self._control.commit(wanted, epochs, share_groups)
        responses = dict[str, dict[Partition, str]]()
        if time.monotonic() >= self._data_retry_at:
            responses = self._data.commit(wanted, epochs, share_groups)
            wanted = {
                g: wanted[g] for g, codes in responses.items() if not DENIED_GROUP_ERRORS.isdisjoint(codes.values())
            }
            if not wanted:
                return responses
            groups = format_count(len(wanted), "group")
            _log.info("the data principal may not commit for %s", groups, cluster=self._client.name)
            self._data_retry_at = time.monotonic() + _DENIED_RETRY_S
        self._check_ownership()
        return {**responses, **self._control.commit(wanted, epochs, share_groups)}

    @property
    def is_in_run(self) -> bool:
        return self._check_ownership is None

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> OffsetCommitter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


UNANSWERED: Final = "unanswered"


def format_refusal(code: str) -> str:
    if code == UNANSWERED:
        return "no coordinator on the destination took the commit in time"
    return f"refused by the destination ({code})"


class OwnCommittedOffsets:
    """Offsets that the mirror committed itself; any other is an application's. Thread-safe.

    Unwritten ones of a killed process count as own again once the source commits the same.
    """

    def __init__(self, mirror: MirrorName, state: State) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._known: dict[str, dict[Partition, Offset]] = {}
        self._clamped_from: dict[str, dict[Partition, Offset]] = {}
        self._other_process: dict[str, dict[Partition, Offset]] = {}
        """Differing records of another process."""
        self._recorded: dict[str, OwnGroupOffsets] = {}
        self._last_state: State | None = None
        self._changed: dict[str, None] = {}
        self.read(state)

    def read(self, state: State) -> None:
        if state is self._last_state:  # read before, and changed only by us
            return
        self._last_state = state
        with self._lock:
            for record in state.group_offsets.get(self._mirror, {}).values():
                if self._recorded.get(record.group) == record:
                    continue
                self._recorded[record.group] = record
                records, own_offsets = record.offsets.to_mapping(), self._known.setdefault(record.group, {})
                if differs := {p: offset for p, offset in records.items() if own_offsets.get(p, offset) != offset}:
                    self._other_process[record.group] = differs
                clamped_from = record.clamped_from.to_mapping().items()
                self._clamped_from.setdefault(record.group, {}).update(
                    (p, source) for p, source in clamped_from if p not in own_offsets
                )
                self._known[record.group] = {**records, **own_offsets}

    def find_known(self, group: str, partition: Partition) -> frozenset[Offset]:
        """Next offsets, each of which may be our last commit."""
        with self._lock:
            candidates = (
                offsets_by_group.get(group, {}).get(partition)
                for offsets_by_group in (self._known, self._other_process)
            )
            return frozenset(offset for offset in candidates if offset is not None)

    def list_partitions(self) -> dict[str, frozenset[Partition]]:
        with self._lock:
            return {group: frozenset(offsets) for group, offsets in self._known.items()}

    def record_offset(self, group: str, partition: Partition, offset: Offset, source: Offset | None = None) -> None:
        """`source`: the source's offset, if another. Also for offsets that were there already."""
        with self._lock:
            self._other_process.get(group, {}).pop(partition, None)
            offsets, clamped_from = self._known.setdefault(group, {}), self._clamped_from.setdefault(group, {})
            clamped_source = None if source == offset else source
            if (offsets.get(partition), clamped_from.get(partition)) == (offset, clamped_source):
                return
            offsets[partition] = offset
            if clamped_source is None:
                clamped_from.pop(partition, None)
            else:
                clamped_from[partition] = clamped_source
            self._changed[group] = None

    def forget_offsets(self, group: str, partitions: Collection[Partition]) -> None:
        with self._lock:
            for offsets_by_group in (self._known, self._clamped_from, self._other_process):
                for partition in partitions & offsets_by_group.get(group, {}).keys():
                    del offsets_by_group[group][partition]
                    self._changed[group] = None

    def forget_other_groups(self, groups: Collection[str]) -> list[OwnGroupOffsets]:
        """Returns records to delete from the state topic."""
        with self._lock:
            forgotten = [record for record in self._recorded.values() if record.group not in groups]
            for record in forgotten:
                del self._recorded[record.group]
                for offsets in (self._known, self._clamped_from, self._other_process):
                    offsets.pop(record.group, None)
            return forgotten

    def pop_unwritten(self, max_offsets: int | None = None) -> list[OwnGroupOffsets]:
        """Groups with all their offsets, oldest change first; at least one. Call `requeue` if writing fails."""
        records, count = list[OwnGroupOffsets](), 0
        with self._lock:
            for group in list(self._changed):
                offsets = self._known.get(group, {})
                if records and max_offsets is not None and count + len(offsets) > max_offsets:
                    break
                count += len(offsets)
                del self._changed[group]
                records.append(
                    OwnGroupOffsets(
                        mirror=self._mirror,
                        group=group,
                        offsets=PartitionOffsets.from_mapping(offsets),
                        clamped_from=PartitionOffsets.from_mapping(self._clamped_from.get(group, {})),
                    )
                )
            self._recorded |= {record.group: record for record in records}
        return records

    def requeue(self, unwritten: Iterable[OwnGroupOffsets]) -> None:
        with self._lock:
            self._changed.update(dict.fromkeys(record.group for record in unwritten))


def commit_until_answered(
    commits: OffsetCommitter,
    wanted: Mapping[str, OffsetsToCommit],
    client: ClusterClient,
    share_groups: Collection[str] = (),
) -> dict[str, dict[Partition, str]]:
    """Retried until the client's timeout. Then `UNANSWERED`, or in a run Unreachable: a resumed step tries again."""
    codes: dict[str, dict[Partition, str]] = {group: {} for group in wanted}
    remaining = {group: dict(offsets) for group, offsets in wanted.items() if offsets}
    deadline = time.monotonic() + client.timeout_s
    while remaining:
        for group, answered in commits.commit_offsets(remaining, share_groups).items():
            codes[group] |= answered
            remaining[group] = {
                p: offset_and_metadata for p, offset_and_metadata in remaining[group].items() if p not in answered
            }
        remaining = {group: offsets for group, offsets in remaining.items() if offsets}
        if remaining and time.monotonic() > deadline:
            if commits.is_in_run:
                raise Unreachable(
                    f"cluster {client.name}, group {min(remaining)}: no coordinator took the commit in time"
                )
            for group, offsets in remaining.items():
                codes[group] |= dict.fromkeys(offsets, UNANSWERED)
            break
        if remaining:
            time.sleep(_RETRY_INTERVAL_S)
    return codes


def deny_offset_commits(mirror: Mirror, log: JournalLog, client: ClusterClient) -> str:
    """Stops commits of old syncs and followers; seen on every broker. May be repeated.

    Returns what was done, or why nothing is denied. `lift_all_denials` undoes it.
    """
    user = _find_data_user(client.config)
    if user is None:
        return "nothing: the data principal is not a user of its own, so the lease alone keeps late commits away"
    destination_acls = describe_acls(client)
    if isinstance(destination_acls, AuthorizerOff):
        return f"nothing: cluster {client.name} {destination_acls.text}, so the lease alone keeps late commits away"
    commit_denial = build_commit_denial(user)
    ledger_acls = {e.acl for e in log.state.ledger.values() if e.cluster == client.name}
    if (
        commit_denial not in destination_acls.entries or commit_denial in ledger_acls
    ):  # an equal entry made by others stays theirs
        record_and_create(log, mirror.name, client, {commit_denial}, AclPurpose.FENCE)
    wait_until_acls_present(client, {commit_denial})
    if uncertainty := explain_data_uncertainty(client.config, destination_acls.entries, log.state):
        return f"not certain: {user} is denied, but {uncertainty}. Until then the lease alone keeps late commits away"
    return f"{user} commits for no group on cluster {client.name} any more"


def build_commit_denial(user: str) -> Acl:
    """Offsets can still be read."""
    return build_denial("*", user, resource=Resource.GROUP, operation=Operation.READ)


def _find_data_user(config: ClusterConfig) -> str | None:
    user = config.user(Principal.DATA)
    return None if user in (None, ANONYMOUS, config.user(Principal.CONTROL)) else f"User:{user}"


AHEAD_RETRY_S: Final = 1.0
ACTIVE_GROUP_RETRY_S: Final = 5.0


class FollowedTopic(NamedTuple):
    source_id: str
    destination_id: str


@dataclass(slots=True)
class PendingOffsetCommits:
    """The newest of each partition that the destination lacks."""

    committed: dict[str, dict[Partition, CommittedOffset]] = field(default_factory=dict)
    refusals: Mapping[tuple[str, str], UncommittedGroupOffset] = field(default_factory=dict)
    """Replaced, never changed: another thread reads it."""
    topic_ids: Mapping[str, FollowedTopic] = field(default_factory=dict)
    """Other topics of the same name are left alone."""
    agreed_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    """Where copies begin to have other records than the source: nothing is committed beyond."""
    _retry_at: dict[tuple[str, Partition], float] = field(default_factory=dict)
    _active_until: dict[str, float] = field(default_factory=dict)
    _waiting_since: dict[tuple[str, Partition], float] = field(default_factory=dict)

    def set_committed(self, group: str, partition: Partition, committed: CommittedOffset | None) -> None:
        """Without an offset on the source the group keeps the one on the destination."""
        if committed is None:
            self.discard(group, partition)
        else:
            self.committed.setdefault(group, {})[partition] = committed
            self._retry_at.pop((group, partition), None)

    def set_topics(self, topic_ids: Mapping[str, FollowedTopic]) -> frozenset[str]:
        """Returns new ones, and others of the same name, of which earlier commits are dropped."""
        before, self.topic_ids = self.topic_ids, topic_ids
        replaced = {topic for topic, ids in before.items() if topic_ids.get(topic) != ids}
        for group, offsets in list(self.committed.items()):
            for partition in [p for p in offsets if p.topic in replaced]:
                self.discard(group, partition)
        new_topics = frozenset(topic for topic, ids in topic_ids.items() if before.get(topic) != ids)
        if any(partition.rpartition("-")[0] in new_topics for _, partition in self.refusals):
            self.refusals = {k: u for k, u in self.refusals.items() if k[1].rpartition("-")[0] not in new_topics}
        return new_topics

    def discard(self, group: str, partition: Partition) -> None:
        offsets = self.committed.get(group, {})
        offsets.pop(partition, None)
        self._retry_at.pop((group, partition), None)
        if not offsets:
            self.committed.pop(group, None)

    def mark_uncommitted(
        self,
        group: str,
        partition: Partition,
        reason: str,
        committed_offset: Offset | None,
        coverage: GroupCoverage = GroupCoverage.REFUSED,
    ) -> None:
        """Not tried again before the group commits again, or a sync looks at it."""
        self.discard(group, partition)
        self._record(
            UncommittedGroupOffset(
                group=group,
                partition=str(partition),
                reason=reason,
                destination_offset=committed_offset,
                coverage=coverage,
            )
        )

    def mark_absent(self, partitions: Collection[Partition]) -> None:
        for group, offsets in self.committed.items():
            for partition in sorted(offsets.keys() & partitions):
                self._record(
                    UncommittedGroupOffset(group=group, partition=str(partition), reason=UNCOPIED_PARTITION_TEXT)
                )

    def set_waiting(self, reasons: Mapping[tuple[str, Partition], str], now: float) -> None:
        """`reasons`: for each due commit without a response. These commits stay due."""
        self._waiting_since = {key: self._waiting_since.get(key, now) for key in reasons}
        waiting = {(group, str(partition)) for group, partition in reasons}
        ended = {k for k, u in self.refusals.items() if u.coverage is GroupCoverage.WAITING and k not in waiting}
        if ended:
            self.refusals = {key: refusal for key, refusal in self.refusals.items() if key not in ended}
        for (group, partition), since in self._waiting_since.items():
            if now - since > MAX_UNRECORDED_WAIT_S:
                self._record(
                    UncommittedGroupOffset(
                        group=group,
                        partition=str(partition),
                        reason=reasons[group, partition],
                        coverage=GroupCoverage.WAITING,
                    )
                )

    def _record(self, uncommitted: UncommittedGroupOffset) -> None:
        key = uncommitted.group, uncommitted.partition
        if self.refusals.get(key) != uncommitted:
            _log.info("not committed: %s", uncommitted.reason, group=key[0], partition=key[1])
            self.refusals = {**self.refusals, key: uncommitted}

    def clear_uncommitted(self, group: str, partition: Partition) -> None:
        if (key := (group, str(partition))) in self.refusals:
            self.refusals = {
                other_key: uncommitted for other_key, uncommitted in self.refusals.items() if other_key != key
            }

    def mark_active(self, group: str, until: float) -> None:
        self._active_until[group] = until

    def postpone(self, group: str, partition: Partition, until: float) -> None:
        self._retry_at[group, partition] = until

    def list_due(self, logs: Mapping[Partition, LogBounds], now: float) -> dict[str, dict[Partition, CommittedOffset]]:
        self._active_until = {group: until for group, until in self._active_until.items() if until > now}
        ready_by_group = dict[str, dict[Partition, CommittedOffset]]()
        for group, offsets in self.committed.items():
            ready = {
                partition: committed
                for partition, committed in offsets.items()
                if partition in logs
                and (
                    committed.offset <= logs[partition].commit_end or now >= self._retry_at.get((group, partition), 0.0)
                )
            }
            if ready and group not in self._active_until:
                ready_by_group[group] = ready
        return ready_by_group

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset(partition for offsets in self.committed.values() for partition in offsets)


class OffsetCommitRounds:
    """Not thread-safe."""

    def __init__(
        self, destination: ClusterConfig, check_ownership: Callable[[], None], own_offsets: OwnCommittedOffsets
    ) -> None:
        self._resources = ExitStack()
        self._client = self._resources.enter_context(ClusterClient(destination))
        self._commits = self._resources.enter_context(OffsetCommitter(self._client, check_ownership))
        self._batches = GroupOffsetsClient(self._client)
        self._own_offsets = own_offsets
        self._pause_s = AHEAD_RETRY_S

    def commit_due(self, pending: PendingOffsetCommits) -> None:
        """By the same rules as a sync."""
        if not pending.committed:
            pending.set_waiting({}, time.monotonic())
            return
        began = time.monotonic()
        logs = self._list_readable_logs(pending)
        due = pending.list_due(logs, began)
        fetched = self._batches.fetch_attempt({group: sorted(offsets) for group, offsets in due.items()})
        for group, fault in fetched.faults.items():
            if isinstance(fault, Unreachable):
                raise fault
            for partition in due[group]:
                pending.mark_uncommitted(group, partition, str(fault), None)
        to_commit = self._select_commits(pending, due, fetched.offsets, logs)
        results = self._commits.commit_offsets(to_commit) if to_commit else {}
        for group, codes in results.items():
            # Partitions without a code wait for the next round: the coordinator moves, or loads.
            for partition, code in codes.items():
                if code in COMMITTED_RESULTS:
                    source = due[group][partition].offset
                    self._own_offsets.record_offset(group, partition, to_commit[group][partition][0], source)
                    self._finish_or_postpone(pending, group, partition, logs)
                elif code in ACTIVE_GROUP_ERRORS:
                    pending.discard(group, partition)
                    pending.mark_active(group, began + ACTIVE_GROUP_RETRY_S)
                else:
                    on_destination = fetched.offsets[group].committed.get(partition)
                    pending.mark_uncommitted(
                        group, partition, format_refusal(code), on_destination.offset if on_destination else None
                    )
        pending.set_waiting(dict(_find_unanswered(due, fetched, to_commit, results)), time.monotonic())
        # Many groups far ahead of a new copy must not keep the brokers busy.
        self._pause_s = max(AHEAD_RETRY_S, 5 * (time.monotonic() - began))

    def _select_commits(
        self,
        pending: PendingOffsetCommits,
        due: Mapping[str, Mapping[Partition, CommittedOffset]],
        destination_offsets: Mapping[str, CommittedOffsets],
        logs: Mapping[Partition, LogBounds],
    ) -> dict[str, dict[Partition, tuple[Offset, str]]]:
        to_commit = dict[str, dict[Partition, tuple[Offset, str]]]()
        for group, offsets in destination_offsets.items():
            for partition, committed in due[group].items():
                if partition in offsets.unstable:  # an open transaction there commits it: next round
                    continue
                before = offsets.committed.get(partition)
                decision = decide_group_offset(
                    source=committed.offset,
                    log=logs[partition],
                    destination=before.offset if before else None,
                    own_commits=self._own_offsets.find_known(group, partition),
                )
                if isinstance(decision, CommitOffset):
                    to_commit.setdefault(group, {})[partition] = (decision.offset, committed.metadata)
                elif before is not None and not decision.is_equal:
                    pending.mark_uncommitted(group, partition, decision.reason, before.offset)
                elif before is not None:
                    self._own_offsets.record_offset(group, partition, before.offset, committed.offset)
                    self._finish_or_postpone(pending, group, partition, logs)
        return to_commit

    def _finish_or_postpone(
        self,
        pending: PendingOffsetCommits,
        group: str,
        partition: Partition,
        logs: Mapping[Partition, LogBounds],
    ) -> None:
        pending.clear_uncommitted(group, partition)
        if pending.committed[group][partition].offset > logs[partition].commit_end:
            pending.postpone(group, partition, time.monotonic() + self._pause_s)
        else:
            pending.discard(group, partition)

    def _list_readable_logs(self, pending: PendingOffsetCommits) -> dict[Partition, LogBounds]:
        """Each up to its high watermark."""
        wanted = pending.partitions
        topics = self._client.metadata({partition.topic for partition in wanted}).topics
        ids = pending.topic_ids
        copied_topics = {t: view for t, view in topics.items() if t not in ids or view.id == ids[t].destination_id}
        present = {p for p in wanted if p.topic in copied_topics and p.index in copied_topics[p.topic].partitions}
        pending.mark_absent({p for p in wanted - present if p.topic in copied_topics})
        ends = list_known_offsets(self._client, present, OffsetPoint.HIGH_WATERMARK, topics=copied_topics)
        starts = list_known_offsets(self._client, ends, OffsetPoint.START, topics=copied_topics)
        agreed_ends = pending.agreed_ends
        return {p: LogBounds(starts[p], ends[p], agreed_ends.get(p)) for p in starts.keys() & ends.keys()}

    def __enter__(self) -> OffsetCommitRounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()


def _find_unanswered(
    due: Mapping[str, Collection[Partition]],
    fetched: FetchedGroupOffsets,
    to_commit: Mapping[str, Collection[Partition]],
    results: Mapping[str, Collection[Partition]],
) -> Iterator[tuple[tuple[str, Partition], str]]:
    """Due commits whose result is unknown, with the reason."""
    for group, partitions in due.items():
        offsets = fetched.offsets.get(group)
        unfinished = set(to_commit.get(group, ())) - set(results.get(group, ()))
        for partition in partitions if group not in fetched.faults else ():
            if offsets is None or partition in unfinished:
                yield (group, partition), _NO_COORDINATOR_TEXT
            elif partition in offsets.unstable:
                yield (group, partition), OPEN_TRANSACTION_TEXT
