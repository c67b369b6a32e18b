"""The destination dies behind the fence: a file of the run lifts it, and nothing is promoted without it afterwards."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from mirror_core.decide.fence_state import FenceNextAction
from mirror_core.decide.steps import list_step_names
from mirror_core.evidence.fence_file import read_fence_file
from mirror_core.kafka.acl_requests import create_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.fence_manual_commands import lift_by_file, preview_lift
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model import timing
from mirror_core.model.errors import LostOwnership, Refused, RemoteFault
from mirror_core.model.files import Unwritable
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name
from mirror_core.model.run import RunKind, RunMode, RunState, StepState
from mirror_core.runbook import fence_recheck, promotion_steps
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.fence_acls import build_denials
from tests.support.broker_faults import killed, suspended
from tests.support.cli_process import mirrorbook
from tests.support.emergency_unfence import lift_by_hand
from tests.support.failback_runs import failback_of, failed_over
from tests.support.failover_runs import acls, app_topic, begin, denied
from tests.support.kafka_clients import Pair, produce
from tests.support.scoped_failovers import copied, through
from tests.support.sentences import format_sentence
from tests.support.topic_equality import assert_same_offsets
from tests.support.unplanned_runs import begin as begin_unplanned

pytestmark = pytest.mark.cluster

AGAIN_S: Final = 30.0
"""From the command that lifts the fence to a write of an application that is acknowledged."""


def dies(*_: object, before_change: Callable[[], None] = lambda: None, **__: object) -> None:
    """As the destination may when promotion is about to give the first right."""
    before_change()
    raise RemoteFault("the destination dies")


@pytest.mark.parametrize("seen", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_promotion_that_had_begun_goes_on_behind_a_fence_that_is_raised_again(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    with monkeypatch.context() as patched:
        patched.setattr(promotion_steps, "apply_promotion", dies)
        with pytest.raises(RemoteFault, match="the destination dies"):
            mirrored.failover.run_step(run, "promote")
    lift_by_hand(mirrored, topic)
    assert not denied(pair.east, topic)

    with monkeypatch.context() as patched:
        if not seen:  # it falls silent after its denials were put up, before it has told its log ends
            patched.setattr(fence_recheck, "wait_until_still", dies)
        mirrored.failover.run_step(run, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE

    assert not denied(pair.west, topic)
    assert denied(pair.east, topic), "applications can write on both sides"
    promoted = mirrored.state.steps[run, "promote" if seen else "switch"].evidence
    assert promoted["fence"] == "applied"
    assert promoted["written_meanwhile"] == f"{topic}-0 [10, 11)"
    told = mirrored.state.runs[run].forecast_outcome
    assert told is not None
    assert told.lost_offsets == 1, "a record that only the old source has was counted as moved"


@pytest.mark.parametrize("given", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_unplanned_run_raises_again_what_it_had_paid_or_is_refused_as_long_as_it_has_given_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = mirrored.failover.begin(mirrored.failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED).id
    done = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)
    for name in done[: done.index("promote")]:
        mirrored.failover.run_step(run, name)
    assert denied(pair.east, topic)
    if given:
        with monkeypatch.context() as patched:
            patched.setattr(promotion_steps, "apply_promotion", dies)
            with pytest.raises(RemoteFault, match="the destination dies"):
                mirrored.failover.run_step(run, "promote")
    lift_by_hand(mirrored, topic)
    assert not denied(pair.east, topic)
    if not given:
        with pytest.raises(Refused, match="somebody has lifted the fence on east"):
            mirrored.failover.drive(run)
        assert denied(pair.west, topic), "applications can write on both sides"
        assert mirrored.failover.abort(run).state is RunState.ABORTED
        return

    assert mirrored.failover.drive(run).state is RunState.DONE

    assert denied(pair.east, topic), "applications can write on both sides"
    told = mirrored.state.runs[run].forecast_outcome
    assert told is not None
    assert (told.lost_offsets, told.taken_since_offsets) == (0, 1), "it was written after east was given up"


def test_the_destination_dies_behind_the_fence_and_its_file_lets_applications_go_on(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    other = app_topic(pair)
    beside = set(build_denials([other], [f"0-{other}"]))
    with ClusterClient(mirrored.config.cluster("east")) as east:
        create_acls(east, beside)
        wait_until_acls_present(east, beside)
    said: list[str] = []
    failover = Failover(mirrored.link, mirrored.services, started_by="test", print_line=said.append)
    run = begin(failover)
    for name in ("prove", "fence"):
        failover.run_step(run, name)
    (line,) = [one for one in said if "cluster unfence" in one]
    fenced = mirrored.state.steps[run, "fence"].evidence
    command = str(fenced["if_the_destination_dies"])
    assert line == f"should west die while east is fenced: {command}"
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    assert command == f"mirrorbook cluster unfence east --from {file}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = acls(mirrored, "east")

    def unfence(*more: str, cluster: str = "east") -> subprocess.CompletedProcess[str]:
        config = ("--config", str(mirrored.config.path))
        return mirrorbook("cluster", "unfence", cluster, "--from", str(file), *config, *more)

    wrong = unfence("--yes", cluster="west")
    assert wrong.returncode == 2
    assert "nothing is lifted" in wrong.stderr
    with killed(pair.west):
        assert denied(pair.east, topic), "somebody can write behind the fence"
        shown = unfence("--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "west does not answer" in shown.stdout
        assert f"denied on east that the file does not name: 0-{other}" in shown.stdout
        nobody = unfence()
        assert nobody.returncode == 3
        assert "pass --yes" in nobody.stderr
        assert acls(mirrored, "east") == before

        lifted = unfence("--yes", "--json")
        assert lifted.returncode == 0, lifted.stderr
        assert acls(mirrored, "east") == before - set(build_denials([topic]))
        assert not denied(pair.east, topic)
        assert denied(pair.east, other), "somebody else's denial was taken away"
        assert beside <= acls(mirrored, "east")
        again = unfence("--yes")
        assert again.returncode == 0, again.stderr
        assert f"`mirrorbook mirror describe {mirrored.name}`" in again.stdout
        assert "failover abort" not in again.stdout, "whether the run is open nobody knows while west is silent"
    found = json.loads(lifted.stdout)
    assert (found["run"], found["lifted"], found["destination_answers"]) == (run, True, False)

    config = ("--config", str(mirrored.config.path))
    status = mirrorbook("failover", "status", mirrored.name, *config)
    assert format_sentence("applications_can_write_on_denials", "east", 1) in status.stdout
    assert f"Next: `mirrorbook failover abort {mirrored.name}`" in status.stdout
    assert "resume" not in status.stdout
    with pytest.raises(Refused, match="was lifted by its file at"):
        failover.drive(run)
    with pytest.raises(Refused, match="1 denials of its fence on east are gone"):
        replace(mirrored, evidence=tmp_path / "elsewhere").failover.drive(run)
    drained = mirrored.state.steps.get((run, "drain"))
    assert drained is None or drained.state is not StepState.DONE
    assert denied(pair.west, topic), "promoted without a fence"
    assert failover.abort(run).state is RunState.ABORTED
    assert not denied(pair.east, topic)
    mirrored.copy()
    assert_same_offsets(pair, [topic])


@pytest.mark.slow
def test_the_destination_dies_behind_a_fence_that_somebody_else_has_put_up_for_an_unplanned_run(
    pair: Pair, tmp_path: Path
) -> None:
    """A watcher puts up what the run owes, and knows of no file."""
    mirrored, topic = copied(pair, tmp_path)
    with killed(pair.east):
        run = begin_unplanned(mirrored.failover).id
        for name in ("settle", "stand"):
            mirrored.failover.run_step(run, name)
    stood = mirrored.state.steps[run, "stand"].evidence
    assert str(stood["fence"]).startswith("pending")
    with ClusterClient(mirrored.config.cluster("east")) as east:
        create_acls(east, build_denials([topic]))
        wait_until_acls_present(east, set(build_denials([topic])))
    with killed(pair.west):
        command = str(stood["if_the_destination_dies"]).split()
        done = mirrorbook(*command[1:], "--config", str(mirrored.config.path), "--yes")
        assert done.returncode == 0, done.stderr
        assert not denied(pair.east, topic)
        produce(pair.east, topic, 1, user="app")
    assert mirrored.failover.abort(run).state is RunState.ABORTED
    mirrored.copy()
    assert_same_offsets(pair, [topic])


@pytest.mark.timed
def test_applications_write_on_the_source_again_within_half_a_minute_of_the_command(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(timing.SCALE_VARIABLE, "1")
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "fence")
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    with killed(pair.west):
        assert denied(pair.east, topic)
        typed = time.monotonic()
        done = mirrorbook(
            "cluster", "unfence", "east", "--from", str(file), "--config", str(mirrored.config.path), "--yes"
        )
        produce(pair.east, topic, 1, user="app")
        took_s = time.monotonic() - typed
    assert done.returncode == 0, done.stderr
    print(f"{took_s:.1f} s")
    assert took_s <= AGAIN_S
    mirrored.failover.abort(run)


@pytest.mark.slow
def test_a_resume_on_another_machine_sees_the_denials_missing(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path / "here")
    run = through(mirrored, "record_lmo")
    lift_by_hand(mirrored, topic)
    there = replace(mirrored, evidence=tmp_path / "there").failover
    with pytest.raises(Refused, match=r"1 denial gone"):
        there.drive(run)
    assert denied(pair.west, topic)
    there.abort(run)


@pytest.mark.slow
def test_a_source_that_was_unfenced_and_is_silent_is_not_taken_for_fenced(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    cluster = mirrored.config.cluster("east")
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    with killed(pair.west):
        fence = read_fence_file(file)
        assert lift_by_file(mirrored.config, cluster, fence, file, lifted_by="test") == ()
        assert not denied(pair.east, topic)
    with suspended(pair.east), pytest.raises(Refused, match="was lifted by its file at"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic)
    mirrored.failover.abort(run)


def test_a_silent_destination_sends_nobody_to_a_fence_that_is_gone(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "fence")
    usual_folder = mirrored.config.path.parent / "evidence" / f"run-{run}"
    shutil.copytree(tmp_path / f"run-{run}", usual_folder)
    describe = ("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path))
    with killed(pair.west):
        assert "mirrorbook cluster unfence east --from" in mirrorbook(*describe).stderr
        lift_by_hand(mirrored, topic)
        told = mirrorbook(*describe)
        file = usual_folder / f"unfence-{run}.json"
        command = ("cluster", "unfence", "east", "--from", str(file), "--config", str(mirrored.config.path))
        shown = mirrorbook(*command, "--dry-run")
    assert told.returncode == 4
    assert "unfence" not in told.stderr
    assert "none of these DENY ACLs stands on east any more" in shown.stdout
    assert mirrored.failover.abort(run).state is RunState.ABORTED


def test_each_mirror_that_was_moved_to_a_silent_destination_is_listed(pair: Pair, tmp_path: Path) -> None:
    mirrored, _ = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE
    with killed(pair.west):
        listed = mirrorbook("mirror", "list", "--json", "--config", str(mirrored.config.path))
    assert listed.returncode == 4
    told = [row for row in json.loads(listed.stdout)["unseen"] if row["values"].get("mirror") == mirrored.name]
    assert [(row["code"], row["subject"], row["values"]["run"]) for row in told] == [
        ("active_was_announced", "west", run)
    ]


@pytest.mark.slow
def test_what_was_promoted_is_not_unfenced_while_the_destination_answers(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster = mirrored.config.cluster("east")
    command = ("cluster", "unfence", "east", "--from", str(file), "--config", str(mirrored.config.path))
    refused = mirrorbook(*command, "--yes")
    assert refused.returncode == 3
    assert "has promoted west" in refused.stderr
    fence = read_fence_file(file)
    with pytest.raises(Refused, match="has promoted west"):  # promoted while somebody read the question
        lift_by_file(mirrored.config, cluster, fence, file, lifted_by="test")
    assert mirrored.failover.drive(run).state is RunState.DONE
    with pytest.raises(Refused, match="has promoted west"):
        preview_lift(mirrored.config, cluster, fence, file)
    assert denied(pair.east, topic)
    assert read_fence_file(file).lifted_ms is None


def test_an_edited_file_lifts_no_fence_of_what_was_promoted(pair: Pair, tmp_path: Path) -> None:
    """It names the cluster that is asked whether it was promoted: whoever may write the folder chooses another one."""
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)
    for edited in (
        replace(fence, destination=ClusterName("elsewhere")),
        replace(fence, mirror=MirrorName("another"), run="another-failover-20260101T000000-0000"),
    ):
        with pytest.raises(Refused, match=f"keeps {topic} closed on east"):
            preview_lift(mirrored.config, cluster, edited, file)
        with pytest.raises(Refused, match=f"keeps {topic} closed on east"):
            lift_by_file(mirrored.config, cluster, edited, tmp_path / file.name, lifted_by="test")
        assert denied(pair.east, topic), "applications can write on both sides"


def test_an_edited_file_lifts_no_fence_while_the_true_destination_is_silent(pair: Pair, tmp_path: Path) -> None:
    """Applications may write there, where only this machine does not reach it."""
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)
    with suspended(pair.west):
        promotion = preview_lift(mirrored.config, cluster, fence, file).promotion
        assert promotion is not None, "east knows where applications were told to write"
        assert (promotion.subject, promotion.values["run"]) == ("west", run)
        for destination in ("elsewhere", "east"):
            edited = replace(fence, destination=ClusterName(destination))
            for lift in (
                lambda e=edited: preview_lift(mirrored.config, cluster, e, file),
                lambda e=edited: lift_by_file(mirrored.config, cluster, e, tmp_path / file.name, lifted_by="test"),
            ):
                with pytest.raises(Refused, match=r"no answer from west") as refused:
                    lift()
                assert "--config" in str(refused.value), "whoever knows better is told how"
        assert denied(pair.east, topic), "applications can write on both sides"


def test_a_watcher_that_fences_again_what_a_person_has_opened_says_who_did_which(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)
    with suspended(pair.west):
        assert any(
            "fences east again within 10 s" in line
            for line in preview_lift(mirrored.config, cluster, fence, file).warnings
        )
        assert lift_by_file(mirrored.config, cluster, fence, file, lifted_by="ann@desk") == ()
        assert not denied(pair.east, topic)
        shown = mirrorbook("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path))
        assert "lifted by ann@desk" in shown.stderr
    assert check_fence(mirrored.link).action is FenceNextAction.APPLY
    assert denied(pair.east, topic), "applications can write on both sides"
    restored = mirrored.state.pending_fences[mirrored.link.mirror.name].restored
    assert restored is not None
    assert restored.lifted_by == "ann@desk"
    assert restored.lifted_ms > 0
    for command in (("describe", mirrored.name), ("list",)):
        shown = mirrorbook("mirror", *command, "--config", str(mirrored.config.path))
        text = " ".join(shown.stdout.split())
        assert "removed by ann@desk" in text, command
        assert restored.by in text, command
    with suspended(pair.west):
        shown = mirrorbook("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path))
    assert "lifted by ann@desk" not in shown.stderr, "it stands again"


def test_a_failback_that_fences_again_what_a_person_has_opened_makes_the_lift_forgotten(
    pair: Pair, tmp_path: Path
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "promote")
    assert mirrored.failover.drive(run).state is RunState.DONE
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)
    with suspended(pair.west):
        assert lift_by_file(mirrored.config, cluster, fence, file, lifted_by="ann@desk") == ()
    assert not denied(pair.east, topic)
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.run_step(home.id, "salvage")
    assert denied(pair.east, topic)
    with suspended(pair.west):
        shown = mirrorbook("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path))
    assert "lifted by ann@desk" not in shown.stderr, "it stands again"


def test_nobody_is_stopped_when_the_file_cannot_be_written(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "prove")
    before = acls(mirrored, "east")
    (tmp_path / f"run-{run}" / f"unfence-{run}.json").mkdir()
    with pytest.raises(Unwritable, match="the file that lifts the fence"):
        mirrored.failover.run_step(run, "fence")
    assert acls(mirrored, "east") == before
    assert not denied(pair.east, topic)
    mirrored.failover.abort(run)


@pytest.mark.slow
def test_a_run_under_way_is_taken_over_before_its_fence_is_lifted(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "parity")
    file = tmp_path / f"run-{run}" / f"unfence-{run}.json"
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)
    outlook = preview_lift(mirrored.config, cluster, fence, file)
    assert [line for line in outlook.warnings if f"failover abort {mirrored.name}" in line]
    with StateWriter(mirrored.config.cluster("west"), make_control_id(mirrored.name)) as sleeper:
        assert lift_by_file(mirrored.config, cluster, fence, file, lifted_by="test") == ()
        with pytest.raises(LostOwnership):
            sleeper.put(sleeper.state.runs[run])
    assert not denied(pair.east, topic)
    mirrored.failover.abort(run)


def test_a_failback_that_holds_the_fence_is_named_and_not_the_file(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    (file,) = tmp_path.glob("run-*-failover-*/unfence-*.json")
    cluster, fence = mirrored.config.cluster("east"), read_fence_file(file)

    def find_reason() -> Finding:
        with pytest.raises(Refused) as refused:
            preview_lift(mirrored.config, cluster, fence, file)
        (reason,) = refused.value.findings
        assert isinstance(reason, Finding)
        return reason

    known: dict[str, object] = {"topics": (topic,), "failback": run.id, "source": "west", "cluster": "east", "run": ""}
    for answers, state in ((nullcontext(), RunState.RUNNING), (killed(pair.west), "")):
        with answers:
            reason = find_reason()
            assert (reason.code, reason.subject) == ("fence_held_by_mirror", format_reverse_name(mirrored.name))
            assert {**reason.values, **known, "failback_state": state} == reason.values
