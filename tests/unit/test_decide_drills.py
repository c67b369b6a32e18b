"""What a drill has made is told from what is somebody's own; every mirror can be drilled; what a drill's group met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.decide.ages import Known, known_since
from mirror_core.decide.drills import (
    NOT_EQUAL,
    ReadOn,
    came_through,
    drill_name,
    drilled,
    expressions,
    failed_drills,
    forecast,
    is_drills,
    read_on,
)
from mirror_core.decide.steps import standing_still
from mirror_core.kafka.config import load_config
from mirror_core.mirrors.creation import create
from mirror_core.model.errors import BadRequest, MirrorError, Refused, Unreachable
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import Mode, Run, RunState, StepRecord, StepState
from tests.unit.test_run_page import PLAN, RUN
from tests.unit.test_steps import MIRROR

A, B = Partition("t", 0), Partition("t", 1)


def places(**offsets: int) -> Mapping[Partition, Offset]:
    return {Partition("t", index): Offset(offset) for index, offset in enumerate(offsets.values())}


def span(start: int, end: int) -> list[Offset]:
    return [Offset(offset) for offset in range(start, end)]


def test_a_group_that_goes_on_where_it_was_repeats_and_skips_nothing() -> None:
    found = read_on("0", places(a=5, b=7), places(a=9, b=7), {A: span(5, 9), B: []})
    assert found == ReadOn("0", repeated=0, skipped=0)


def test_what_was_done_already_and_is_read_again_is_counted() -> None:
    found = read_on("", places(a=5, b=7), places(a=9, b=7), {A: span(2, 9), B: span(0, 7)})
    assert (found.repeated, found.skipped) == (3 + 7, 0)


def test_what_was_not_done_and_is_not_read_is_skipped_be_it_at_the_start_or_in_the_middle() -> None:
    found = read_on("", places(a=5, b=0), places(a=9, b=4), {A: span(7, 9), B: [Offset(0), Offset(3)]})
    assert (found.repeated, found.skipped) == (0, 2 + 2)


def test_a_partition_that_was_not_read_at_all_is_skipped_whole() -> None:
    assert read_on("", places(a=5, b=0), places(a=9, b=4), {}).skipped == 4 + 4


def test_what_the_promoted_side_does_not_have_is_lost_and_not_skipped() -> None:
    assert read_on("", places(a=9), places(a=6), {A: span(4, 6)}) == ReadOn("", repeated=2, skipped=0)


def test_what_a_drill_has_left_is_told_by_its_name_and_its_topic() -> None:
    left = replace(MIRROR, name=drill_name("orders"), topics=expressions("orders"))
    assert is_drills(left)
    assert not is_drills(replace(left, topics=("orders",))), "somebody's own, of such a name"
    assert not is_drills(replace(left, name=MirrorName("orders")))
    assert not is_drills(replace(left, name=drill_name("others")))


def test_a_mirror_with_the_longest_name_can_be_drilled(tmp_path: Path) -> None:
    (tmp_path / "mirrorbook.yaml").write_text("clusters: {a: {bootstrap.servers: 'localhost:1'}}")
    config, longest = load_config(tmp_path / "mirrorbook.yaml"), "m" * 63
    for name in (longest, drill_name(longest)):
        with pytest.raises(BadRequest, match="nowhere"):
            create(config, name, source="nowhere", destination="a", topics=["t"])
    for name in (f"{longest}m", f"{drill_name(longest)}m", "drill.", "drill..a"):
        with pytest.raises(BadRequest, match="63 at most"):
            create(config, name, source="nowhere", destination="a", topics=["t"])


def test_a_drill_has_come_through_when_what_it_promoted_was_seen_to_be_equal() -> None:
    done = replace(RUN, plan=replace(PLAN, mirror=drill_name("m")), state=RunState.DONE)
    good = replace(done, note="250 records equal, 0 offsets lost")
    assert [dict(known_since(MirrorName("m"), None, None, iter([run]), {})) for run in (done, good)] == [
        {},
        {Known.DRILL: RUN.started_ms},
    ]
    aborted = replace(done, state=RunState.ABORTED, note="its source does not answer")
    assert not came_through(aborted)
    assert [drilled(run, ()).words for run in (done, good, aborted)] == [NOT_EQUAL, good.note, "ABORTED"]


def test_seconds_are_foretold_by_the_same_kind_of_run_and_of_conductor() -> None:
    """A later one says more only of itself: an unplanned one writes nowhere for moments, and Airflow waits."""

    def finished(number: int, mode: Mode = Mode.PLANNED, by: str = "ann@host", last: str = "") -> Run:
        plan, started = replace(PLAN, mirror=MirrorName("m"), mode=mode), number * 1000
        return replace(RUN, id=str(number), plan=plan, state=RunState.DONE, started_ms=started, started_by=by,
                       conducted_by=last or by)  # fmt: skip

    def steps(run: Run) -> tuple[StepRecord, ...]:
        names = standing_still(run.plan.kind, run.plan.mode)
        return tuple(
            StepRecord(run=run.id, step=name, state=StepState.DONE, attempt=1, started_ms=0, ended_ms=int(run.id) * 100)
            for name in (names[0], names[-1])
        )

    def told(runs: list[Run], conductor: str | None) -> str:
        found = forecast(runs, steps, "m", Mode.PLANNED, conductor)
        return "unknown" if found is None else f"{found.seconds} ({found.basis})"

    airflow = "airflow mirror_failover/r1 by ann"
    runs = [finished(1), finished(2, by=airflow), finished(3, by=airflow, last="ann@host"), finished(4, Mode.UNPLANNED)]
    assert told(runs, "ben@laptop") == "0.1 (last run)"
    assert told(runs, "airflow mirror_failover/r2") == "0.2 (last run)"
    assert told(runs, None) == "0.3 (last run)", "whoever it will be"
    assert told(runs[1:], "ben@laptop") == "0.3 (last run, by Airflow and by command)"
    assert told(runs[1:2], "ben@laptop") == "0.2 (last run, by Airflow)"
    drill = replace(runs[0], plan=replace(runs[0].plan, mirror=drill_name("m")))
    assert told([drill, *runs[1:]], "ben@laptop") == "0.1 (last drill)", "what a drill took by command, before Airflow"
    assert told(runs[3:], "ben@laptop") == "unknown"


def test_of_two_drills_each_outcome_is_named_and_one_that_failed_makes_red() -> None:
    refused = Refused("plan", ["no leader", "no right"])
    found = failed_drills("orders", {Mode.PLANNED: refused, Mode.UNPLANNED: "2.1 s"})
    assert str(found) == (
        "drill of mirror orders: 1 of 2 failed:\n"
        "  - planned: failed: plan:\n      - no leader\n      - no right\n"
        "  - unplanned: came through: 2.1 s"
    )
    assert failed_drills("orders", {Mode.PLANNED: refused}) is refused
    assert failed_drills("orders", {Mode.PLANNED: "1.0 s", Mode.UNPLANNED: "2.1 s"}) is None


@pytest.mark.parametrize(
    ("planned", "unplanned", "again"),
    [
        (Unreachable("east"), Unreachable("west"), True),
        (Unreachable("east"), "2.1 s", True),
        (Unreachable("east"), Refused("plan", ["no right"]), False),
    ],
)
def test_drills_are_tried_again_only_where_that_may_help_each_that_failed(
    planned: MirrorError, unplanned: str | MirrorError, again: bool
) -> None:
    found = failed_drills("orders", {Mode.PLANNED: planned, Mode.UNPLANNED: unplanned})
    assert found is not None
    assert found.retryable is again
