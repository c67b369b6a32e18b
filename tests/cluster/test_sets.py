"""One failover of several mirrors, between real clusters: all stay or all go, and a killed one is gone on with.

The main cases run always; the others are drills, for their number.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from confluent_kafka import Producer

from mirror_core.dataplane.task_runner import LocalCopy, RecordTrimmed
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.steps import list_step_names
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError, Refused
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepRecord
from mirror_core.runbook.conductor import SetMembership
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.run_services import InProcessCopy
from mirror_core.runbook.set_conductor import SetFailed
from mirror_core.runbook.set_failover import SetFailover, find_set
from mirror_core.state import run_heartbeat
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.writer import StateWriter, make_control_id
from tests.cluster.desk import Desk, Said
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirror_sets import at_home, mirrored, moved, runs_of, topic_of
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster

STEPS = list_step_names(RunKind.FAILOVER)
SET = "shop"


@pytest.fixture
def both(pair: Pair, tmp_path: Path) -> tuple[Mirrored, Mirrored]:
    return mirrored(pair, tmp_path), mirrored(pair, tmp_path)


def run_set(
    desk: Desk,
    *members: Mirrored,
    order: SetOrder = SetOrder.SIDE_BY_SIDE,
    mode: RunMode = RunMode.PLANNED,
    more: Sequence[str] = (),
) -> Said:
    """Of these mirrors."""
    return desk.run(*typed_set(desk, *members, order=order, mode=mode), *more)


def typed_set(
    desk: Desk, *members: Mirrored, order: SetOrder = SetOrder.SIDE_BY_SIDE, mode: RunMode = RunMode.PLANNED
) -> tuple[str, ...]:
    """As it is typed, of these mirrors."""
    document = yaml.safe_load(desk.config.read_text(encoding="utf-8"))
    document["sets"] = {SET: {"mirrors": [str(one.name) for one in members], "order": str(order)}}
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    return ("failover", "run-set", SET, "--mode", str(mode), "--runner", "local", "--yes")


def steps_of(one: Mirrored) -> dict[str, StepRecord]:
    return {step: record for (run, step), record in one.state.steps.items() if run.startswith(one.name)}


def together(*members: Mirrored, copy: Callable[[MirrorLink], InProcessCopy] | None = None) -> SetFailover:
    """Of these mirrors; `copy`: the last one's, in its drain."""
    conductors = _conductors(*members)
    if copy is not None:
        last = members[-1]
        conductors[last.name] = Failover(last.link, replace(last.services, copy=copy), started_by="test")
    return SetFailover(MirrorSet(SET, tuple(conductors)), conductors, print_line=print)


def _conductors(*members: Mirrored) -> dict[MirrorName, Failover]:
    return {one.name: one.failover for one in members}


def begin(several: SetFailover) -> str:
    return several.begin(several.decide().hash, approved_by="ann, ben")


def test_two_mirrors_are_moved_side_by_side_by_one_command(desk: Desk, both: tuple[Mirrored, Mirrored]) -> None:
    for one in both:
        produce(one.pair.east, topic_of(one), 5, user="app")
    said = run_set(desk, *both)
    assert said.code == 0, said
    for one in both:
        moved(one)
        assert f"{one.name}: fence done in" in said.out
    runs = runs_of(*both)
    assert [run.state for run in runs] == [RunState.DONE] * 2
    [attempt] = {run.set_run for run in runs}
    fenced = [steps_of(one)["fence"].started_ms for one in both]
    assert max(fenced) < min(steps_of(one)["promote"].started_ms for one in both), (
        "one waited for the other's promotion"
    )
    page = (desk.folder / "evidence" / f"set-{attempt}" / "index.html").read_text(encoding="utf-8")
    assert "2 of 2 mirrors moved" in page
    for run in runs:
        assert (desk.folder / "evidence" / f"set-{attempt}" / f"../run-{run.id}/report.html").resolve().is_file()
        assert f'href="../run-{run.id}/report.html"' in page

    again = run_set(desk, *both)

    assert again.code == 3
    for one in both:
        assert f"{one.name}: mirror {one.name} is stopped" in again.err
    planned = desk.run("failover", "plan-set", SET, "--json")
    assert planned.code == 3
    assert [plan["mirror"] for plan in json.loads(planned.out)["plans"]] == [one.name for one in both]


