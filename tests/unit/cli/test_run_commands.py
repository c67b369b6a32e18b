"""What the options of `failover` and `failback` make of a conductor, and words that must not mislead."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from mirror_core.cli import command_options, failover, run_commands
from mirror_core.cli.command_options import CANCELLED, UNCHANGED, require_confirmation
from mirror_core.cli.failback import format_discard_question
from mirror_core.cli.run_commands import CompareRunner, choose_runner, make_conductor
from mirror_core.cli.runs import print_run
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook import failback_steps
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.failover_conductor import Failover
from tests.support.cluster_names import LINK
from tests.support.memory_state import journal_of
from tests.support.mirror_views import RUN


def test_an_unplanned_failover_needs_no_spark_unless_somebody_wants_it() -> None:
    assert [choose_runner(mode, None) for mode in RunMode] == [
        CompareRunner.SPARK if mode is RunMode.PLANNED else CompareRunner.LOCAL for mode in RunMode
    ]
    assert {choose_runner(mode, CompareRunner.SPARK) for mode in RunMode} == {CompareRunner.SPARK}


@pytest.mark.parametrize("quiet", [False, True])
def test_what_people_may_have_to_do_is_never_swallowed(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a machine's reading of what is printed, either."""
    monkeypatch.setattr(run_commands, "make_services", lambda *arguments: None)
    make_conductor(Failover, LINK, quiet=quiet)._print_line("stop node 1 within 300 s")
    said = capsys.readouterr()
    line = "stop node 1 within 300 s\n"
    assert (said.out, said.err) == (("", line) if quiet else (line, ""))


@pytest.mark.parametrize("run_lost", [False, True])
def test_a_data_plane_that_starts_while_catching_up_copies_here_takes_over_and_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, run_lost: bool
) -> None:
    """A supervisor, or the DAG behind task replicate_reverse: they start in the same moment."""
    left, fresh, said = [(9_000, 0), (9_000, 0), (0, 0)], [False, True], list[str]()
    journal = journal_of("m-failback-1", "catch_up")

    class Starting:
        def __init__(self, *given: object, **options: object) -> None: ...

        def run(self) -> None:
            raise LostOwnership("another process copies it already (host/7)")

    def put(*records: object) -> None:
        if run_lost:
            raise LostOwnership("the run is another's")

    monkeypatch.setattr(failback_steps, "time", SimpleNamespace(monotonic=lambda: 1.0, sleep=lambda seconds: None))
    monkeypatch.setattr(failback_steps, "read_state", lambda cluster: SimpleNamespace(leases={}))
    monkeypatch.setattr(failback_steps, "find_reverse_failover", lambda state, run: None)
    monkeypatch.setattr(failback_steps, "observe_live_lease", lambda *given: object() if fresh.pop(0) else None)
    monkeypatch.setattr(failback_steps, "Replication", Starting)
    monkeypatch.setattr(FailbackSteps, "_load_reverse_link", lambda self: LINK)
    monkeypatch.setattr(FailbackSteps, "_measure_lag", lambda self, link: left.pop(0))
    steps: Any = object.__new__(FailbackSteps)
    writer = SimpleNamespace(put=put)
    for name, value in (("link", LINK), ("journal", journal), ("print_line", said.append), ("writer", writer)):
        object.__setattr__(steps, name, value)
    if run_lost:
        with pytest.raises(LostOwnership, match="the run is another's"):
            journal.perform("catch_up", steps.catch_up)
        return
    assert journal.perform("catch_up", steps.catch_up).evidence["lag"] == 0
    assert said == ["catch_up: not copied here any more: another process copies it already (host/7)"]


