"""`mirror describe` begins with who can write where and what to do, in 80 columns, each command whole."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirror_core.cli.mirror import tell_lifted_fence
from mirror_core.cli.mirror_headline import list_headline
from mirror_core.cli.output import MAX_LINE_WIDTH, wrap_text
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.run_status import OpenRunFence
from mirror_core.decide.steps import WriteLocation
from mirror_core.decide.write_access import OpenRun, OperatorAction, WriteAccess, drop_past_location
from mirror_core.mirrors.describe import MirrorDescription
from mirror_core.mirrors.mirror_facts import FactKey, make_fact
from mirror_core.model.findings import Finding, format_remedy
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import RunKind, StepState
from tests.support.mirror_views import MIRROR

ORDERS = replace(MIRROR, name=MirrorName("orders"))
HELD = OpenRun(
    id="orders-failover-20261128T155807-081e",
    kind=RunKind.FAILOVER,
    step="drain",
    step_state=StepState.STARTED,
    conductor=ConductorState.RELEASED,
    may_await_answer=False,
    fence=OpenRunFence.SEEN,
    is_aborting=False,
    can_abort=True,
)
NOWHERE = WriteAccess(writes=WriteLocation.NOWHERE, cluster=None, action=OperatorAction.RESUME_RUN, run=HELD)
ON_EAST = WriteAccess(writes=WriteLocation.SOURCE, cluster=ClusterName("east"), action=OperatorAction.NOTHING, run=None)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def lines_of(access: WriteAccess) -> list[str]:
    return [line for text in list_headline(access, ORDERS) for line in text.split("\n")]


def test_a_fence_of_an_aborted_run_that_brokers_show_is_lifted_by_a_command() -> None:
    access = replace(NOWHERE, run=None, action=OperatorAction.LIFT_FENCE)
    assert lines_of(access)[0].startswith("NOBODY CAN WRITE orders: east answers")
    assert lines_of(access)[-1].endswith("mirrorbook mirror watch orders --once")
    assert lines_of(replace(access, action=OperatorAction.WATCH))[0].startswith("Perhaps ")


def test_a_run_with_a_partition_that_failed_since_its_plan() -> None:
    access = replace(
        NOWHERE, run=replace(HELD, fence=None), cluster=ClusterName("east"), action=OperatorAction.ABORT_RUN
    )
    lines = lines_of(access)
    assert lines[-1] == "    mirrorbook failover abort orders"
    assert not [line for line in lines if "resume" in line or "fence" in line]


def test_behind_the_fence_of_a_run_that_waits() -> None:
    assert lines_of(NOWHERE) == [
        "NOBODY CAN WRITE orders: east is fenced, and west is not promoted. Run",
        "orders-failover-20261128T155807-081e is in step drain. No process is at it now.",
        "Do: mirrorbook failover resume orders",
        "or: mirrorbook failover abort orders",
    ]


def test_a_failback_whose_failover_home_is_stuck_leads_there() -> None:
    run = replace(HELD, kind=RunKind.FAILBACK, fence=None)
    access = WriteAccess(
        writes=WriteLocation.DESTINATION, cluster=ClusterName("west"), action=OperatorAction.SHOW_WAY_HOME, run=run
    )
    assert lines_of(access)[-1] == "    mirrorbook mirror describe orders-back"


def test_a_process_that_may_wait_for_an_answer_is_not_said_to_be_away() -> None:
    waiting = replace(HELD, may_await_answer=True)
    text = " ".join(lines_of(replace(NOWHERE, run=waiting)))
    assert "may wait for an answer" in text
    assert "No process" not in text


@pytest.mark.parametrize(
    ("step", "state", "place"),
    [
        ("", None, "is before its first step"),
        ("drain", StepState.DONE, "has done step drain"),
        ("drain", StepState.FAILED, "failed in step drain"),
    ],
)
def test_a_step_that_was_done_is_not_said_to_go_on(step: str, state: StepState | None, place: str) -> None:
    run = replace(HELD, step=step, step_state=state)
    assert f"081e {place}. " in " ".join(lines_of(replace(NOWHERE, run=run)))


def test_on_a_quiet_day_two_lines() -> None:
    assert lines_of(ON_EAST) == ["Applications write orders on east; west is its mirror.", "Do: nothing."]


@pytest.mark.parametrize("action", OperatorAction)
@pytest.mark.parametrize(("writes", "cluster"), [("source", "east"), ("destination", "west"), ("nowhere", None)])
@pytest.mark.parametrize("kind", [None, *RunKind])
@pytest.mark.parametrize("fence", [None, *OpenRunFence])
def test_every_headline_fits_and_breaks_no_command(
    action: OperatorAction, writes: str, cluster: str | None, kind: RunKind | None, fence: OpenRunFence | None
) -> None:
    run = None if kind is None else replace(HELD, kind=kind, fence=fence)
    name = None if cluster is None else ClusterName(cluster)
    lines = lines_of(WriteAccess(writes=WriteLocation(writes), cluster=name, action=action, run=run))
    assert max(map(len, lines)) <= MAX_LINE_WIDTH
    assert sum(line.startswith("Do: ") for line in lines) == 1
    commands = [line for line in lines if "mirrorbook " in line]
    assert all(line[4:].startswith("mirrorbook ") and "orders" in line for line in commands)


def test_a_command_and_a_number_with_its_unit_stay_whole() -> None:
    text = "x" * 70 + " after 18.8 s, 1,234 records: `mirrorbook mirror watch orders` does it"
    assert wrap_text(text).split("\n") == [
        "x" * 70 + " after",
        "18.8 s, 1,234 records: `mirrorbook mirror watch orders` does it",
    ]


def test_a_command_behind_a_colon_stays_whole() -> None:
    run = "run orders-failover-20261130T040237-e7fa; after a crash"
    assert wrap_text(f"{run}: mirrorbook failover resume orders").split("\n") == [
        f"{run}:",
        "mirrorbook failover resume orders",
    ]


def test_a_failback_behind_the_fence_of_its_way_home_says_that_nobody_can_write() -> None:
    run = replace(HELD, kind=RunKind.FAILBACK, fence=None, can_abort=False)
    assert lines_of(replace(NOWHERE, run=run))[0].startswith(
        "NOBODY CAN WRITE orders: failover orders-back has fenced west"
    )
    on_west = WriteAccess(
        writes=WriteLocation.DESTINATION, cluster=ClusterName("west"), action=OperatorAction.RESUME_RUN, run=run
    )
    lines = lines_of(on_west)
    assert lines[0].startswith("Applications write orders on west. Run ")
    assert lines[-1] == "Do: mirrorbook failback resume orders"


def test_a_mirror_that_led_home_tells_no_place_of_writing() -> None:
    """Its home mirror may have been failed over since."""
    east, action = ClusterName("east"), OperatorAction.SHOW_HOME_MIRROR
    home = WriteAccess(writes=WriteLocation.DESTINATION, cluster=east, action=action, run=None)
    access = drop_past_location(home)
    assert (access.writes, access.cluster) == (None, None)
    way_home = replace(MIRROR, name=MirrorName("orders-back"), source=MIRROR.destination, destination=MIRROR.source)
    *headline, advice = list_headline(access, way_home)
    assert "orders tells where they write" in " ".join(headline)
    assert advice == "Do: mirrorbook mirror describe orders"
    *_, later = list_headline(access, way_home, is_home_unseen=True)
    assert later == "When west answers: mirrorbook mirror describe orders", "a command that answers 4 now"


def make_returned(name: str = "orders", *, can_fence: bool = True, run_kind: str = "") -> Finding:
    values = {"taken": 392, "lost": 2_488, "unmeasured": (), "reason": None}
    held = {"mirror": name, "can_fence": can_fence, "run_kind": run_kind}
    return Finding("old_source_unfenced_answers", "east", **values, **held)


UNSAVED = Finding(
    "records_only_on_destination",
    "west",
    mirror="orders",
    source="east",
    partitions=("orders-0", "orders-1"),
    offsets=2_412,
    is_minimum=False,
    run_kind="",
)
MOVED = WriteAccess(
    writes=WriteLocation.DESTINATION, cluster=ClusterName("west"), action=OperatorAction.WATCH, run=None
)


def list_lines(access: WriteAccess, *findings: Finding | None) -> list[str]:
    lines = [line for text in list_headline(access, ORDERS, *findings) for line in text.split("\n")]
    assert max(map(len, lines)) <= MAX_LINE_WIDTH
    return lines


def list_commands(lines: list[str]) -> list[str]:
    return [
        line[line.index("mirrorbook ") :] for line in lines if re.match(r"(    |or: |Do: |Then: )mirrorbook ", line)
    ]


@pytest.mark.parametrize("can_fence", [True, False])
def test_an_old_source_that_takes_writes_is_told_first_with_its_number_and_what_to_do(can_fence: bool) -> None:
    returned = make_returned(can_fence=can_fence)
    lines = list_lines(MOVED, returned)
    assert " ".join(lines).startswith(str(returned))
    assert "392 offsets" in str(returned)
    watch = "mirrorbook mirror watch orders"
    assert list_commands(lines) == ([f"{watch} --once", watch] if can_fence else ["mirrorbook failback plan orders"])


def test_a_cluster_left_on_the_way_home_is_fenced_first_and_then_the_failback_goes_on() -> None:
    run = replace(HELD, kind=RunKind.FAILBACK, fence=None, can_abort=False)
    on_east = replace(ON_EAST, run=run, action=OperatorAction.RESUME_RUN)
    watch = "mirrorbook mirror watch orders-back"
    commands = list_commands(list_lines(on_east, make_returned("orders-back")))
    assert commands == [f"{watch} --once", watch, "mirrorbook failback resume orders"]


def test_a_run_that_decides_about_an_old_source_is_named_instead_of_a_watcher() -> None:
    commands = list_commands(list_lines(MOVED, make_returned(run_kind="failover")))
    assert commands == ["mirrorbook failover status orders"]


@pytest.mark.parametrize(
    ("action", "then"),
    [
        (OperatorAction.RECOVER, []),
        (OperatorAction.NOTHING, []),
        (OperatorAction.SUPERVISE, ["mirrorbook supervise orders"]),
    ],
)
def test_what_only_the_destination_has_is_told_first_with_what_saves_it(
    action: OperatorAction, then: list[str]
) -> None:
    lines = list_lines(replace(ON_EAST, action=action), None, UNSAVED)
    assert " ".join(lines).startswith(str(UNSAVED))
    assert "2,412 offsets of orders-0, orders-1" in str(UNSAVED)
    recover = "mirrorbook mirror recover orders --action recopy --salvage FOLDER"
    assert list_commands(lines) == [recover, *then]


def test_what_saves_a_destinations_records_is_not_told_as_possible_while_a_run_holds_the_mirror() -> None:
    held = Finding(UNSAVED.code, UNSAVED.subject, **{**UNSAVED.values, "run_kind": "failover"})
    lines = list_lines(NOWHERE, None, held)
    assert "Do: after the open failover of orders, " in " ".join(lines)
    assert format_remedy(held).startswith("after the open failover of orders, ")
    assert list_commands(lines)[1:] == ["mirrorbook failover resume orders", "mirrorbook failover abort orders"]


@pytest.mark.parametrize("fence", OpenRunFence)
def test_the_facts_below_know_a_lifted_fence_too(fence: OpenRunFence) -> None:
    recorded = {FactKey.OPEN_RUN: make_fact((HELD.id,), "stalled"), FactKey.OPEN_RUN_FENCE: make_fact(("DONE",))}
    described = MirrorDescription(figures={}, facts=recorded, not_normal=(), silent=(), copying=True, rows=())
    told = tell_lifted_fence(described, replace(NOWHERE, run=replace(HELD, fence=fence)), MIRROR).facts
    if fence is not OpenRunFence.LIFTED:
        assert told == recorded
        return
    assert told[FactKey.OPEN_RUN] == make_fact((HELD.id,), f"failover {HELD.id}")
    assert told[FactKey.OPEN_RUN_FENCE].value == ("LIFTED",)