def of_cluster(desk: Desk, pair: Pair, tmp_path: Path, count: int) -> tuple[str, list[Mirrored]]:
    """East under a name of its own, as the source of these mirrors only, and of one that is stopped."""
    source = "apps-" + secrets.token_hex(4)
    document = yaml.safe_load(desk.config.read_text(encoding="utf-8"))
    document["clusters"][source] = document["clusters"]["east"]
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    config, made = load_config(desk.config), list[Mirrored]()
    for _ in range(count + 1):
        topic = app_topic(pair)
        produce(pair.east, topic, 20)
        name = MirrorName("m-" + secrets.token_hex(4))
        create_mirror(config, name, source=source, destination="west", topics=(topic,))
        made.append(Mirrored(pair, config, name, tmp_path))
        mirror_commands.start_mirror(made[-1].link)
        made[-1].copy()
    mirror_commands.stop_mirror(made[-1].link)
    return source, made


def test_all_mirrors_from_a_cluster_move_as_one_and_a_killed_move_goes_on(
    desk: Desk, pair: Pair, tmp_path: Path
) -> None:
    source, (first, second, stopped) = of_cluster(desk, pair, tmp_path, 2)
    name = f"all-from-{source}"
    planned = desk.run("failover", "plan-set", name, "--json")
    assert planned.code == 0, planned
    document = json.loads(planned.out)
    assert [plan["mirror"] for plan in document["plans"]] == sorted([first.name, second.name])
    assert [(left["code"], left["subject"]) for left in document["left_out"]] == [
        ("mirror_stopped_left_out", stopped.name)
    ]
    conductors = _conductors(first, second)
    several = SetFailover(find_set(first.config, name), conductors, print_line=print)
    attempt = begin(several)
    several.prove(attempt)
    [run] = [run for run in runs_of(first) if run.set_run == attempt]
    assert observe_conductor(first.link.destination, first.state, run).state is ConductorState.RELEASED
    first.failover.drive(run.id)  # and its process is killed: one has moved, the other one has not

    said = desk.run("failover", "run-set", name, "--runner", "local", "--yes")

    assert said.code == 0, said
    assert f"{attempt} has not ended: " in said.out
    for one in (first, second):
        moved(one)
    assert stopped.state.active_run(stopped.name) is None
    assert not denied(pair.east, topic_of(stopped))
    assert set(find_set(first.config, name).mirrors) == {first.name, second.name}, "it can be asked what became of it"
    again = desk.run("failover", "run-set", name, "--runner", "local", "--yes")
    assert again.code == Refused.exit_code, again
    assert {run.set_run for run in runs_of(first, second)} == {attempt}

    produce(pair.west, topic_of(second), 3, user="app")
    primaries = [read_all(pair.west, topic_of(one)) for one in (first, second)]
    home = desk.run("failback", "run-set", name, "--runner", "local", "--yes", "--json")
    assert home.code == 0, home
    assert {run["plan"]["mirror"] for run in json.loads(home.out)["runs"]} == {first.name, second.name}
    for one, primary in zip((first, second), primaries, strict=True):
        assert read_all(pair.east, topic_of(one)) == primary
        at_home(one)
    assert set(find_set(first.config, name, RunKind.FAILBACK).mirrors) == {first.name, second.name}
    assert desk.run("failback", "plan-set", name).code == Refused.exit_code, "nobody is to be brought home"


def test_mirrors_towards_a_silent_cluster_are_named_where_all_of_a_cluster_are_meant(
    desk: Desk, pair: Pair, tmp_path: Path
) -> None:
    source, (only, _stopped) = of_cluster(desk, pair, tmp_path, 1)
    desk.change("north", bootstrap_servers="127.0.0.1:1")
    planned = desk.run("failover", "plan-set", f"all-from-{source}", "--json")
    assert planned.code == 0, planned
    document = json.loads(planned.out)
    assert [plan["mirror"] for plan in document["plans"]] == [only.name]
    assert ("mirrors_to_cluster_unknown", "north") in [(left["code"], left["subject"]) for left in document["left_out"]]
    nothing = desk.run("failover", "plan-set", "all-from-north")
    assert nothing.code == BadRequest.exit_code, nothing


