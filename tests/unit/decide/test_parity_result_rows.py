"""Of a long comparison little is kept, and all is told that was told before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide import parity_result
from mirror_core.decide.parity_result import (
    LEVEL_RECORDS,
    ParityRow,
    ParityRowBuffer,
    choose_worst_rows,
    fill_missing_rows,
    judge_rows,
    merge_equal_rows,
    plan_rounds,
)
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.parity import check
from mirror_core.parity.compare import CompareTask
from tests.support.parity_rows import SIZE, chunk, ends, finding, partition, wanted

EAST, WEST = ClusterName("east"), ClusterName("west")
FAR = Offset(10**13)


@st.composite
def drawn(draw: st.DrawFn, number: int, at: int) -> ParityRow | None:
    """What came of one chunk; None: its task was lost."""
    what = draw(st.sampled_from(["equal"] * 6 + ["empty", "records", "unread", "digest", "differs", "lost"]))
    offsets = sorted(draw(st.sets(st.integers(at * SIZE, (at + 1) * SIZE - 1), min_size=1)))
    more: dict[str, dict[str, Any]] = {
        "empty": {"src_count": 0, "dst_count": 0},
        "records": {"level": LEVEL_RECORDS},
        "unread": {
            "error": "no leader, and damage",
            "damaged": (finding(number, offsets[0]),),
            "src_count": None,
            "dst_count": None,
            "src_digest": "",
            "dst_digest": "",
        },
        "digest": {"dst_digest": "other"},
        "differs": {
            "level": LEVEL_RECORDS,
            "dst_digest": "other",
            "findings": tuple(finding(number, offset) for offset in offsets),
            "differing": len(offsets),
        },
    }
    return None if what == "lost" else chunk(number, at, **more.get(what, {}))


@given(data=st.data(), widths=st.lists(st.integers(0, 12), min_size=1, max_size=3), kept=st.integers(1, 12))
def test_fewer_rows_say_the_same_whenever_they_are_made_fewer(
    data: st.DataObject, widths: list[int], kept: int
) -> None:
    asked = [wanted(number, chunks * SIZE) for number, chunks in enumerate(widths)]
    found = [row for number, chunks in enumerate(widths) for row in ends(number, chunks)]
    many = [
        row
        for at in range(max(widths))
        for number, chunks in enumerate(widths)
        if at < chunks and (row := data.draw(drawn(number, at))) is not None
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity_result, "MAX_FINDINGS", kept)
        patch.setattr(parity_result, "MAX_FINDINGS", kept)

        def told(rows: list[ParityRow]) -> ParityResult:
            return judge_rows(asked, fill_missing_rows(asked, rows, LEVEL_RECORDS), LEVEL_RECORDS)

        before = told([*found, *many])
        several = merge_equal_rows([*found, *many])
        cut = data.draw(st.integers(0, len(many)))
        twice = merge_equal_rows([*merge_equal_rows([*found, *many[:cut]]), *many[cut:]])
        assert told(several) == before
        assert told(twice) == before
    for rows in (several, twice):
        assert sum(row.chunks for row in rows) == len(found) + len(many)
        assert sum(row.differing for row in rows) == sum(row.differing for row in many)
        differing = [row for row in rows if row.chunk >= 0 and not row.equal]
        assert [(row.partition, row.start, row.end) for row in differing] == sorted(
            (row.partition, row.start, row.end) for row in many if not row.equal
        ), "each that differs stays a row"
    assert sorted(several, key=lambda row: (row.partition, row.chunk)) == several
    assert several == twice or any(row.findings for row in many), "in whatever order"


def test_what_agrees_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_result, "MAX_BUFFERED_ROWS", 100)
    rows, most = ParityRowBuffer(ends(0, 10_000)), 0
    for at in range(10_000):
        rows.add(
            [chunk(0, at)]
            if at != 5_000
            else [chunk(0, at, level=LEVEL_RECORDS, differing=1, findings=(finding(0, at),))]
        )
        most = max(most, len(rows.rows))
    assert most < 110
    assert len([row for row in rows.rows if row.differing]) == 1
    assert sum(row.chunks for row in rows.rows) == 10_001


def test_nor_do_findings_when_everything_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_result, "MAX_BUFFERED_ROWS", 100)
    monkeypatch.setattr(parity_result, "MAX_FINDINGS", 20)
    rows = ParityRowBuffer()
    for at in range(200):
        found = tuple(finding(0, at * SIZE + n) for n in range(SIZE))
        rows.add([chunk(0, at, level=LEVEL_RECORDS, dst_digest="other", differing=SIZE, findings=found)])
    assert sum(len(row.findings) for row in rows.rows) < 200 + 20 + 100
    assert sum(row.differing for row in rows.rows) == 200 * SIZE


def test_a_few_rows_stay_as_they_are() -> None:
    found = [*ends(0, 50), *(chunk(0, at) for at in range(50))]
    rows = ParityRowBuffer(found[:1])
    rows.add(found[1:])
    assert rows.rows == found


def test_the_first_round_of_a_past_without_end_is_there_at_once() -> None:
    first = next(plan_rounds([wanted(0, FAR), wanted(1, FAR)], 4, SIZE))
    assert [[(piece.partition.index, piece.start) for piece in mine] for mine in first] == [
        [(0, 0)],
        [(1, 0)],
        [(0, 10)],
        [(1, 10)],
    ]


def test_a_comparison_tells_of_each_task_as_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ranges, told = [wanted(0, 6 * SIZE)], list[ParityResult]()
    monkeypatch.setattr(check, "load_config", lambda path: None)
    monkeypatch.setattr(check, "compare_ends", lambda *asked: (ends(0, 6), ranges))
    for pause in ("PROGRESS_INTERVAL_S", "PROGRESS_COST_FACTOR"):
        monkeypatch.setattr(check, pause, 0)
    monkeypatch.setattr(check, "PARTITIONS_PER_S", 1e9)

    def run(tasks: list[CompareTask]) -> Iterator[list[ParityRow]]:
        assert len(tasks) == 2
        for task in tasks:
            yield [chunk(0, piece.start // SIZE) for piece in task.pieces]

    result = check.check_parity(
        tmp_path / "mirrorbook.yaml",
        ClusterIdentity(EAST, "id-of-east"),
        ClusterIdentity(WEST, "id-of-west"),
        ranges,
        None,
        run=run,  # type: ignore[arg-type]  # a sequence of tasks
        tasks=2,
        level=LEVEL_RECORDS,
        chunk=SIZE,
        demands=None,
        on_progress=told.append,
    )
    assert [one.verified_ends for one in told] == [{partition(0): (n + 1) * SIZE} for n in range(6)]
    assert (result.verdict, result.chunks, result.records) == (ParityVerdict.PASSED, 6, 6 * SIZE)
    assert replace(result, seconds=0.0).verified_ends == {partition(0): 6 * SIZE}


@pytest.mark.parametrize(
    ("chunks", "shared_by"),
    [(1, [1]), (3, [3] * 3), (4, [4] * 4), (11, [4] * 8 + [3] * 3)],
    ids=["one chunk alone has the whole throttle", "fewer than slots", "as many as slots", "the last round has fewer"],
)
def test_tasks_that_run_at_once_share_the_throttle(
    chunks: int, shared_by: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranges, throttles = [wanted(0, chunks * SIZE)], list[int | None]()
    monkeypatch.setattr(check, "load_config", lambda path: None)
    monkeypatch.setattr(check, "compare_ends", lambda *asked: (ends(0, chunks), ranges))

    def run(tasks: list[CompareTask]) -> list[list[ParityRow]]:
        throttles.extend(task.throttle for task in tasks)
        return [[chunk(0, piece.start // SIZE) for piece in task.pieces] for task in tasks]

    check.check_parity(
        tmp_path / "mirrorbook.yaml",
        ClusterIdentity(EAST, "id-of-east"),
        ClusterIdentity(WEST, "id-of-west"),
        ranges,
        None,
        run=run,  # type: ignore[arg-type]  # a sequence of tasks
        tasks=8,
        at_once=4,
        level=LEVEL_RECORDS,
        chunk=SIZE,
        demands=None,
        throttle=12_000,
    )
    assert throttles == [12_000 // tasks for tasks in shared_by]


UNREAD: dict[str, Any] = {"error": "no leader", "src_digest": ""}
DIFFERS: dict[str, Any] = {"level": LEVEL_RECORDS, "dst_digest": "other", "findings": (finding(0, 7),), "differing": 1}


@pytest.mark.parametrize("difference", [DIFFERS, {"dst_digest": "other"}], ids=["records", "digests"])
def test_a_difference_is_not_hidden_by_another_reading_that_could_not_read_it(difference: dict[str, Any]) -> None:
    """Each reading knows of one chunk what the other one does not."""
    one = [chunk(0, 0, **difference), chunk(0, 1), chunk(0, 2, **UNREAD)]
    other = [chunk(0, 0, **UNREAD), chunk(0, 1, **UNREAD), chunk(0, 2, **UNREAD)]
    for rows in ([*one, *other], [*other, *one]):
        chosen = sorted(choose_worst_rows(rows), key=lambda row: row.chunk)
        assert chosen == [one[0], other[1], one[2]]


def test_readings_that_retention_has_cut_elsewhere_are_not_counted_twice() -> None:
    whole_chunk, unread = chunk(0, 0), chunk(0, 0, **UNREAD)
    late = [replace(whole_chunk, end=Offset(4), level=0), replace(whole_chunk, start=Offset(4))]
    assert choose_worst_rows([whole_chunk, *late]) == [whole_chunk]
    assert choose_worst_rows([*late, whole_chunk]) == late
    assert choose_worst_rows([*late, unread]) == [unread]


def test_reasons_name_what_differs_before_what_was_not_read() -> None:
    rows = [*ends(0, 30), *(chunk(0, at, **UNREAD) for at in range(29)), chunk(0, 29, dst_digest="other")]
    result = judge_rows([wanted(0, 30 * SIZE)], rows, parity_result.LEVEL_DIGEST)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert result.reasons[0].startswith(f"{partition(0)} [{29 * SIZE}, {30 * SIZE}): ")
