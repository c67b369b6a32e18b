"""What was proved is not read again, and what is in doubt holds no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_readiness import FreshnessKind, list_newest_times
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.decide.parity_result import (
    LEVEL_RECORDS,
    NOTHING_COMPARED,
    NOTHING_HELD,
    ParityLogBounds,
    compare_log_bounds,
    judge_rows,
)
from mirror_core.decide.verification import (
    RECHECKED_OFFSETS,
    LaterBounds,
    VerificationBasis,
    build_basis,
    confirm_basis,
    find_differences,
    format_differences,
    list_proof_figures,
    summarize_compared,
    turn_verification,
    update_verification,
)
from mirror_core.mirrors import partition_recovery
from mirror_core.model.figures import FigureKey, Figures, FigureValue
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import (
    KnownDifference,
    MirrorVerification,
    ParityFinding,
    ParityRange,
    ParityResult,
    ParityVerdict,
    VerifiedEnd,
)
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from tests.support.cluster_names import LINK

MIRROR, A0, A1, B0 = MirrorName("m"), Partition("a", 0), Partition("a", 1), Partition("b", 0)
IDS = {"a": "1" * 32, "b": "2" * 32}
EPOCHS = {A0: 5, A1: 5, B0: 7}
NOW = 5_000


def wanted(partition: Partition, end: int, start: int = 0) -> ParityRange:
    return ParityRange(partition=partition, start=Offset(start), end=Offset(end))


def spans(ranges: tuple[ParityRange, ...]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in ranges]


def found(proven: Mapping[Partition, int], sampled: Mapping[Partition, int]) -> ParityResult:
    ends = {partition: Offset(end) for partition, end in proven.items()}
    return ParityResult(verdict=ParityVerdict.PASSED, records=1, chunks=1, verified_ends=ends, compared_records=sampled)


def holding(**proved: int) -> VerificationBasis:
    rows = {Partition(name[0], int(name[1])): VerifiedEnd(end, 4, 1_000, end) for name, end in proved.items()}
    return VerificationBasis(rows, EPOCHS, IDS)


def rows(proof: MirrorVerification) -> dict[Partition, VerifiedEnd]:
    return {partition: one for partition, _, one in proof.iterate_partitions()}


def test_what_was_compared_on_the_way_home_holds_for_the_way_out() -> None:
    statuses = {
        p: PartitionStatus(
            partition=p,
            state=PartitionState.STOPPED,
            source_topic_id=f"west-{p.topic}",
            destination_topic_id=IDS[p.topic],
            lmo=Offset(50),
        )
        for p in (A0, A1, B0)
    }
    known = {A0: VerifiedEnd(50, 4, 1_000, 48, 9), A1: VerifiedEnd(40, 5, 1_000, 40), B0: VerifiedEnd(9, 6, 900, 9, 2)}
    back = MirrorVerification.from_partitions(MirrorName("m-back"), known, {**IDS, "b": "3" * 32})
    turned = turn_verification(back, MIRROR, statuses)
    assert (turned.mirror, rows(turned)) == (MIRROR, {A0: VerifiedEnd(50, 9, 1_000, 48, 4)}), (
        "the source's epoch of a-1 is not known, and b is another topic by now"
    )
    assert [topic_id for _, topic_id, _ in turned.iterate_partitions()] == ["west-a"]
    assert not rows(turn_verification(back, MIRROR, {A1: statuses[A1]}))


def test_only_what_is_new_is_compared() -> None:
    ranges = [wanted(A0, 100), wanted(A1, 100, start=60), wanted(B0, 10)]
    assert spans(holding(a0=40, a1=50).list_remaining(ranges)) == [(40, 100), (60, 100), (0, 10)]
    assert spans(holding(a0=140).list_remaining([wanted(A0, 100), wanted(B0, 5)])) == [(100, 100), (0, 5)]


def test_where_nothing_is_new_the_newest_end_is_compared_again() -> None:
    known = VerificationBasis({A0: VerifiedEnd(5_000, 4, 1, 9), B0: VerifiedEnd(70, 4, 2, 9)}, EPOCHS, IDS)
    assert spans(known.list_remaining([wanted(A0, 5_000), wanted(B0, 70)])) == [(4_070, 5_000), (0, 70)], (
        "1,000 offsets in all"
    )
    assert spans(holding(a0=5_000).list_remaining([wanted(A0, 5_000, start=20)])) == [
        (5_000 - RECHECKED_OFFSETS, 5_000)
    ]
    assert spans(holding(a0=0).list_remaining([wanted(A0, 0)])) == [(0, 0)]
    assert spans(holding().list_remaining([wanted(A0, 0)])) == [(0, 0)]


def test_where_that_holds_no_record_more_is_compared_again() -> None:
    known = VerificationBasis({A0: VerifiedEnd(5_000, 4, 1, 9), B0: VerifiedEnd(70, 4, 2, 9)}, EPOCHS, IDS)
    ranges = [wanted(A0, 5_000, start=20), wanted(A1, 0), wanted(B0, 72)]
    assert spans(known.list_remaining(ranges)) == [(5_000, 5_000), (0, 0), (70, 72)], "what is new may be gaps only"
    assert spans(known.list_remaining(ranges, 1_000)) == [(4_070, 5_000), (0, 0), (0, 72)]
    assert spans(known.list_remaining(ranges, 100_000)) == [(20, 5_000), (0, 0), (0, 72)]
    assert spans(holding().list_remaining(ranges, 100_000)) == [(20, 5_000), (0, 0), (0, 72)]


def test_a_proof_goes_on_where_it_ended() -> None:
    proof = update_verification(
        MIRROR, holding(a0=40, b0=9), [wanted(A0, 100, start=40)], found({A0: 90}, {A0: 48}), NOW
    )
    assert rows(proof) == {A0: VerifiedEnd(90, 5, NOW, 88), B0: VerifiedEnd(9, 4, 1_000, 9)}


def test_what_showed_nothing_new_leaves_the_proof_as_it_was() -> None:
    known = holding(a0=40)
    assert rows(update_verification(MIRROR, known, [wanted(A0, 40, start=40)], found({A0: 40}, {}), NOW)) == known.valid
    again = update_verification(MIRROR, known, [wanted(A0, 40, start=10)], found({A0: 40}, {A0: 30}), NOW)
    assert rows(again) == {A0: VerifiedEnd(40, 5, NOW, 40)}
    further = update_verification(MIRROR, known, [wanted(A0, 42, start=10)], found({A0: 42}, {A0: 30}), NOW)
    assert rows(further) == {A0: VerifiedEnd(42, 5, NOW, 40)}


def test_where_nothing_is_new_the_proof_is_as_young_as_the_comparison_that_found_so() -> None:
    known = replace(holding(a0=40, a1=40, b0=9), source_epochs={A0: 8, A1: 8})
    compared = [wanted(A0, 40, start=40), wanted(A1, 60, start=40), wanted(B0, 9, start=9)]
    well = found({A0: 40, A1: 40, B0: 9}, {})
    at_ms = {
        partition: one.at_ms for partition, one in rows(update_verification(MIRROR, known, compared, well, NOW)).items()
    }
    assert at_ms == {A0: NOW, A1: 1_000, B0: 1_000}, "A1 was not compared to its end, and nobody asked B0's source"
    difference = ParityFinding(partition=A1, offset=Offset(40), kind="value", detail="")
    gone = replace(well, reasons=("A0: broker gone",))
    nothing = replace(well, reasons=(NOTHING_COMPARED, "B0: broker gone"), undecided_partitions=frozenset({B0}))
    for other in (
        gone,
        replace(gone, undecided_partitions=frozenset({A0})),
        nothing,
        replace(well, findings=(difference,)),
    ):
        assert rows(update_verification(MIRROR, known, compared, other, NOW))[A0].at_ms == 1_000
    of_another = replace(well, reasons=("B0: broker gone",), undecided_partitions=frozenset({B0}))
    assert rows(update_verification(MIRROR, known, compared, of_another, NOW))[A0].at_ms == NOW


def test_a_proof_is_as_old_as_that_of_the_partition_that_waits_the_longest() -> None:
    def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
        there = IDS[partition.topic]
        return PartitionStatus(partition=partition, state=state, source_topic_id="s", destination_topic_id=there)

    def since(statuses: Mapping[Partition, PartitionStatus]) -> int | None:
        return dict(list_newest_times(MIRROR, None, proof, iter([]), statuses)).get(FreshnessKind.VERIFICATION)

    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(40, 5, 900, 40), A1: VerifiedEnd(4, 5, 30, 4), B0: VerifiedEnd(9, 7, 700, 9)}, IDS
    )
    every = {partition: status(partition) for partition in (A0, A1, B0)}
    assert since(every) == 30
    assert since({**every, A1: status(A1, PartitionState.FAILED)}) == 700, "nobody compares it, and that is said"
    assert since({**every, B0: replace(status(B0), destination_topic_id="3" * 32)}) == 30
    assert since({A0: every[A0]}) == 900, "what is not mirrored any more does not count"
    assert since({}) is None


def test_a_comparison_from_the_start_replaces_what_was_known() -> None:
    known = holding(a0=40, a1=40)
    proof = update_verification(MIRROR, known, [wanted(A0, 60), wanted(A1, 60)], found({A0: 20, A1: 0}, {A0: 20}), NOW)
    assert rows(proof) == {A0: VerifiedEnd(20, 5, NOW, 20)}, "there is a difference now below what was proved"


def test_an_empty_partition_of_which_both_sides_have_told_was_compared() -> None:
    known = replace(holding(), source_epochs={A0: 3})
    empty = [wanted(A0, 7, start=7), wanted(A1, 0)]
    proof = update_verification(MIRROR, known, empty, found({}, {}), NOW)
    assert rows(proof) == {A0: VerifiedEnd(7, EPOCHS[A0], NOW, 0, 3)}, "of A1 the source was not asked"
    doubtful = replace(found({}, {}), undecided_partitions=frozenset({A0}))
    assert not rows(update_verification(MIRROR, known, empty, doubtful, NOW))
    again = replace(known, valid=rows(proof))
    assert (
        rows(update_verification(MIRROR, again, [wanted(A0, 7, start=7)], found({}, {}), NOW + 5))[A0].at_ms == NOW + 5
    )
    grown = update_verification(MIRROR, again, [wanted(A0, 9, start=7)], found({A0: 9}, {A0: 2}), NOW + 5)
    assert rows(grown) == {A0: VerifiedEnd(9, EPOCHS[A0], NOW + 5, 2, 3)}


@pytest.mark.parametrize(("kept_here", "why"), [(0, NOTHING_HELD), (1, NOTHING_COMPARED)])
def test_a_mirror_that_holds_nothing_was_compared_though_nothing_passed(kept_here: int, why: str) -> None:
    """If both logs begin and end alike. It would be called never compared for as long as nobody writes."""
    known = replace(holding(), source_epochs={A0: 3, B0: 3})
    empty = [wanted(A0, 7, start=7), wanted(B0, 3, start=3)]
    logs = (
        (ParityLogBounds(start=r.start, end=r.end), ParityLogBounds(start=Offset(r.start - kept_here), end=r.end))
        for r in empty
    )
    ends = [compare_log_bounds(one, *both)[0] for one, both in zip(empty, logs, strict=True)]
    result = judge_rows(empty, [row for of_one in ends for row in of_one], LEVEL_RECORDS)
    assert (result.verdict, result.reasons) == (ParityVerdict.INDETERMINATE, (why,))
    proved = rows(update_verification(MIRROR, known, empty, result, NOW))
    seen = {A0: VerifiedEnd(7, EPOCHS[A0], NOW, 0, 3), B0: VerifiedEnd(3, EPOCHS[B0], NOW, 0, 3)}
    assert proved == (seen if why is NOTHING_HELD else {})


def test_a_partition_without_a_leader_proves_nothing() -> None:
    known = VerificationBasis({}, {A0: 5}, IDS)
    proof = update_verification(
        MIRROR, known, [wanted(A0, 10), wanted(A1, 10)], found({A0: 10, A1: 10}, {A0: 1, A1: 1}), NOW
    )
    assert set(rows(proof)) == {A0}


def test_what_was_cut_or_made_anew_since_holds_no_more() -> None:
    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(40, 5, 1, 40), A1: VerifiedEnd(40, 5, 1, 40), B0: VerifiedEnd(9, 7, 1, 9)}, IDS
    )
    ends = {A0: Offset(40), A1: Offset(39), B0: Offset(100)}
    assert set(build_basis(proof, ends, EPOCHS, IDS).valid) == {A0, B0}
    assert set(build_basis(proof, ends, EPOCHS, {**IDS, "a": "3" * 32}).valid) == {B0}
    assert set(build_basis(proof, {B0: Offset(100)}, EPOCHS, IDS).valid) == {B0}, "nobody says where A0's epoch ends"
    assert not build_basis(None, ends, EPOCHS, IDS).valid


def test_how_much_is_proved_is_said_with_its_age() -> None:
    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(40, 5, 60_000, 40), B0: VerifiedEnd(9, 7, 600_000, 9)}, IDS
    )
    ends = {A0: Offset(50), A1: Offset(10), B0: Offset(5)}

    def proved(now_ms: int) -> tuple[FigureValue, ...]:
        return tuple(dict(list_proof_figures(proof, ends, IDS, now_ms)).values())

    assert proved(660_000) == (45, 65, 60.0, 600.0)
    assert proved(500_000) == (45, 65, None, 440.0), "clocks differ"
    assert proved(599_500) == (45, 65, 0.0, 539.5)
    none: Figures = {FigureKey.PROVED_OFFSETS: 0, FigureKey.PROVABLE_OFFSETS: 65}
    assert dict(list_proof_figures(proof, ends, {}, 660_000)) == none
    assert dict(list_proof_figures(None, ends, IDS, 660_000)) == none


def test_a_partition_that_had_failed_is_proved_anew() -> None:
    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(40, 5, 1, 40), A1: VerifiedEnd(4, 5, 1, 4), B0: VerifiedEnd(9, 7, 1, 9)}, IDS
    )
    assert set(rows(proof.forget_partitions({A0, B0}))) == {A1}
    assert proof.forget_partitions({A0, A1, B0}).topics == ()


@pytest.mark.parametrize(
    ("action", "still"), [(RecoveryAction.RETRY, True), (RecoveryAction.RECOPY, False), (RecoveryAction.ACCEPT, False)]
)
def test_what_differs_in_it_stays_known_if_its_copy_stays(
    monkeypatch: pytest.MonkeyPatch, action: RecoveryAction, still: bool
) -> None:
    held = SimpleNamespace(wait_for_old_writers=lambda report: None, renew=lambda: None)
    for name in ("acquire_lease", "_refuse_if_grown", "_delete_shown_topic"):
        monkeypatch.setattr(partition_recovery, name, lambda *_: None)
    monkeypatch.setattr(partition_recovery, "release_at_end", lambda _: nullcontext(held))
    monkeypatch.setattr(partition_recovery, "ClusterClient", lambda _: nullcontext())
    failed = PartitionStatus(
        partition=A0, state=PartitionState.FAILED, source_topic_id="s", destination_topic_id=IDS["a"]
    )
    one, other = (
        KnownDifference(topic=t, index=0, id=IDS[t], offset=Offset(7), kind="key", at_ms=7) for t in ("a", "b")
    )
    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(7, 5, 1, 7), B0: VerifiedEnd(7, 7, 1, 7)}, IDS, (one, other)
    )
    state = State()
    state.put(PartitionRecord(MIRROR, failed))
    state.put(proof)
    agreed = SimpleNamespace(partition=A0, action=action, status=failed)
    plan = SimpleNamespace(actionable=[agreed], costs=[SimpleNamespace(topic="a")], lost=())
    writer: Any = SimpleNamespace(state=state, put=state_put(state))
    partition_recovery._apply_recovery(LINK, writer, cast("Any", plan), print)
    assert set(rows(state.verifications[MIRROR])) == {B0}
    assert state.verifications[MIRROR].differences == ((one, other) if still else (other,))


def state_put(state: State) -> Callable[..., None]:
    def put(*records: StateRecord | Tombstone) -> None:
        for record in records:
            state.put(record)

    return put


def test_what_either_side_has_lost_since_holds_no_more() -> None:
    known = holding(a0=40, a1=40, b0=9)
    nothing = dict.fromkeys(known.valid, Offset(0))
    far = dict.fromkeys(known.valid, Offset(100))
    well = LaterBounds(destination_starts=nothing, source_starts=nothing, epoch_ends=far, compacted=frozenset())
    assert confirm_basis(known, well) == known
    assert set(confirm_basis(known, replace(well, destination_starts={**nothing, A0: Offset(1)})).valid) == {A1, B0}
    assert set(confirm_basis(known, replace(well, source_starts=far)).valid) == {A0, A1, B0}, (
        "the source deletes as it likes"
    )
    assert set(confirm_basis(known, replace(well, source_starts={A0: Offset(0)})).valid) == {A0}, (
        "who says nothing is in doubt"
    )
    assert set(confirm_basis(known, replace(well, epoch_ends={**far, A0: Offset(39)})).valid) == {A1, B0}
    assert set(confirm_basis(known, replace(well, epoch_ends={A0: Offset(40)})).valid) == {A0}
    assert set(confirm_basis(known, replace(well, compacted=frozenset({A0}))).valid) == {A1, B0}


def test_what_nobody_speaks_of_now_stays_recorded_as_it_was() -> None:
    """A broker is away: what was compared with it may never be compared again. Whoever uses it asks anew."""
    proof = MirrorVerification.from_partitions(
        MIRROR, {A0: VerifiedEnd(40, 4, 1, 40), A1: VerifiedEnd(40, 4, 1, 40), B0: VerifiedEnd(9, 4, 1, 9)}, IDS
    )
    known = build_basis(proof, {A0: Offset(40), B0: Offset(8)}, EPOCHS, IDS)
    assert (set(known.valid), set(known.unconfirmed)) == ({A0}, {A1}), "B0's leader says that it was cut"
    starts, ends = {A0: Offset(0)}, {A0: Offset(40)}
    for silent in (LaterBounds({}, starts, ends, frozenset()), LaterBounds(starts, {}, ends, frozenset())):
        assert set(confirm_basis(known, silent).unconfirmed) == {A0, A1}
    for cut in (
        LaterBounds({A0: Offset(1)}, starts, ends, frozenset()),
        LaterBounds(starts, starts, {A0: Offset(39)}, frozenset()),
    ):
        assert (set(confirm_basis(known, cut).valid), set(confirm_basis(known, cut).unconfirmed)) == (set(), {A1})
    in_question = confirm_basis(known, LaterBounds(starts, starts, ends, frozenset({A0})))
    assert set(in_question.unconfirmed) == {A0, A1}, (
        "cleaned by key: to be compared again, and proved until that is done"
    )

    compared = [wanted(A0, 50, start=40), wanted(A1, 0)]
    doubt = replace(
        found({A0: 50, A1: 0}, {A0: 10}), verdict=ParityVerdict.INDETERMINATE, undecided_partitions=frozenset({A1})
    )
    after = update_verification(MIRROR, known, compared, doubt, NOW)
    assert rows(after) == {A0: VerifiedEnd(50, 5, NOW, 50), A1: VerifiedEnd(40, 4, 1, 40)}
    assert rows(update_verification(MIRROR, replace(known, epochs={A0: 5}), compared, doubt, NOW)) == rows(after), (
        "no leader"
    )
    assert rows(update_verification(MIRROR, known, compared[:1], doubt, NOW)) == rows(after), "or out of scope"

    compared = [wanted(A1, 60)]
    partly = replace(found({A1: 20}, {A1: 20}), undecided_partitions=frozenset({A1}))
    assert rows(update_verification(MIRROR, known, compared, partly, NOW))[A1] == VerifiedEnd(40, 4, 1, 40)
    for end, other in ((20, replace(partly, differing_partitions=frozenset({A1}))), (60, found({A1: 60}, {A1: 60}))):
        assert rows(update_verification(MIRROR, known, compared, other, NOW))[A1].end == end, "it was seen"
    [whole] = rows(update_verification(MIRROR, holding(a1=40), compared, partly, NOW)).values()
    assert whole.end == 40, "compared from its beginning, until a broker died"


def test_a_difference_stays_known_while_nobody_shows_its_topic() -> None:
    known = KnownDifference(topic="a", index=0, id=IDS["a"], offset=Offset(12), kind="key", at_ms=7)
    proof = MirrorVerification(mirror=MIRROR, topics=(), differences=(known,))
    assert build_basis(proof, {}, EPOCHS, {"b": IDS["b"]}).differences == (known,)


def test_a_proof_knows_the_sources_epoch_from_before_it_was_read() -> None:
    known = replace(holding(a0=40, b0=9), source_epochs={A0: 8, A1: 9})
    compared = [wanted(A0, 100, start=40), wanted(A1, 10), wanted(B0, 20, start=9)]
    ends = {A0: 100, A1: 10, B0: 20}
    proof = rows(update_verification(MIRROR, known, compared, found(ends, ends), NOW))
    assert {partition: one.source_epoch for partition, one in proof.items()} == {A0: 8, A1: 9, B0: -1}
    silent = replace(known, valid={A0: VerifiedEnd(40, 4, 1, 40, 7)}, source_epochs={})
    [one] = rows(update_verification(MIRROR, silent, compared[:1], found(ends, ends), NOW)).values()
    assert one.source_epoch == 7, "what it may have lost since is not forgotten, because it said nothing this time"


# -- what is known to differ -------------------------------------------------------------------------------------------


def difference(partition: Partition, offset: int | None, kind: str = "value") -> ParityFinding:
    return ParityFinding(partition=partition, offset=None if offset is None else Offset(offset), kind=kind, detail="")


def differs(proof: MirrorVerification) -> list[tuple[Partition, int | None, int]]:
    return [(one.partition, one.offset, one.at_ms) for one in proof.differences]


def test_the_first_place_of_each_partition_that_differs_is_known() -> None:
    result = replace(
        found({A0: 12, A1: 100}, {A0: 12, A1: 100}),
        verdict=ParityVerdict.FAILED,
        findings=(difference(A0, 40), difference(A0, 12), difference(B0, None, "log end")),
    )
    proof = update_verification(MIRROR, holding(), [wanted(A0, 100), wanted(A1, 100), wanted(B0, 9)], result, NOW)
    assert differs(proof) == [(A0, 12, NOW), (B0, None, NOW)]
    assert build_basis(proof, {}, EPOCHS, IDS).differences == proof.differences
    assert build_basis(proof, {}, EPOCHS, {**IDS, "a": "3" * 32}).differences == proof.differences[1:], (
        "another topic by now"
    )
    assert differs(proof.forget_partitions({A0})) == [(B0, None, NOW)]
    assert proof.forget_partitions({A0, B0}).differences == ()


def test_a_place_found_where_nobody_led_when_it_was_asked_what_holds_is_read_again() -> None:
    """Recorded above that place, the proof would never let anybody read it again: it would stay known for ever."""
    proof = MirrorVerification.from_partitions(MIRROR, {A1: VerifiedEnd(4_000, 4, 1, 40)}, IDS)
    known = replace(build_basis(proof, {}, EPOCHS, IDS), epochs={})
    assert known.unconfirmed.keys() == {A1}
    for place, stays in ((10, VerifiedEnd(10, 4, 1, 0)), (5_000, VerifiedEnd(4_000, 4, 1, 40))):
        bad = replace(found({A1: 0}, {}), undecided_partitions=frozenset({A1}), differing_partitions=frozenset({A1}))
        bad = replace(
            bad, verdict=ParityVerdict.INDETERMINATE, damage_findings=(difference(A1, place, "unreadable on east"),)
        )
        assert rows(update_verification(MIRROR, known, [wanted(A1, 6_000)], bad, NOW)) == {A1: stays}


def test_what_cannot_be_read_is_known_like_a_difference() -> None:
    result = replace(
        found({A0: 0, A1: 0}, {}),
        verdict=ParityVerdict.INDETERMINATE,
        reasons=("damaged",),
        undecided_partitions=frozenset({A0, A1}),
        findings=(difference(A1, 7),),
        damage_findings=(difference(A0, 12, "unreadable on west"), difference(A1, 5, "unreadable on east")),
    )
    compared = [wanted(A0, 100), wanted(A1, 100)]
    proof = update_verification(MIRROR, holding(), compared, result, NOW)
    assert [(*one, known.kind) for one, known in zip(differs(proof), proof.differences, strict=True)] == [
        (A0, 12, NOW, "unreadable on west"),
        (A1, 5, NOW, "unreadable on east"),
    ]
    unread = replace(result, reasons=("no leader",), findings=(), damage_findings=())
    later = replace(holding(), differences=proof.differences)
    assert update_verification(MIRROR, later, compared, unread, NOW + 1).differences == proof.differences, (
        "nobody has read it since"
    )
    assert update_verification(MIRROR, later, compared, found({A0: 100, A1: 100}, {}), NOW + 1).differences == ()


@pytest.mark.parametrize(
    ("compared", "proven", "still"),
    [
        (wanted(A0, 100, start=12), 100, False),
        (wanted(A0, 100, start=12), 13, False),
        (wanted(A0, 100, start=12), 12, True),
        (wanted(A0, 100, start=13), 100, True),
        (wanted(A1, 100), 100, True),
    ],
)
def test_a_difference_is_known_until_that_place_is_seen_to_be_equal(
    compared: ParityRange, proven: int, still: bool
) -> None:
    before = KnownDifference(topic="a", index=0, id="x", offset=Offset(12), kind="key", at_ms=7)
    known = replace(holding(a0=12), differences=(before,))
    proof = update_verification(MIRROR, known, [compared], found({compared.partition: proven}, {}), NOW)
    assert differs(proof) == ([(A0, 12, 7)] if still else [])


@pytest.mark.parametrize(("source", "destination", "still"), [(13, 13, False), (13, 12, True), (12, 40, True)])
def test_a_difference_is_known_until_neither_side_holds_that_place(source: int, destination: int, still: bool) -> None:
    """Retention has removed it on the source first; until the destination follows, a failover would serve it."""
    asked = wanted(A0, 100, start=40)
    ends, there = (ParityLogBounds(start=Offset(start), end=Offset(100)) for start in (destination, source))
    looked, _ = compare_log_bounds(asked, there, ends)
    result = replace(judge_rows([asked], looked, LEVEL_RECORDS), verified_ends={A0: Offset(100)})
    for kind in ("key", "log start"):
        before = KnownDifference(topic="a", index=0, id="x", offset=Offset(12), kind=kind, at_ms=7)
        proof = update_verification(MIRROR, replace(holding(a0=40), differences=(before,)), [asked], result, NOW)
        assert differs(proof) == ([(A0, 12, 7)] if still else [])


@pytest.mark.parametrize(("proven", "still"), [(100, False), (99, True)])
def test_one_of_which_nobody_said_where_it_is_goes_when_all_of_its_partition_is_equal(proven: int, still: bool) -> None:
    known = replace(
        holding(), differences=(KnownDifference(topic="a", index=0, id="x", offset=None, kind="log end", at_ms=7),)
    )
    proof = update_verification(MIRROR, known, [wanted(A0, 100)], found({A0: proven}, {}), NOW)
    assert bool(proof.differences) is still


def test_differences_are_said_with_their_age() -> None:
    some = [KnownDifference(topic="a", index=n, id="x", offset=Offset(n), kind="value", at_ms=0) for n in range(12)]
    said = format_differences(some, 120_000)
    assert said.startswith("12 partitions: a-0 from offset 0 on (value, seen 2 minutes ago); a-1 ")
    assert said.endswith(" and 2 more")
    assert "unknown" in format_differences(some[:1], -600_000)
    assert format_differences([], 1) == ""
    assert find_differences(
        MirrorVerification(mirror=MIRROR, topics=(), differences=tuple(some)), {A1: "mirrored"}
    ) == (some[1],)


def test_what_was_compared_and_nobody_leads_now_is_not_called_never_compared() -> None:
    known = VerificationBasis({A0: VerifiedEnd(90, 4, 1, 9)}, EPOCHS, IDS, unconfirmed={B0: VerifiedEnd(70, 4, 2, 9)})
    assert summarize_compared(known, {A0: Offset(100), B0: Offset(80)}) == {
        FigureKey.COMPARED_BEFORE_OFFSETS: 90,
        FigureKey.MIRRORED_OFFSETS: 180,
        FigureKey.COMPARED_NOT_CONFIRMED: (f"{B0} [0, 70)",),
        FigureKey.NEVER_COMPARED: (f"{A0} [90, 100)", f"{B0} [70, 80)"),
    }
    assert summarize_compared(known, {A0: Offset(50)}) == {
        FigureKey.COMPARED_BEFORE_OFFSETS: 50,
        FigureKey.MIRRORED_OFFSETS: 50,
        FigureKey.COMPARED_NOT_CONFIRMED: (),
        FigureKey.NEVER_COMPARED: (),
    }