def test_a_mirror_whose_record_cannot_be_read_is_named_where_all_of_a_cluster_are_meant(
    desk: Desk, pair: Pair, tmp_path: Path
) -> None:
    source, (only, _stopped) = of_cluster(desk, pair, tmp_path, 1)
    hidden, producer = "m-" + secrets.token_hex(4), Producer({**pair.west.client_config("admin")})

    def write(value: bytes | None) -> None:
        producer.produce(STATE_TOPIC, key=f"mirror/{hidden}".encode(), value=value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    write(b"of another version")
    try:
        planned = desk.run("failover", "plan-set", f"all-from-{source}", "--json")
    finally:
        write(None)
    assert planned.code == 0, planned
    document = json.loads(planned.out)
    assert [plan["mirror"] for plan in document["plans"]] == [only.name]
    assert ("mirror_unreadable_left_out", hidden) in [(left["code"], left["subject"]) for left in document["left_out"]]


@pytest.mark.slow
def test_when_one_may_not_be_moved_none_is_begun_and_all_reasons_are_said(
    desk: Desk, pair: Pair, tmp_path: Path
) -> None:
    well, first, second = mirrored(pair, tmp_path), *(new_mirror(pair, tmp_path, app_topic(pair)) for _ in range(2))
    said = run_set(desk, well, first, second)
    assert said.code == 3
    for one in (first, second):
        assert f"{one.name}: nothing is mirrored yet" in said.err
    assert f"- {well.name}" not in said.err
    assert runs_of(well, first, second) == []
    at_home(well)


@pytest.mark.drill
def test_when_one_cannot_be_begun_the_others_are_given_up(both: tuple[Mirrored, Mirrored], tmp_path: Path) -> None:
    well, broken = both
    (tmp_path / "full").write_text("no folder")
    services = replace(broken.services, evidence_dir=tmp_path / "full")
    conductors = {**_conductors(well), broken.name: Failover(broken.link, services, started_by="test")}
    several = SetFailover(MirrorSet(SET, tuple(conductors)), conductors, print_line=print)
    with pytest.raises(Refused, match=f"not all could be begun:\n  - {broken.name}: evidence: .* cannot be written"):
        begin(several)
    assert [(run.plan.mirror, run.state) for run in runs_of(*both)] == [(well.name, RunState.ABORTED)]
    at_home(well)


@pytest.mark.slow
def test_one_that_fails_behind_its_fence_takes_all_back(both: tuple[Mirrored, Mirrored]) -> None:
    well, broken = both

    def breaks(link: MirrorLink) -> InProcessCopy:
        def copy(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[float], None], deleted: RecordTrimmed
        ) -> None:
            assert denied(broken.pair.east, topic_of(broken)), "it fails before it is fenced"
            raise MirrorError("the copier broke")

        return copy

    several = together(well, broken, copy=breaks)
    attempt = begin(several)
    with pytest.raises(SetFailed, match="the copier broke") as failed:
        several.finish(attempt)
    assert f"{well.name}: given up: applications may write on the source" in str(failed.value)
    assert "resume" not in str(failed.value), "there is nothing to go on with"
    assert "record_lmo" in steps_of(well), "the other one was not ready"
    for one in both:
        at_home(one)
    assert [run.state for run in runs_of(*both)] == [RunState.ABORTED] * 2
    assert "0 of 2 mirrors moved" in several.page_path(attempt).read_text(encoding="utf-8")


