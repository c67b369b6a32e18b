"""How far a mirror is verified, kept in the state topic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.parity_result import NOTHING_COMPARED, ParityRow
from mirror_core.decide.topic_settings import is_compacted
from mirror_core.decide.verification import (
    RECHECK_STEPS,
    CertifiedRead,
    LaterBounds,
    VerificationBasis,
    build_basis,
    confirm_basis,
    note_differences,
    update_verification,
)
from mirror_core.evidence.expectation_suites import TableExpectations
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.control import retry_until_owned, take_control
from mirror_core.model.errors import Indeterminate, LostOwnership, Refused, RemoteFault
from mirror_core.model.mirror import list_copy_ids
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import (
    ALTERED_KIND,
    KnownDifference,
    MirrorVerification,
    ParityRange,
    ParityResult,
    VerifiedEnd,
    format_unreadable_kind,
)
from mirror_core.model.timing import TIMEOUTS, SteadyClock, now_ms
from mirror_core.parity.check import judge_comparison
from mirror_core.parity.comparable_ranges import ParityScope
from mirror_core.parity.parity_plan import ParityPlan, StoredBasis, make_parity_plan
from mirror_core.state.mirror_link import MirrorLink, read_broker_time_ms
from mirror_core.state.state_records import State

_ProofRows: TypeAlias = dict[Partition, tuple[str, VerifiedEnd]]


@dataclass(frozen=True, slots=True)
class ConcurrentChanges:
    """By others since a comparison began; each save repeats its own findings."""

    proved: frozenset[Partition] = frozenset()
    removed: frozenset[Partition] = frozenset()
    found: frozenset[KnownDifference] = frozenset()
    cleared: frozenset[KnownDifference] = frozenset()
    """Equal since, or copied anew."""

    def add_changes(
        self, read_proof: MirrorVerification | None, current_proof: MirrorVerification | None
    ) -> ConcurrentChanges:
        """`read_proof`: as read, or as saved last."""
        before, after = _list_rows(read_proof).keys(), _list_rows(current_proof).keys()
        read_differences, current_differences = _list_differences(read_proof), _list_differences(current_proof)
        return ConcurrentChanges(
            proved=(self.proved | (after - before)) & after,
            removed=self.removed | (before - after),
            found=(self.found & current_differences) | (current_differences - read_differences),
            cleared=self.cleared | (read_differences - current_differences),
        )

    def merge_into(self, own_proof: MirrorVerification, current_proof: MirrorVerification | None) -> MirrorVerification:
        """Where both know a difference, the first place counts."""
        own_rows, current_rows = _list_rows(own_proof), _list_rows(current_proof)
        own_differences = {proved.partition: proved for proved in own_proof.differences if proved not in self.cleared}
        earlier_differences = {
            proved.partition: proved
            for proved in self.found
            if _precedes(proved, own_differences.get(proved.partition))
        }
        rows = {p: row for p, row in own_rows.items() if p not in self.removed | earlier_differences.keys()}
        added = earlier_differences.keys() | (self.proved - own_rows.keys() - own_differences.keys())
        ids = {p.topic: topic_id for p, (topic_id, _) in own_rows.items()}
        rows |= {p: row for p, row in current_rows.items() if p in added and ids.setdefault(p.topic, row[0]) == row[0]}
        differs = sorted({**own_differences, **earlier_differences}.values(), key=lambda proved: proved.partition)
        return MirrorVerification.from_partitions(
            own_proof.mirror, {p: proved for p, (_, proved) in rows.items()}, ids, tuple(differs)
        )


def _precedes(difference: KnownDifference, other: KnownDifference | None) -> bool:
    return other is None or _to_sort_key(difference) < _to_sort_key(other)


def _to_sort_key(difference: KnownDifference) -> tuple[int, int]:
    return difference.offset or 0, -difference.at_ms


def _list_rows(proof: MirrorVerification | None) -> _ProofRows:
    return {p: (topic_id, proved) for p, topic_id, proved in proof.iterate_partitions()} if proof else {}


def _list_differences(proof: MirrorVerification | None) -> frozenset[KnownDifference]:
    return frozenset(proof.differences) if proof else frozenset()


PROOF_SAVE_INTERVAL_S: Final = 30.0
"""Each save takes the control id, which ends a sync under way."""
Compare = Callable[[Sequence[ParityRange], Callable[[ParityResult], None]], ParityResult]


def read_basis(link: MirrorLink, state: State, client: ClusterClient) -> VerificationBasis:
    """What is verified and still holds by the destination's leaders."""
    proof = state.verifications.get(link.mirror.name)
    epochs_by_partition = {p: proved.destination_epoch for p, _, proved in proof.iterate_partitions()} if proof else {}
    answer = _fetch_leader_epochs(
        client, {p.topic for p in state.partitions.get(link.mirror.name, {})}, epochs_by_partition
    )
    return build_basis(proof, answer.ends, answer.epochs, answer.ids)


