"""`failback run` and `resume` ask at the moment, too: before the failover that leads home stops applications."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from mirror_core.cli import failback, failover, run_commands
from mirror_core.cli.command_options import UNCHANGED
from mirror_core.decide.approval_rules import must_confirm_before_fence
from mirror_core.decide.steps import find_no_return_step, list_step_names
from mirror_core.model.errors import Refused
from mirror_core.model.findings import Finding
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    FailbackStrategy,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
    shorten_hash,
)
from tests.support.cluster_names import LINK
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence

BACK = replace(MIRROR, name=MirrorName("m-back"), source=MIRROR.destination, destination=MIRROR.source)
HOME = replace(RUN, id="m-back-failover-1", plan=replace(RUN.plan, mirror=BACK.name))
PROOF = StepRecord(
    run=HOME.id,
    step="prove",
    state=StepState.DONE,
    attempt=1,
    started_ms=1,
    ended_ms=2,
    evidence={"records": 7, "left_for_the_gate": "9 offsets, about 0.2 s"},
)


@pytest.mark.parametrize("mode", RunMode)
@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("noticed", [False, True])
def test_only_a_planned_run_that_applications_do_not_notice_yet_asks(
    mode: RunMode, state: RunState, noticed: bool
) -> None:
    run = replace(RUN, state=state, plan=replace(RUN.plan, mode=mode))
    asks = must_confirm_before_fence(run, is_noticed=noticed)
    assert asks is (mode is RunMode.PLANNED and state is RunState.RUNNING and not noticed)


@dataclass(slots=True)
class Stage:
    """Both conductors of a failback that has come to its way home; what they did, in order."""

    under_way: Run | None = None
    noticed: bool = False
    saved: int = 0
    ended_ms: int | None = None
    did: list[str] = field(default_factory=list)

    KIND = RunKind.FAILOVER
    link = replace(LINK, mirror=BACK)
    started_by = "ann@desk"

    # -- the failover that leads home

    def find_active_run(self) -> Run | None:
        return self.under_way

    def decide(self) -> Any:
        return SimpleNamespace(plan=HOME.plan, reasons=())

    def begin(self, plan_hash: str, choice: object = None, *, approved_by: object, silent: bool = False) -> Run:
        self.did.append("begin")
        return HOME

    def has_disturbed(self, run: Run) -> bool:
        return self.noticed

    def run_steps(self, run_id: str, step_names: Sequence[str], *, agreed_by: str = "") -> tuple[StepRecord, ...]:
        self.did.append(f"take {', '.join(step_names)}")
        evidence: StepEvidence = {"records": self.saved, "folder": "/evidence/salvage"}
        return (replace(PROOF, step="salvage", evidence=evidence),) if "salvage" in step_names else (PROOF,)

    def read_status(self, run_id: str) -> tuple[Run, tuple[StepRecord, ...]]:
        return replace(HOME, ended_ms=self.ended_ms), ()

    def refuse_conducted(self, run_id: str, title: str, **options: bool) -> None:
        self.did.append("look who conducts")

    def drive(self, run_id: str, *, agreed_by: str = "") -> Run:
        self.did.append(f"drive {run_id} agreed by {agreed_by or 'nobody'}")
        return replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))

    # -- the failback

    def make_reverse_failover(self) -> Stage:
        return self


FAILBACK = replace(RUN, id="m-failback-1", plan=replace(RUN.plan, kind=RunKind.FAILBACK))
FAILBACK_STEPS = list_step_names(RunKind.FAILBACK)[
    : list_step_names(RunKind.FAILBACK).index(find_no_return_step(RunKind.FAILBACK))
]
DRIVEN, ALL = f"drive {FAILBACK.id} agreed by nobody", f"drive {HOME.id} agreed by {{}}"


def go_on(stage: Stage, *, no_pause: bool = False, yes: bool = False, as_json: bool = False) -> None:
    failback._run_to_end(cast("Any", stage), FAILBACK, no_pause=no_pause, yes=yes, as_json=as_json)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were put on a terminal, where somebody says yes to all."""
    questions = list[str]()

    def confirm(question: str, default: bool) -> bool:
        questions.append(question)
        return True

    def type_name(question: str, **options: object) -> str:
        questions.append(question)
        return BACK.name

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(typer, "prompt", type_name)
    for name in ("print_outcome", "print_plan"):
        monkeypatch.setattr(failback, name, lambda *arguments, **options: None)
    monkeypatch.setattr(run_commands, "print_plan", lambda *arguments, **options: None)
    monkeypatch.setattr(run_commands, "read_run_outcome", lambda link, run: ())
    monkeypatch.setattr(run_commands, "read_broker_time_ms", lambda cluster: 1)
    return questions


