"""What of an earlier comparison still holds, and what a new one adds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS, UNKNOWN_TIME_TEXT, compute_age_s
from mirror_core.decide.parity_result import NOTHING_COMPARED, NOTHING_HELD
from mirror_core.model.figures import FigureItems, FigureKey, limit_names
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import (
    KnownDifference,
    MirrorVerification,
    ParityFinding,
    ParityRange,
    ParityResult,
    VerifiedEnd,
)
from mirror_core.model.run import StepEvidence
from mirror_core.model.text import format_count

RECHECKED_OFFSETS: Final = 1000
MAX_LISTED_DIFFERENCES: Final = 10
RECHECK_STEPS: Final = (100 * RECHECKED_OFFSETS, 10_000 * RECHECKED_OFFSETS)


@dataclass(frozen=True, slots=True)
class VerificationBasis:
    valid: Mapping[Partition, VerifiedEnd]
    epochs: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    source_epochs: Mapping[Partition, int] = field(default_factory=dict)
    differences: tuple[KnownDifference, ...] = ()
    unconfirmed: Mapping[Partition, VerifiedEnd] = field(default_factory=dict)
    """Recorded, but no broker confirms it now. Compared anew, yet kept until then: with a broker away it may never be.
    """

    def list_remaining(self, ranges: Sequence[ParityRange], recheck: int = 0) -> tuple[ParityRange, ...]:
        """What was not compared yet, and `recheck` offsets of the last comparison.

        Where nothing is new, its end is compared again, so that records are read.
        """
        remaining = [replace(r, start=self._find_start(r)) for r in ranges]
        if not recheck and not any(r.start < r.end for r in remaining):
            recheck = RECHECKED_OFFSETS
        known_indexes = [index for index, r in enumerate(ranges) if r.start < r.end and r.partition in self.valid]
        for index in sorted(known_indexes, key=lambda index: self.valid[ranges[index].partition].at_ms, reverse=True):
            recheck_here = min(recheck, remaining[index].start - ranges[index].start)
            remaining[index], recheck = (
                replace(remaining[index], start=Offset(remaining[index].start - recheck_here)),
                recheck - recheck_here,
            )
        return tuple(remaining)

    def _find_start(self, parity_range: ParityRange) -> Offset:
        verified = self.valid.get(parity_range.partition)
        return (
            parity_range.start
            if verified is None
            else Offset(min(max(parity_range.start, verified.end), parity_range.end))
        )

    def count_verified_records(self, ranges: Sequence[ParityRange]) -> int:
        return sum(self.valid[r.partition].records for r in ranges if r.partition in self.valid)


def build_basis(
    verification: MirrorVerification | None,
    ends: Mapping[Partition, Offset],
    epochs: Mapping[Partition, int],
    topic_ids: Mapping[str, str],
) -> VerificationBasis:
    """`ends`: where the verified leader epochs end on the destination now. A shorter end voids the record; partitions
    without one stay recorded, unconfirmed.
    """
    verified_rows = read_verified(verification, topic_ids)
    valid = {p: entry for p, entry in verified_rows.items() if ends.get(p, -1) >= entry.end}
    unconfirmed = {p: entry for p, entry in verified_rows.items() if p not in ends}
    differences = (
        tuple(entry for entry in verification.differences if topic_ids.get(entry.topic, entry.id) == entry.id)
        if verification
        else ()
    )
    return VerificationBasis(valid, epochs, topic_ids, differences=differences, unconfirmed=unconfirmed)


def find_differences(
    verification: MirrorVerification | None, partitions: Container[Partition]
) -> tuple[KnownDifference, ...]:
    return (
        tuple(difference for difference in verification.differences if difference.partition in partitions)
        if verification
        else ()
    )


def format_differences(differences: Sequence[KnownDifference], now_ms: int) -> str:
    listed = [_format_difference(difference, now_ms) for difference in differences[:MAX_LISTED_DIFFERENCES]]
    more_text = (
        f" and {len(differences) - MAX_LISTED_DIFFERENCES} more" if len(differences) > MAX_LISTED_DIFFERENCES else ""
    )
    return f"{format_count(len(differences), 'partition')}: {'; '.join(listed)}{more_text}" if listed else ""


def _format_difference(difference: KnownDifference, now_ms: int) -> str:
    offset_text = "" if difference.offset is None else f" from offset {difference.offset} on"
    age_ms = now_ms - difference.at_ms
    minutes_text = format_count(round(max(0, age_ms) / 60_000), "minute")
    when_text = UNKNOWN_TIME_TEXT if age_ms < -MAX_CLOCK_SKEW_MS else f"{minutes_text} ago"
    return f"{difference.partition}{offset_text} ({difference.kind}, seen {when_text})"


def read_verified(verification: MirrorVerification | None, ids: Mapping[str, str]) -> dict[Partition, VerifiedEnd]:
    return (
        {p: verified for p, topic_id, verified in verification.iterate_partitions() if ids.get(p.topic) == topic_id}
        if verification
        else {}
    )


def turn_verification(
    reverse: MirrorVerification, mirror: MirrorName, statuses: Mapping[Partition, PartitionStatus]
) -> MirrorVerification:
    """What was compared equal on the way home holds for the way out, too.

    `statuses`: the reverse mirror's, of partitions that both sides still hold as they were compared.
    """
    verified_rows = read_verified(reverse, {p.topic: status.destination_topic_id for p, status in statuses.items()})
    turned = {
        p: row._replace(destination_epoch=row.source_epoch, source_epoch=row.destination_epoch)
        for p, row in verified_rows.items()
        if p in statuses and row.source_epoch >= 0
    }
    ids = {p.topic: status.source_topic_id for p, status in statuses.items()}
    return MirrorVerification.from_partitions(mirror, turned, ids)


@dataclass(frozen=True, slots=True)
class LaterBounds:
    destination_starts: Mapping[Partition, Offset]
    source_starts: Mapping[Partition, Offset]
    epoch_ends: Mapping[Partition, Offset]
    """Where the verified leader epochs end on the source."""
    compacted: frozenset[Partition]
    """In doubt: for a copy that lagged, the source may have removed tombstones, and what they deleted, below the
    verified end.
    """

    def is_still_valid(self, partition: Partition, verified: VerifiedEnd) -> bool | None:
        destination_start, source_start, epoch_end = (
            self.destination_starts.get(partition),
            self.source_starts.get(partition),
            self.epoch_ends.get(partition),
        )
        if (destination_start is not None and source_start is not None and destination_start > source_start) or (
            epoch_end is not None and epoch_end < verified.end
        ):
            return False
        return None if None in (destination_start, source_start, epoch_end) or partition in self.compacted else True


def confirm_basis(basis: VerificationBasis, later: LaterBounds) -> VerificationBasis:
    """What holds by the source too: the destination deleted nothing that the source has, and the source lost nothing
    (KIP-101).
    """

    validity = {p: later.is_still_valid(p, verified) for p, verified in basis.valid.items()}
    valid = {p: verified for p, verified in basis.valid.items() if validity[p]}
    unconfirmed = {p: verified for p, verified in basis.valid.items() if validity[p] is None}
    return replace(basis, valid=valid, unconfirmed={**basis.unconfirmed, **unconfirmed})


def list_proof_figures(
    verification: MirrorVerification | None,
    positions: Mapping[Partition, Offset],
    topic_ids: Mapping[str, str],
    now_ms: int,
) -> FigureItems:
    verified = read_verified(verification, topic_ids)
    ends = {p: min(verified[p].end, end) if p in verified else 0 for p, end in positions.items()}
    yield FigureKey.PROVED_OFFSETS, sum(ends.values())
    yield FigureKey.PROVABLE_OFFSETS, sum(positions.values())
    if times_ms := [verified[p].at_ms for p, end in ends.items() if end]:
        yield FigureKey.NEWEST_PROOF_S, compute_age_s(now_ms, max(times_ms))
        yield FigureKey.OLDEST_PROOF_S, compute_age_s(now_ms, min(times_ms))


def summarize_compared(basis: VerificationBasis, ends: Mapping[Partition, Offset]) -> StepEvidence:
    confirmed_ends = {p: min(basis.valid[p].end, end) if p in basis.valid else 0 for p, end in ends.items()}
    compared_ends = {
        p: min(basis.unconfirmed[p].end, end) if p in basis.unconfirmed else confirmed_ends[p]
        for p, end in ends.items()
    }
    unconfirmed = [f"{p} [0, {compared_ends[p]})" for p in sorted(ends) if p in basis.unconfirmed and compared_ends[p]]
    never_compared = [f"{p} [{compared_ends[p]}, {end})" for p, end in sorted(ends.items()) if compared_ends[p] < end]
    return {
        FigureKey.COMPARED_BEFORE_OFFSETS: sum(confirmed_ends.values()),
        FigureKey.MIRRORED_OFFSETS: sum(ends.values()),
        FigureKey.COMPARED_NOT_CONFIRMED: limit_names(unconfirmed),
        FigureKey.NEVER_COMPARED: limit_names(never_compared),
    }


def update_verification(
    mirror: MirrorName, basis: VerificationBasis, compared: Sequence[ParityRange], result: ParityResult, now_ms: int
) -> MirrorVerification:
    """A range that begins anew replaces its partition's record; an empty one renews its time, if the source was queried
    and nothing contradicts.

    Where the comparison could not read as far as before, the old record stays.
    """
    verified, is_doubted = {**basis.unconfirmed, **basis.valid}, _make_doubt_check(result)
    differences = tuple(_list_differences(basis, compared, result, now_ms))
    first_offsets = {
        compared_range.partition: compared_range.offset or Offset(0)
        for compared_range in differences
        if compared_range not in basis.differences
    }
    for compared_range in compared:
        partition, earlier = compared_range.partition, basis.valid.get(compared_range.partition)
        end, sampled = (
            result.verified_ends.get(partition, compared_range.start),
            result.compared_records.get(partition, 0),
        )
        recorded_range = verified.get(partition)
        is_unread = (
            recorded_range is not None
            and end < recorded_range.end
            and partition in result.undecided_partitions - result.differing_partitions
        )
        if is_unread or partition not in basis.epochs:
            if recorded_range is not None:  # what was found below it is to be read again
                verified[partition] = _limit_to_offset(first_offsets.get(partition), recorded_range)
            continue
        epochs = basis.epochs[partition], basis.source_epochs.get(partition, earlier.source_epoch if earlier else -1)
        if earlier and compared_range.start == earlier.end:
            if end > compared_range.start:
                verified[partition] = VerifiedEnd(end, epochs[0], now_ms, earlier.records + sampled, epochs[1])
            elif (
                compared_range.end == compared_range.start
                and partition in basis.source_epochs
                and not is_doubted(partition)
            ):
                verified[partition] = earlier._replace(at_ms=now_ms)
        elif end > compared_range.start:
            covers_earlier = earlier is not None and end >= earlier.end
            records = max(sampled, earlier.records if earlier and covers_earlier else 0)
            verified[partition] = VerifiedEnd(end, epochs[0], now_ms, records, epochs[1])
        elif (
            earlier is None
            and compared_range.end == compared_range.start
            and partition in basis.source_epochs
            and not is_doubted(partition)
        ):
            verified[partition] = VerifiedEnd(
                compared_range.start, epochs[0], now_ms, 0, epochs[1]
            )  # neither side holds anything of it
        else:
            verified.pop(partition, None)
    return MirrorVerification.from_partitions(mirror, verified, basis.topic_ids, differences)


def _make_doubt_check(result: ParityResult) -> Callable[[Partition], bool]:
    reasons = set(result.reasons) - {NOTHING_HELD}
    if result.findings or (reasons and (not result.undecided_partitions or NOTHING_COMPARED in reasons)):
        return lambda partition: True
    return lambda partition: partition in result.undecided_partitions


@dataclass(frozen=True, slots=True)
class CertifiedRead:
    ranges: Sequence[ParityRange] = ()
    kinds: Collection[str] = ()


def note_differences(
    verification: MirrorVerification,
    result: ParityResult,
    ids: Mapping[str, str],
    now_ms: int,
    certified_read: CertifiedRead = CertifiedRead(),
) -> MirrorVerification:
    certificate_partitions = {
        entry.partition for entry in verification.differences if entry.kind in certified_read.kinds
    }
    basis = VerificationBasis({}, {}, ids, differences=verification.differences)
    new_differences = tuple(
        _list_differences(
            basis,
            [entry for entry in certified_read.ranges if entry.partition in certificate_partitions],
            result,
            now_ms,
        )
    )
    first_offsets = {
        entry.partition: entry.offset or Offset(0) for entry in new_differences if entry not in verification.differences
    }
    other_differences = {
        entry.partition: entry
        for entry in verification.differences
        if certified_read.ranges and entry.partition not in certificate_partitions
    }
    differences = tuple(other_differences.get(entry.partition, entry) for entry in new_differences)
    verified_rows = {
        p: _limit_to_offset(first_offsets.get(p), entry) for p, _, entry in verification.iterate_partitions()
    }
    return MirrorVerification.from_partitions(
        verification.mirror,
        verified_rows,
        {p.topic: topic_id for p, topic_id, _ in verification.iterate_partitions()},
        differences,
    )


def _limit_to_offset(limit: Offset | None, verified: VerifiedEnd) -> VerifiedEnd:
    return verified if limit is None or limit >= verified.end else verified._replace(end=limit, records=0)


def _list_differences(
    basis: VerificationBasis, compared: Sequence[ParityRange], result: ParityResult, now_ms: int
) -> Iterator[KnownDifference]:
    """The first of each partition: found now, or earlier and still there."""
    first_findings = dict[Partition, ParityFinding]()
    for finding in sorted(
        (*result.findings, *result.damage_findings), key=lambda entry: (entry.partition, entry.offset or 0)
    ):
        first_findings.setdefault(finding.partition, finding)
    ranges_by_partition = {entry.partition: entry for entry in compared}
    earlier = {
        entry.partition: entry
        for entry in basis.differences
        if _is_still_different(entry, ranges_by_partition.get(entry.partition), result)
    }
    for partition in sorted(earlier.keys() | first_findings.keys()):
        earlier_difference, new_finding = earlier.get(partition), first_findings.get(partition)
        if new_finding is None or (
            earlier_difference is not None and (earlier_difference.offset or 0) < (new_finding.offset or 0)
        ):
            yield earlier[partition]
        else:
            yield KnownDifference(
                topic=partition.topic,
                index=partition.index,
                id=basis.topic_ids.get(partition.topic, ""),
                offset=new_finding.offset,
                kind=new_finding.kind,
                at_ms=now_ms,
            )


def _is_still_different(difference: KnownDifference, compared_range: ParityRange | None, result: ParityResult) -> bool:
    if difference.offset is not None and difference.offset < result.first_held_offsets.get(difference.partition, 0):
        return False
    if compared_range is None:
        return True
    proven = result.verified_ends.get(difference.partition, compared_range.start)
    if difference.offset is None:
        return not compared_range.end <= proven > compared_range.start
    return not compared_range.start <= difference.offset < proven
