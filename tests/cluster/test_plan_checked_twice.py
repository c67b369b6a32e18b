"""A planned failover asks for its plan, and again at the moment when applications are stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from mirror_core.model.audit_log import AuditEntry, AuditEntryKind
from mirror_core.model.errors import Unreachable
from mirror_core.model.run import RunMode, RunState, StepState
from mirror_core.runbook import planned_steps
from mirror_core.runbook.parity_gate import LITTLE_OFFSETS
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.state.state_topic import read_state
from tests.support.cli_process import mirrorbook, on_terminal
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    made = new_mirror(pair, tmp_path, topic)
    made.copy()
    return made


def failover(mirrored: Mirrored, *arguments: str, answer: str) -> tuple[int, str]:
    options = ("--runner", "local", "--config", str(mirrored.config.path), "--evidence", str(mirrored.evidence))
    return on_terminal("failover", *arguments, mirrored.name, *options, answer=answer)


def test_a_no_at_the_moment_stops_nobody_and_a_resume_asks_again(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    code, said = failover(mirrored, "run", answer="y\nn\n")
    assert code == 3, said
    words = " ".join(said.split())
    assert "prove: verdict: passed; records: 20;" in words
    assert "Fence now?" in words
    [run] = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    assert f"run {run.id} waits" in words
    assert run.state is RunState.RUNNING
    assert {step: s.state for (r, step), s in mirrored.state.steps.items() if r == run.id} == {"prove": StepState.DONE}
    produce(mirrored.pair.east, topic, 5, user="app")
    code, said = failover(mirrored, "resume", answer="n\n")
    assert (code, "Fence now?" in said) == (3, True), said
    options = ("--runner", "local", "--config", str(mirrored.config.path), "--evidence", str(mirrored.evidence))
    resumed = mirrorbook("failover", "resume", mirrored.name, *options)
    assert resumed.returncode == 0, resumed.stderr
    assert mirrored.state.runs[run.id].state is RunState.DONE
    assert denied(mirrored.pair.east, topic)


@pytest.mark.parametrize(
    ("options", "answer"), [((), "y\ny\n"), pytest.param(("--no-pause",), "y\n", marks=pytest.mark.slow)]
)
def test_whoever_agrees_or_wants_one_question_is_not_held_up(
    mirrored: Mirrored, options: tuple[str, ...], answer: str
) -> None:
    code, said = failover(mirrored, "run", *options, answer=answer)
    assert code == 0, said
    assert ("Fence now?" in said) is not bool(options)
    [run] = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    lines = [msgspec.json.decode(line, type=AuditEntry) for line in mirrored.state.audit_lines(run.id)]
    assert [e.body["by"] for e in lines if e.kind is AuditEntryKind.STOP_CONFIRMED] == (
        [] if options else [run.started_by]
    )
    assert denied(mirrored.pair.east, mirrored.link.mirror.topics[0])


@pytest.mark.slow
def test_the_way_home_asks_at_the_moment_too(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    options = ("--runner", "local", "--config", str(mirrored.config.path), "--evidence", str(mirrored.evidence))
    assert mirrorbook("failover", "run", mirrored.name, "--yes", *options).returncode == 0
    code, said = on_terminal("failback", "run", mirrored.name, *options, answer="y\ny\nn\n")
    words = " ".join(said.split())
    assert code == 3, said
    assert format_sentence("fence_now_question", "west", "east") in words
    assert f"resume {mirrored.name}-back` asks again" in words
    assert not denied(mirrored.pair.west, topic)
    there = mirrored.config.cluster("east")
    [home] = [r for r in read_state(there).runs.values() if r.failback_run]
    assert home.state is RunState.RUNNING
    code, said = on_terminal("failback", "resume", mirrored.name, *options, answer="y\n")
    assert code == 0, said
    assert "Fence now?" in said
    state = read_state(there)
    assert state.runs[home.id].state is RunState.DONE
    lines = [msgspec.json.decode(line, type=AuditEntry) for line in state.audit_lines(home.id)]
    assert [e.body["by"] for e in lines if e.kind is AuditEntryKind.STOP_CONFIRMED] == [home.started_by]
    assert denied(mirrored.pair.west, topic)


def test_what_came_while_a_person_was_waited_for_is_compared_before_anybody_is_stopped(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    failover.run_step(run.id, "prove")
    produce(mirrored.pair.east, topic, 2 * LITTLE_OFFSETS, user="app")
    mirrored.copy()
    produce(mirrored.pair.east, topic, 7, user="app")
    failover.drive(run.id)
    evidence = {step: s.evidence for (r, step), s in mirrored.state.steps.items() if r == run.id}
    assert evidence["parity"]["records_since_proof"] == 7
    assert evidence["parity"]["records_in_all"] == 20 + 2 * LITTLE_OFFSETS + 7


def test_what_came_during_a_long_wait_is_compared_before_the_fence_however_little(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference ends the run before anybody is stopped, as it would have in the first minute."""
    [topic] = mirrored.link.mirror.topics
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    failover.run_step(run.id, "prove")
    produce(mirrored.pair.east, topic, 11, user="app")
    mirrored.copy()
    produce(mirrored.pair.east, topic, 7, user="app")
    monkeypatch.setattr(planned_steps, "COMPARISON_MAX_AGE_S", -1.0)
    failover.drive(run.id)
    evidence = {step: s.evidence for (r, step), s in mirrored.state.steps.items() if r == run.id}
    assert evidence["parity"]["records_since_proof"] == 7
    assert evidence["parity"]["records_in_all"] == 20 + 11 + 7