def test_somebody_names_the_moment_and_the_journal_keeps_who(asked: list[str]) -> None:
    go_on(stage := Stage())
    assert [question.partition("?")[0] for question in asked] == [
        f"Run plan {shorten_hash(HOME.plan.hash)}: bring applications home to east",
        "Fence now",
    ]
    assert format_sentence("nobody_can_write_any_more", "west", "east") in asked[-1]
    assert stage.did == [
        *(SAVE, DRIVEN, "begin", "take prove", "look who conducts", ALL.format("ann@desk"), DRIVEN),
    ]


@pytest.mark.parametrize(("no_pause", "yes"), [(True, False), (False, True)])
def test_who_wants_no_second_question_is_not_asked(asked: list[str], no_pause: bool, yes: bool) -> None:
    go_on(stage := Stage(), no_pause=no_pause, yes=yes)
    assert not [question for question in asked if "Fence now" in question]
    words = [" ".join(question.split()) for question in asked]
    assert [question for question in words if "without asking again before they are stopped" in question] == words
    assert len(words) == no_pause
    assert stage.did == [DRIVEN, "begin", ALL.format("nobody"), DRIVEN]


@pytest.mark.parametrize("ended_ms", [None, 1])
def test_a_no_at_the_moment_stops_nobody(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, ended_ms: int | None
) -> None:
    """`ended_ms`: somebody else has resumed or aborted it while the question stood."""
    monkeypatch.setattr(typer, "confirm", lambda question, default: "Fence now" not in question)
    stage = Stage(ended_ms=ended_ms)
    with pytest.raises(Refused) as refused:
        go_on(stage)
    assert refused.value.exit_code == 3
    waits = f"run {HOME.id} waits: `mirrorbook failover resume m-back` asks again, `mirrorbook failover abort m-back`"
    (reason,) = refused.value.reasons
    assert (waits in reason, "`mirrorbook failover status m-back`" in reason) == (
        ended_ms is None,
        ended_ms is not None,
    )
    assert stage.did == [SAVE, DRIVEN, "begin", "take prove"]


@pytest.mark.parametrize(("noticed", "yes"), [(False, False), (True, False), (False, True)])
def test_who_resumes_a_run_of_which_nobody_notices_anything_is_asked_at_the_moment(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, noticed: bool, yes: bool
) -> None:
    """Its conductor may still wait for an answer elsewhere."""
    stage = Stage(noticed=noticed)
    monkeypatch.setattr(failover, "find_run", lambda *given: (replace(LINK, mirror=BACK), HOME))
    monkeypatch.setattr(failover, "make_conductor", lambda *given, **options: stage)
    for name in ("refuse_if_conducted", "print_outcome"):
        monkeypatch.setattr(failover, name, lambda by, run, **options: None)
    monkeypatch.setattr(failover, "confirm_again", lambda by, run, **options: "")
    monkeypatch.setattr(failover, "status_on_failure", lambda by, run, *failures: nullcontext())
    failover.resume("m-back", yes=yes)
    must_ask = not noticed and not yes
    assert [question.split(" now?")[0] for question in asked] == ["Fence"] * must_ask
    assert stage.did[-1] == ALL.format("ann@desk" if must_ask else "nobody")