def test_who_waits_for_an_old_source_to_catch_up_is_told_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[int | None, int]] = [
        (5_000_000, 0),
        (5_000_000, 0),
        (2_000_000, 0),
        (None, 0),
        (None, 0),
        (1_000_000, 0),
        (0, 0),
    ]
    now = iter(range(0, 1000, 6))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda seconds: None)
    said = list[str]()
    monkeypatch.setattr(failback_steps, "time", clock)
    monkeypatch.setattr(failback_steps, "read_state", lambda cluster: SimpleNamespace(leases={}))
    monkeypatch.setattr(failback_steps, "find_reverse_failover", lambda state, run: None)
    monkeypatch.setattr(failback_steps, "observe_live_lease", lambda *given: object())
    monkeypatch.setattr(FailbackSteps, "_load_reverse_link", lambda self: LINK)
    monkeypatch.setattr(FailbackSteps, "_measure_lag", lambda self, link: left.pop(0))
    steps: Any = object.__new__(FailbackSteps)
    for name, value in (("link", LINK), ("journal", journal_of("m-failback-1")), ("print_line", said.append)):
        object.__setattr__(steps, name, value)
    assert steps.catch_up()["lag"] == 0
    assert [line.removesuffix(", until east is close behind") for line in said] == [
        "catch_up: 5,000,000 offsets left, time left not known yet",
        "catch_up: an unknown number of offsets left",
        "catch_up: 1,000,000 offsets left, about 8 s",
    ]


@pytest.mark.parametrize("leave_behind", [False, True])
def test_a_set_leaves_behind_what_its_mirrors_would(leave_behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[bool]()
    mirror_set = MirrorSet("shop", (LINK.mirror.name,))
    monkeypatch.setattr(run_commands, "load_configuration", lambda path: None)
    monkeypatch.setattr(run_commands, "find_set", lambda config, name, kind: mirror_set)
    monkeypatch.setattr(run_commands, "find_mirror_link", lambda config, name: (LINK, None))
    monkeypatch.setattr(
        run_commands, "make_conductor", lambda *arguments, **options: given.append(options["leave_behind"])
    )
    monkeypatch.setattr(
        failover,
        "SetFailover",
        lambda *arguments, **options: SimpleNamespace(decide=lambda: SimpleNamespace(reasons=())),
    )
    monkeypatch.setattr(run_commands, "print_set_plan", lambda *arguments, **options: None)
    failover.plan_set("shop", leave_behind=leave_behind)
    assert given == [leave_behind]


@pytest.mark.parametrize(
    ("state", "waits"),
    [(ConductorState.ALIVE, False), (ConductorState.RELEASED, True), (ConductorState.SILENT, True)],
)
def test_a_run_that_nobody_conducts_is_not_called_running(
    state: ConductorState, waits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replace(RUN, state=RunState.RUNNING, ended_ms=None)
    print_run(run, (), ConductorStatus(state=state, by="ann", host="desk", pid=7, age_s=11.0), as_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("state: ")]
    assert line.startswith("state: RUNNING")
    assert (line != "state: RUNNING") is waits


def test_a_failback_that_discards_nothing_does_not_ask_to_discard() -> None:
    east = ClusterName("east")
    assert "discard them" not in format_discard_question(0, east)
    assert "3 offsets" in format_discard_question(3, east)
    assert "unknown" in format_discard_question(None, east)


@pytest.mark.parametrize(("typed", "is_agreed"), [(str(RUN.plan.mirror), True), ("y", False), ("", False)])
def test_records_are_left_behind_by_the_mirrors_name_as_where_else_records_are_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, is_agreed: bool
) -> None:
    monkeypatch.setattr(failover, "read_state", lambda *_: None)
    monkeypatch.setattr(failover, "list_refused_losses", lambda *_: ("promote x",))
    monkeypatch.setattr(failover, "format_refused_losses", lambda *_: ("3 records of a-0",))
    monkeypatch.setattr(command_options, "_prepare_terminal", lambda: None)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: typed)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: typed == "y")
    conductor = cast("Any", SimpleNamespace(link=LINK))
    with nullcontext() if is_agreed else pytest.raises(Refused, match=CANCELLED):
        assert failover._confirm_losses(conductor, RUN, yes=False, as_json=False) == ("promote x",)
    assert "3 records of a-0" in capsys.readouterr().out
    assert failover._confirm_losses(conductor, RUN, yes=True, as_json=False) == ("promote x",)


def test_who_says_no_or_breaks_off_is_told_that_nothing_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*question: object, **options: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer in (lambda *question, **options: False, break_off):
        monkeypatch.setattr(typer, "confirm", answer)
        with pytest.raises(Refused) as refused:
            require_confirmation("Fence now?", False)
        assert (refused.value.summary, refused.value.reasons) == (CANCELLED, (UNCHANGED,))
