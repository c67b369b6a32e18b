"""What the options of `failover` and `failback` make of a conductor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.cli import failover, run_commands
from mirror_core.cli.run_commands import CompareRunner, choose_runner, make_conductor
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import BadRequest, LostOwnership
from mirror_core.model.run import RunMode
from mirror_core.runbook import failback_steps
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.failover_conductor import Failover
from tests.support.cluster_names import LINK
from tests.support.memory_state import journal_of


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
    assert said == [
        "catch_up: 5,000,000 offset(s) left, time left unknown, until east is close behind",
        "catch_up: an unknown number of offset(s) left, until east is close behind",
        "catch_up: 1,000,000 offset(s) left, about 8 s, until east is close behind",
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


def test_a_set_that_gives_its_sources_up_has_nothing_to_leave_behind() -> None:
    with pytest.raises(BadRequest):
        failover.plan_set("shop", RunMode.UNPLANNED, leave_behind=True)