def test_a_no_to_the_way_home_says_that_the_failback_waits_and_how_it_stands(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed the old source: `nothing was changed` would be wrong."""
    monkeypatch.setattr(typer, "confirm", lambda question, default: "Run plan" not in question)
    monkeypatch.setattr(run_commands, "read_run_outcome", lambda link, run: (f"status of {run.id}",))
    stage = Stage()
    with pytest.raises(Refused) as refused:
        go_on(stage)
    assert UNCHANGED not in str(refused.value)
    assert f"{FAILBACK.id} waits: `mirrorbook failback resume m-back`" in str(refused.value)
    assert refused.value.__notes__ == [f"status of {FAILBACK.id}"]
    assert stage.did == [SAVE, DRIVEN]


def test_a_run_without_a_terminal_waits_for_no_answer(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun on one, and is gone on with by a script."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(failback, "confirm_again", lambda by, run, **options: "")
    stage = Stage(under_way=HOME)
    with pytest.raises(Refused, match=r"pass --yes, or run it in a terminal\. run m-back-failover-1 waits"):
        go_on(stage)
    assert asked == []
    assert stage.did[-1] == "take prove"


@pytest.mark.parametrize(
    ("run", "noticed"),
    [
        (HOME, True),
        (replace(HOME, state=RunState.ABORTING), False),
        (replace(HOME, plan=replace(HOME.plan, mode=RunMode.UNPLANNED)), False),
    ],
)
def test_nobody_is_asked_while_applications_wait_or_of_what_has_no_such_moment(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, run: Run, noticed: bool
) -> None:
    monkeypatch.setattr(failback, "confirm_again", lambda by, run, **options: "")
    go_on(stage := Stage(under_way=run, noticed=noticed))
    assert asked == []
    assert stage.did[-2:] == [ALL.format("nobody"), DRIVEN]


def test_what_was_proved_does_not_stand_in_what_a_machine_reads(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    go_on(Stage(), as_json=True)
    said = capsys.readouterr()
    assert "prove: records: 7" in said.err
    assert "left to compare while nobody can write: 9 offsets, about 0.2 s" in said.err
    assert said.out == ""


SAVE = f"take {', '.join(FAILBACK_STEPS)}"


def test_a_salvage_is_seen_before_anything_is_discarded(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    go_on(stage := Stage(saved=464))
    assert str(Finding("records_to_discard", "east", deleted=[])) in " ".join(asked[0].split())
    assert f"Type {BACK.name} to go on" in asked[0]
    assert stage.did[:3] == [SAVE, "look who conducts", f"drive {FAILBACK.id} agreed by ann@desk"]
    saved = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("saved"))
    assert "464 records" in saved
    assert saved.endswith("/evidence/salvage")


@pytest.mark.parametrize(("discarded", "is_explained"), [(786, True), (700, False), (None, False)])
def test_a_salvage_of_fewer_records_than_offsets_says_why(
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    discarded: int | None,
    is_explained: bool,
) -> None:
    plan = replace(FAILBACK.plan, discarded=discarded)
    monkeypatch.setattr(f"{__name__}.FAILBACK", replace(FAILBACK, plan=plan))
    go_on(Stage(saved=700))
    shown = " ".join(capsys.readouterr().out.split())
    assert (str(Finding("offsets_without_record", "east", offsets=786)) in shown) is is_explained
    assert [label for label, _ in failback._list_saved(plan, BACK, 700, ("/s",))] == (
        ["saved", "of"] if is_explained else ["saved"]
    ), "the question of a set, too"


def test_before_a_topic_is_deleted_the_question_says_so_and_the_folder_stands_once(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strategies = {"orders": FailbackStrategy.RECREATE, "bills": FailbackStrategy.HANDOVER}
    monkeypatch.setattr(f"{__name__}.FAILBACK", replace(FAILBACK, plan=replace(FAILBACK.plan, strategies=strategies)))
    go_on(Stage(saved=464))
    shown = " ".join(capsys.readouterr().out.split())
    assert "deleted on west: 1 topic (orders)" in shown
    assert "truncated on west: bills" in shown
    assert shown.count("/evidence/salvage") == 1
    assert "Topic orders is deleted there" in " ".join(asked[0].split())


def test_a_no_after_the_salvage_discards_nothing(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for reply in ("", "y"):
        monkeypatch.setattr(typer, "prompt", lambda question, reply=reply, **options: reply)
        stage = Stage(saved=464)
        with pytest.raises(Refused, match="failback resume m-back` asks again"):
            go_on(stage)
        assert stage.did == [SAVE]


@pytest.mark.parametrize("unattended", ["yes", "no_pause", "no terminal", "align has begun"])
def test_nobody_is_waited_for_after_a_salvage_who_is_not_there(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, unattended: str
) -> None:
    if unattended == "no terminal":
        monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
        monkeypatch.setattr(failback, "confirm_plan", lambda *arguments, **options: True)
    stage = Stage(saved=464, noticed=unattended == "align has begun")
    go_on(stage, yes=unattended == "yes", no_pause=unattended in ("no_pause", "no terminal"))
    assert stage.did[0] == DRIVEN
    assert not [question for question in asked if "Type " in question]


class Hung(Stage):
    """All is proved; another process has taken the run to stop applications, and hangs while its heart beats."""

    mine = False

    def run_steps(self, run_id: str, step_names: Sequence[str], *, agreed_by: str = "") -> tuple[StepRecord, ...]:
        return (PROOF,)  # nothing is left to be taken, so the run is taken from nobody

    def refuse_conducted(self, run_id: str, title: str, **options: bool) -> None:
        if not self.mine:
            raise Refused(title, ["process 7 on desk conducts it"], "run_conducted")

    def drive(self, run_id: str, *, agreed_by: str = "") -> Any:
        self.mine = True
        return Stage.drive(self, run_id, agreed_by=agreed_by)


@pytest.mark.parametrize("take_over", [True, False])
def test_who_takes_the_way_home_over_has_it_after_the_question(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, take_over: bool
) -> None:
    stage = Hung(under_way=HOME)
    done = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    home: Any = SimpleNamespace(
        link=stage.link,
        has_disturbed=lambda run: True,
        drive=lambda run_id, *, agreed_by="": done,
        make_reverse_failover=lambda: stage,
    )
    monkeypatch.setattr(failback, "confirm_again", lambda by, run, **options: "")

    def go_on() -> None:
        failback._run_to_end(home, FAILBACK, take_over=take_over, no_pause=False, yes=False, as_json=False)

    if take_over:
        go_on()
        assert any(HOME.id in did for did in stage.did)
    else:
        with pytest.raises(Refused, match="process 7 on desk conducts it"):
            go_on()
        assert not any("drive" in did for did in stage.did)