def _read_basis_of_both(link: MirrorLink, state: State, *, recent: Collection[Partition]) -> VerificationBasis:
    """What either side has lost since is compared again.

    Compacted topics are always in doubt, except `recent` partitions.
    """
    with ClusterClient(link.destination) as destination:
        destination_basis = read_basis(link, state, destination)
        source_epochs = {p: proved.source_epoch for p, proved in destination_basis.valid.items()}
        doubted = source_epochs.keys() - set(recent)
        topics = {p.topic for p in doubted}
        destination_starts = list_known_offsets(
            destination, source_epochs, OffsetPoint.START, within_s=TIMEOUTS.copy_leader_s
        )
        settings = describe_configs(destination, topics)
    try:
        with ClusterClient(link.source) as source:
            answer = _fetch_leader_epochs(source, {p.topic for p in destination_basis.epochs}, source_epochs)
            source_starts = list_known_offsets(
                source, source_epochs, OffsetPoint.START, within_s=TIMEOUTS.copy_leader_s
            )
            source_settings = describe_configs(source, topics)
    except RemoteFault:
        return destination_basis
    both = (*settings.items(), *source_settings.items())
    by_key = {topic for topic, configs in both if is_compacted(configs.effective)}
    cleaned = frozenset(p for p in doubted if p.topic in by_key)
    copied = state.partitions.get(link.mirror.name, {})
    # Epochs prove nothing for another topic of the same name: it begins with the same ones.
    ends = {
        p: offset
        for p, offset in answer.ends.items()
        if p in copied and answer.ids[p.topic] == copied[p].source_topic_id
    }
    return replace(
        confirm_basis(destination_basis, LaterBounds(destination_starts, source_starts, ends, cleaned)),
        source_epochs=answer.epochs,
    )


@dataclass(frozen=True, slots=True)
class _LeaderEpochs:
    ids: dict[str, str]
    epochs: dict[Partition, int]
    """Read before the ends."""
    ends: Mapping[Partition, Offset]


def _fetch_leader_epochs(
    client: ClusterClient, topics: Collection[str], wanted_epochs: Mapping[Partition, int]
) -> _LeaderEpochs:
    epochs, partitions_by_broker = dict[Partition, int](), dict[int, list[Partition]]()
    metadata = client.metadata(topics)
    for name, topic in metadata.topics.items():
        for number, leader in topic.partitions.items():
            if leader.broker >= 0:
                partition = Partition(name, number)
                epochs[partition] = leader.epoch
                if partition in wanted_epochs:
                    partitions_by_broker.setdefault(leader.broker, []).append(partition)
    ends = list_epoch_ends(client, wanted_epochs, partitions_by_broker).offsets if partitions_by_broker else {}
    return _LeaderEpochs({name: topic.id for name, topic in metadata.topics.items()}, epochs, ends)