def test_nobody_is_stopped_for_longer_than_the_operator_wants(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    failover.run_step(run.id, "prove")
    produce(mirrored.pair.east, topic, 5_000, user="app")  # which nobody copies
    code, said = failover_resumed(mirrored, "--gate-limit", "3")
    assert code == 3, said
    assert "the gate would still have to read 5,000 offsets, about " in said
    assert " MB, about 5.0 s: more than the 3 s that were allowed" in said
    assert not denied(mirrored.pair.east, topic)
    steps = {step: s.state for (r, step), s in mirrored.state.steps.items() if r == run.id}
    assert steps == {"prove": StepState.DONE}
    code, said = failover_resumed(mirrored, "--gate-limit", "30")
    assert code == 0, said
    assert "left to compare behind the fence: 5,001 offsets" in said, "one by whoever tried whether it may write"
    assert mirrored.state.runs[run.id].state is RunState.DONE


@pytest.mark.slow
def test_a_fence_that_failed_before_it_stopped_anybody_leaves_the_limit_as_it_is(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    [topic] = mirrored.link.mirror.topics
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    failover.run_step(run.id, "prove")

    def silent(*_: object, **__: object) -> bool:
        raise Unreachable("the source says nothing for a moment")

    with monkeypatch.context() as patched:
        patched.setattr(PlannedSteps, "check_approval", silent)
        with pytest.raises(Unreachable):
            failover.run_step(run.id, "fence")
    assert mirrored.state.steps[run.id, "fence"].state is StepState.FAILED
    produce(mirrored.pair.east, topic, 5_000, user="app")  # an hour later
    code, said = failover_resumed(mirrored, "--gate-limit", "3")
    assert code == 3, said
    assert "more than the 3 s that were allowed" in said
    assert not denied(mirrored.pair.east, topic)


def test_evidence_that_cannot_be_kept_any_more_stops_nobody(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    failover = mirrored.failover
    failover.run_step(begin(failover, RunMode.PLANNED).id, "prove")
    shutil.rmtree(mirrored.evidence)
    mirrored.evidence.write_text("somebody's own")
    code, said = failover_resumed(mirrored)
    assert code != 0
    assert "evidence" in said
    assert "is not a folder" in said
    assert not denied(mirrored.pair.east, topic)


@pytest.mark.slow
def test_a_gate_that_can_keep_no_report_lets_applications_go_on(mirrored: Mirrored) -> None:
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    failover.run_step(run.id, "prove")
    (mirrored.evidence / f"run-{run.id}" / "parity").write_text("in its way, as a full disk would be")
    assert failover.drive(run.id).state is RunState.DONE
    gate = mirrored.state.steps[run.id, "parity"].evidence
    assert (gate["parity_verdict"], gate["records_in_all"]) == ("passed", 20)
    assert str(gate["report"]).startswith("not written: parity report: ")


def failover_resumed(mirrored: Mirrored, *options: str) -> tuple[int, str]:
    where = ("--runner", "local", "--config", str(mirrored.config.path), "--evidence", str(mirrored.evidence))
    done = mirrorbook("failover", "resume", mirrored.name, *where, *options)
    return done.returncode, " ".join((done.stdout + done.stderr).split())
