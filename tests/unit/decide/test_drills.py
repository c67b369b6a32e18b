"""What a drill has made is told from what is somebody's own; every mirror can be drilled; what a drill's group met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.decide.drills import (
    NOT_EQUAL_TEXT,
    GroupReadResult,
    compare_group_reads,
    forecast_standstill,
    has_passed,
    is_drill_mirror,
    list_drill_expressions,
    summarize_drill,
    summarize_failed_drills,
    to_drill_name,
)
from mirror_core.decide.failover_readiness import FreshnessKind, list_newest_times
from mirror_core.decide.steps import list_standstill_steps
from mirror_core.kafka.config import load_config
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.errors import BadRequest, MirrorError, Refused, Unreachable
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import Run, RunMode, RunState, StepRecord, StepState
from tests.support.run_pages import PLAN, RUN
from tests.support.steps_mirror import MIRROR

A, B = Partition("t", 0), Partition("t", 1)


def places(**offsets: int) -> Mapping[Partition, Offset]:
    return {Partition("t", index): Offset(offset) for index, offset in enumerate(offsets.values())}


def span(start: int, end: int) -> list[Offset]:
    return [Offset(offset) for offset in range(start, end)]


def test_a_group_that_goes_on_where_it_was_repeats_and_skips_nothing() -> None:
    found = compare_group_reads(0, places(a=5, b=7), places(a=9, b=7), {A: span(5, 9), B: []})
    assert found == GroupReadResult(0, repeated=0, skipped=0)


def test_what_was_done_already_and_is_read_again_is_counted() -> None:
    found = compare_group_reads(None, places(a=5, b=7), places(a=9, b=7), {A: span(2, 9), B: span(0, 7)})
    assert (found.repeated, found.skipped) == (3 + 7, 0)


def test_what_was_not_done_and_is_not_read_is_skipped_be_it_at_the_start_or_in_the_middle() -> None:
    found = compare_group_reads(None, places(a=5, b=0), places(a=9, b=4), {A: span(7, 9), B: [Offset(0), Offset(3)]})
    assert (found.repeated, found.skipped) == (0, 2 + 2)


def test_a_partition_that_was_not_read_at_all_is_skipped_whole() -> None:
    assert compare_group_reads(None, places(a=5, b=0), places(a=9, b=4), {}).skipped == 4 + 4


def test_what_the_promoted_side_does_not_have_is_lost_and_not_skipped() -> None:
    assert compare_group_reads(None, places(a=9), places(a=6), {A: span(4, 6)}) == GroupReadResult(
        None, repeated=2, skipped=0
    )


def test_what_a_drill_has_left_is_told_by_its_name_and_its_topic() -> None:
    left = replace(MIRROR, name=to_drill_name("orders"), topics=list_drill_expressions("orders"))
    assert is_drill_mirror(left)
    assert not is_drill_mirror(replace(left, topics=("orders",))), "somebody's own, of such a name"
    assert not is_drill_mirror(replace(left, name=MirrorName("orders")))
    assert not is_drill_mirror(replace(left, name=to_drill_name("others")))


def test_a_mirror_with_the_longest_name_can_be_drilled(tmp_path: Path) -> None:
    (tmp_path / "mirrorbook.yaml").write_text("clusters: {a: {bootstrap.servers: 'localhost:1'}}")
    config, longest = load_config(tmp_path / "mirrorbook.yaml"), "m" * 63
    for name in (longest, to_drill_name(longest)):
        with pytest.raises(BadRequest, match="nowhere"):
            create_mirror(config, name, source="nowhere", destination="a", topics=["t"])
    for name in (f"{longest}m", f"{to_drill_name(longest)}m", "drill.", "drill..a"):
        with pytest.raises(BadRequest, match="63 at most"):
            create_mirror(config, name, source="nowhere", destination="a", topics=["t"])


def test_a_drill_has_come_through_when_what_it_promoted_was_seen_to_be_equal() -> None:
    done = replace(RUN, plan=replace(PLAN, mirror=to_drill_name("m")), state=RunState.DONE)
    good = replace(done, note="250 records equal, 0 offsets lost")
    assert [dict(list_newest_times(MirrorName("m"), None, None, iter([run]), {})) for run in (done, good)] == [
        {},
        {FreshnessKind.DRILL: RUN.started_ms},
    ]
    aborted = replace(done, state=RunState.ABORTED, note="its source does not answer")
    assert not has_passed(aborted)
    assert [summarize_drill(run, ()).text for run in (done, good, aborted)] == [NOT_EQUAL_TEXT, good.note, "ABORTED"]


def test_seconds_are_foretold_by_the_same_kind_of_run_and_of_conductor() -> None:
    """A later one says more only of itself: an unplanned one writes nowhere for moments, and Airflow waits."""

    def finished(number: int, mode: RunMode = RunMode.PLANNED, by: str = "ann@host", last: str = "") -> Run:
        plan = replace(PLAN, mirror=MirrorName("m"), mode=mode)
        return replace(RUN, id=str(number), number=number, plan=plan, state=RunState.DONE, started_by=by,
                       conducted_by=last or by)  # fmt: skip

    def steps(run: Run) -> tuple[StepRecord, ...]:
        names = list_standstill_steps(run.plan.kind, run.plan.mode)
        return tuple(
            StepRecord(run=run.id, step=name, state=StepState.DONE, attempt=1, started_ms=0, ended_ms=int(run.id) * 100)
            for name in (names[0], names[-1])
        )

    def told(runs: list[Run], conductor: str | None) -> str:
        found = forecast_standstill(runs, steps, "m", RunMode.PLANNED, conductor)
        return "unknown" if found is None else f"{found.seconds} ({found.basis})"

    airflow = "airflow mirror_failover/r1 by ann"
    runs = [
        finished(1),
        finished(2, by=airflow),
        finished(3, by=airflow, last="ann@host"),
        finished(4, RunMode.UNPLANNED),
    ]
    assert told(runs, "ben@laptop") == "0.1 (last run)"
    assert told(runs, "airflow mirror_failover/r2") == "0.2 (last run)"
    assert told(runs, None) == "0.3 (last run)", "whoever it will be"
    assert told(runs[1:], "ben@laptop") == "0.3 (last run, by Airflow and by command)"
    assert told(runs[1:2], "ben@laptop") == "0.2 (last run, by Airflow)"
    drill = replace(runs[0], plan=replace(runs[0].plan, mirror=to_drill_name("m")))
    assert told([drill, *runs[1:]], "ben@laptop") == "0.1 (last drill)", "what a drill took by command, before Airflow"
    assert told(runs[3:], "ben@laptop") == "unknown"
    assert told([finished(-72_000)], None) == "unknown", "its clock was set back by two hours"


def test_seconds_of_a_run_that_waited_to_be_resumed_are_no_forecast() -> None:
    runs = [
        replace(RUN, id=str(n), number=n, plan=replace(PLAN, mirror=MirrorName("m")), state=RunState.DONE)
        for n in (1, 354)
    ]

    def steps(run: Run) -> tuple[StepRecord, ...]:
        names = list_standstill_steps(run.plan.kind, run.plan.mode)
        done = StepRecord(run=run.id, step=names[-1], state=StepState.DONE, attempt=1, started_ms=0, ended_ms=1)
        ended = replace(done, ended_ms=run.number * 100)
        return replace(done, step=names[0], attempt=1 if run.number == 1 else 2), ended

    both, alone = (forecast_standstill(some, steps, "m", RunMode.PLANNED) for some in (runs, runs[1:]))
    assert both is not None
    assert alone is not None
    assert (both.seconds, alone.seconds) == (0.1, 35.4)
    assert "repeated" in alone.basis


def test_of_two_drills_each_outcome_is_named_and_one_that_failed_makes_red() -> None:
    refused = Refused("plan", ["no leader", "no right"], "not_ready")
    found = summarize_failed_drills("orders", {RunMode.PLANNED: refused, RunMode.UNPLANNED: "2.1 s"})
    assert str(found) == (
        "drill of mirror orders: 1 of 2 failed:\n"
        "  - planned: failed: plan:\n      - no leader\n      - no right\n"
        "  - unplanned: came through: 2.1 s"
    )
    assert summarize_failed_drills("orders", {RunMode.PLANNED: refused}) is refused
    assert summarize_failed_drills("orders", {RunMode.PLANNED: "1.0 s", RunMode.UNPLANNED: "2.1 s"}) is None


@pytest.mark.parametrize(
    ("planned", "unplanned", "again"),
    [
        (Unreachable("east"), Unreachable("west"), True),
        (Unreachable("east"), "2.1 s", True),
        (Unreachable("east"), Refused("plan", ["no right"], "not_ready"), False),
    ],
)
def test_drills_are_tried_again_only_where_that_may_help_each_that_failed(
    planned: MirrorError, unplanned: str | MirrorError, again: bool
) -> None:
    found = summarize_failed_drills("orders", {RunMode.PLANNED: planned, RunMode.UNPLANNED: unplanned})
    assert found is not None
    assert found.retryable is again