@pytest.mark.drill
def test_one_that_fails_when_another_is_promoted_is_left_for_resume_and_the_other_is_moved(
    both: tuple[Mirrored, Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    well, broken = both
    check = PlannedSteps.check_before_promotion

    def checked(self: PlannedSteps) -> PromotionProbe:
        look = check(self)
        if self.link.mirror.name == broken.name:
            raise MirrorError("not now")
        return look

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", checked)
    several = together(well, broken)
    attempt = begin(several)
    with pytest.raises(SetFailed, match=f"{broken.name}: not now. .*`mirrorbook failover resume {broken.name}`"):
        several.finish(attempt)
    moved(well)
    assert denied(broken.pair.east, topic_of(broken)), "its fence was lifted"
    assert several.abort(attempt) == [f"{broken.name}: kept: another mirror of the set is promoted; resume it"]
    monkeypatch.undo()
    [left] = [run for run in runs_of(broken) if run.ended_ms is None]
    assert broken.failover.drive(left.id).state is RunState.DONE
    moved(broken)


@pytest.mark.drill
def test_one_that_somebody_else_takes_over_ends_it_for_all_and_aborts_nothing(both: tuple[Mirrored, Mirrored]) -> None:
    well, taken = both

    def loses(link: MirrorLink) -> InProcessCopy:
        def copy(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[float], None], deleted: RecordTrimmed
        ) -> None:
            with StateWriter(link.destination, make_control_id(taken.name)):
                pass
            LocalCopy(link)(ends, timeout_s, until, deleted)

        return copy

    several = together(well, taken, copy=loses)
    attempt = begin(several)
    with pytest.raises(LostOwnership, match="the others wait where they are: run the set again"):
        several.finish(attempt)
    assert several.format_phases(attempt) == [f"{well.name}: ready", f"{taken.name}: applications stopped"]
    for one in both:
        assert denied(one.pair.east, topic_of(one))
        assert denied(one.pair.west, topic_of(one))

    together(*both).finish(attempt)

    for one in both:
        moved(one)


@pytest.mark.slow
def test_one_that_somebody_conducts_is_not_gone_on_with(
    desk: Desk, both: tuple[Mirrored, Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    typed = typed_set(desk, *both)
    said = list[CompletedProcess[str]]()

    def copies(link: MirrorLink) -> InProcessCopy:
        def copy(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[float], None], deleted: RecordTrimmed
        ) -> None:
            said.append(mirrorbook(*typed, "--config", str(desk.config)))
            LocalCopy(link)(ends, timeout_s, until, deleted)

        return copy

    several = together(*both, copy=copies)
    several.finish(begin(several))
    [refused] = said
    assert refused.returncode == Refused.exit_code, refused
    assert "conducted by test on" in " ".join(refused.stderr.split())
    for one in both:
        moved(one)


def _begin_alone(mirrored: Mirrored, attempt: str) -> Run:
    plan = mirrored.failover.plan(RunMode.PLANNED)
    return mirrored.failover.begin(plan.hash, part_of=SetMembership(attempt, plan.hash, 0, (mirrored.name,)))


@pytest.mark.slow
def test_a_killed_one_is_gone_on_with_by_the_same_command(desk: Desk, both: tuple[Mirrored, Mirrored]) -> None:
    first, second = both
    cut_off = _begin_alone(first, "shop-cut-off")
    several = together(*both)
    assert (several.find_active_attempt(), several.find_unbegun_attempt()) == (None, "shop-cut-off")
    others = SetFailover(MirrorSet("shop-eu", (first.name, second.name)), _conductors(*both), print_line=print)
    assert (others.find_active_attempt(), others.find_unbegun_attempt()) == (None, None), "it is another set's"
    assert several.decide().reasons, "its run holds the mirror"
    several.abort("shop-cut-off")
    assert first.state.runs[cut_off.id].state is RunState.ABORTED
    attempt = begin(several)
    assert (several.find_active_attempt(), several.find_unbegun_attempt()) == (attempt, None)
    several.prove(attempt)
    [run] = [run for run in runs_of(first) if run.set_run == attempt]
    first.failover.run_steps(run.id, STEPS[: STEPS.index("promote")])  # and its process is killed

    said = run_set(desk, *both)

    assert said.code == 0, said
    assert f"{attempt} has not ended: {first.name}: ready; {second.name}: proved" in said.out
    for one in both:
        moved(one)
    assert {run.approved_by for run in runs_of(*both) if run.set_run == attempt} == {"ann, ben"}


@pytest.mark.drill
def test_dead_sources_of_a_set_are_given_up_and_a_planned_one_that_stood_still_is_taken_over(
    desk: Desk, both: tuple[Mirrored, Mirrored]
) -> None:
    first, second = both
    for one in both:
        mirror_commands.run_sync(one.link)  # who may write is asked of no source that is dead
    several = together(*both)
    attempt = begin(several)
    several.prove(attempt)
    [planned] = [run for run in runs_of(first) if run.set_run == attempt]
    first.failover.run_steps(planned.id, STEPS[: STEPS.index("drain") + 1])  # and its process is killed
    produce(first.pair.east, topic_of(second), 3, user="app")  # which nobody copies any more
    copied = {one.name: read_all(one.pair.west, topic_of(one)) for one in both}
    with killed(first.pair.east):
        said = run_set(desk, *both, mode=RunMode.UNPLANNED)
        assert said.code == 0, said
        for one in both:
            assert one.state.mirrors[one.name].desired is DesiredState.STOPPED
            assert not denied(one.pair.west, topic_of(one))
            assert read_all(one.pair.west, topic_of(one))[: len(copied[one.name])] == copied[one.name]
    states = sorted((run.plan.mode, run.state) for run in runs_of(*both))
    assert states == [(RunMode.PLANNED, RunState.SUPERSEDED)] * 2 + [(RunMode.UNPLANNED, RunState.DONE)] * 2
    assert several.find_active_attempt() is None


@pytest.mark.drill
def test_in_order_the_second_is_not_stopped_before_the_first_is_done(
    desk: Desk, both: tuple[Mirrored, Mirrored]
) -> None:
    said = run_set(desk, *both, order=SetOrder.IN_ORDER, more=("--json",))
    assert said.code == 0, said
    assert {run["id"]: run["state"] for run in json.loads(said.out)["runs"]} == {r.id: r.state for r in runs_of(*both)}
    first, second = (steps_of(one) for one in both)
    assert second["prove"].started_ms < first["fence"].started_ms
    assert (first["report"].ended_ms or 0) <= second["fence"].started_ms
    for one in both:
        moved(one)


def test_an_unknown_set_is_a_bad_request(desk: Desk) -> None:
    said = desk.run("failover", "plan-set", "nothing")
    assert (said.code, "unknown set 'nothing'" in said.err) == (2, True)
    assert MirrorName("nothing") not in said.out