def compare_unverified(
    link: MirrorLink,
    state: State,
    ranges: Sequence[ParityRange],
    compare: Compare,
    *,
    compare_all: bool,
    save_proof: Callable[[MirrorVerification], None],
    now_ms: Callable[[], int],
    recent: Collection[Partition] = (),
    lookbacks: Sequence[int] = RECHECK_STEPS,
) -> tuple[ParityResult, MirrorVerification, VerificationBasis]:
    """Returns the result, the new proof, and the basis before.

    `now_ms`: by the brokers' clock. Compacted topics are compared as a whole, except `recent` partitions. `lookbacks`:
    offsets to go back where ranges hold no record.
    """
    basis_before = _read_basis_of_both(link, state, recent=recent)
    remaining = tuple(ranges) if compare_all else basis_before.list_remaining(ranges)

    def report_progress(partial_result: ParityResult) -> None:
        compared = [
            wanted
            for wanted in remaining
            if partial_result.compared_records[wanted.partition]
            or partial_result.verified_ends[wanted.partition] > wanted.start
        ]
        save_proof(update_verification(link.mirror.name, basis_before, compared, partial_result, now_ms()))

    result = compare(remaining, report_progress)
    for lookback in () if compare_all else lookbacks:  # a range that is all gaps has records before it
        if result.reasons != (NOTHING_COMPARED,) or remaining == basis_before.list_remaining(ranges, lookback):
            break
        remaining = basis_before.list_remaining(ranges, lookback)
        result = compare(remaining, report_progress)
    return result, update_verification(link.mirror.name, basis_before, remaining, result, now_ms()), basis_before


def add_differences(
    state: State, mirror: MirrorName, result: ParityResult, now_ms: int, certified_ranges: Sequence[ParityRange] = ()
) -> MirrorVerification:
    """`now_ms`: by the brokers' clock."""
    ids = list_copy_ids(state.partitions.get(mirror, {}).values())
    proof = state.verifications.get(mirror) or MirrorVerification(mirror=mirror, topics=())
    certified_read = CertifiedRead(
        certified_ranges, (ALTERED_KIND, format_unreadable_kind(state.mirrors[mirror].destination))
    )
    return note_differences(proof, result, ids, now_ms, certified_read)


def record_differences(
    link: MirrorLink,
    state: State,
    result: ParityResult,
    report: Callable[[str], None],
    certified_ranges: Sequence[ParityRange] = (),
) -> None:
    """Only if nobody holds the mirror. `state`: read before the comparison."""
    name = link.mirror.name

    def list_recorded(now_state: State) -> tuple[KnownDifference, ...]:
        return now_state.verifications[name].differences if name in now_state.verifications else ()

    if add_differences(state, name, result, now_ms(), certified_ranges).differences == list_recorded(state):
        return
    try:
        with take_control(link, MirrorCommand.PROVE, partial(_check_same_copy, link)) as writer:
            updated = add_differences(writer.state, name, result, writer.now_ms(), certified_ranges)
            if updated.differences != list_recorded(writer.state):
                writer.put(updated)
    except (Indeterminate, Refused, LostOwnership, RemoteFault) as error:
        report(f"what differs is not kept: {error}")


def compare_and_record(
    link: MirrorLink,
    state: State,
    ranges: Sequence[ParityRange],
    compare: Compare,
    *,
    compare_all: bool,
    report: Callable[[str], None],
) -> ParityResult:
    """Progress is recorded if nobody holds the mirror."""
    save_or_report = _make_proof_saver(link, state.verifications.get(link.mirror.name), report)
    result, proof, basis_before = compare_unverified(
        link,
        state,
        ranges,
        compare,
        compare_all=compare_all,
        save_proof=limit_rate(save_or_report, PROOF_SAVE_INTERVAL_S),
        now_ms=SteadyClock(read_broker_time_ms(link.destination)).now_ms,
    )
    if not compare_all and (skipped := basis_before.count_verified_records(ranges)):
        report(f"{skipped} records were proved before, and not compared again")
    save_or_report(proof)
    return result


def _make_proof_saver(
    link: MirrorLink, last_proof: MirrorVerification | None, report: Callable[[str], None]
) -> Callable[[MirrorVerification], None]:
    reported, store = list[str](), ProofStore(link, last_proof)

    def save_or_report(proof: MirrorVerification) -> None:
        try:
            store.save_proof(proof)
        except (Refused, LostOwnership, RemoteFault) as error:
            if not reported:
                report(f"the progress of this comparison is not saved: {error}")
            reported.append(str(error))

    return save_or_report


def plan_comparison(
    link: MirrorLink,
    state: State,
    scope: ParityScope,
    *,
    level: int,
    compare_all: bool,
    throttle: int | None = None,
    opened_by_tasks: Path | None = None,
) -> ParityPlan:
    """What `compare_and_record` would compare first, as a file for tasks elsewhere."""
    basis = _read_basis_of_both(link, state, recent=())
    return make_parity_plan(
        link.config,
        link.mirror.name,
        link.mirror.producer_id,
        link.mirror.source_identity,
        link.mirror.destination_identity,
        scope.ranges if compare_all else basis.list_remaining(scope.ranges),
        StoredBasis.from_basis(basis, state.verifications.get(link.mirror.name)),
        planned_ms=read_broker_time_ms(link.destination),
        level=level,
        throttle=throttle,
        left_out={partition: f"it is {status.value}" for partition, status in scope.left_out.items()},
        opened_by_tasks=opened_by_tasks,
    )


def judge_plan(
    link: MirrorLink,
    plan: ParityPlan,
    rows: Sequence[ParityRow],
    output: Path | None,
    demands: TableExpectations | None,
    report: Callable[[str], None],
) -> ParityResult:
    """`rows`: from the tasks. Recorded as compared when the plan was made, if nobody holds the mirror."""
    if plan.mirror != link.mirror.name or plan.producer_id != link.mirror.producer_id:
        raise Refused(
            f"verdict on mirror {link.mirror.name}",
            [f"the plan is of mirror {plan.mirror}, or of an earlier one of this name: make a new plan"],
            reason_code="plan_of_other_mirror",
        )
    result = judge_comparison(
        plan.ranges,
        [*plan.ends, *rows],
        output,
        source=plan.source.name,
        destination=plan.destination.name,
        level=plan.level,
        started=plan.planned_ms / 1000,
        seconds=max(0, read_broker_time_ms(link.destination) - plan.planned_ms) / 1000,
        demands=demands,
    )
    proof = update_verification(link.mirror.name, plan.basis.to_basis(), plan.ranges, result, plan.planned_ms)
    _make_proof_saver(link, plan.basis.proof, report)(proof)
    return result


def limit_rate(
    save: Callable[[MirrorVerification], None], interval_s: float, due_at: float = -math.inf
) -> Callable[[MirrorVerification], None]:
    """First at `due_at` (monotonic clock), then `interval_s` after each save."""

    def save_if_due(proof: MirrorVerification) -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            save(proof)
            due_at = time.monotonic() + interval_s

    return save_if_due


@dataclass(slots=True)
class ProofStore:
    link: MirrorLink
    last_proof: MirrorVerification | None
    changes: ConcurrentChanges = field(default_factory=ConcurrentChanges)

    @retry_until_owned
    def save_proof(self, proof: MirrorVerification) -> None:
        """Reads as owner: nobody else can write now."""
        with take_control(self.link, MirrorCommand.PROVE, partial(_check_same_copy, self.link)) as writer:
            stored_proof = writer.state.verifications.get(self.link.mirror.name)
            changes = self.changes.add_changes(self.last_proof, stored_proof)
            merged_proof = changes.merge_into(proof, stored_proof)
            if stored_proof != merged_proof:
                writer.put(merged_proof)
            self.changes, self.last_proof = changes, merged_proof


def _check_same_copy(link: MirrorLink, state: State) -> Iterator[str]:
    mirror = state.mirrors.get(link.mirror.name)
    if mirror is not None and mirror.producer_id != link.mirror.producer_id:
        yield "applications have come home, or the mirror was made anew, since this comparison began: compare again"
