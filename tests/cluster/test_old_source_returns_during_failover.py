"""A failover has promoted and has not ended: a source that answers meanwhile is fenced, no conductor is disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.decide.fence_state import FenceNextAction, FenceState
from mirror_core.evidence.fence_file import read_fence_file
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunMode, RunState, StepEvidence, StepState
from mirror_core.model.timing import now_ms
from mirror_core.runbook.canary_probe import CANARY_TOPIC, run_canary
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_ledger import forget_pending_fence
from mirror_core.sync.fence_acls import build_denials, list_fence_entries
from tests.support.broker_faults import killed, suspended
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin, rights_of
from tests.support.failback_runs import failback_of, failed_over
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, grant, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.pending_fences import TIMEOUT_S, copied, debt_of, lifted_by_another, stood, watching
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import STEPS, begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@contextmanager
def no_canary(mirrored: Mirrored) -> Iterator[None]:
    """The canary of this mirror may not write on the new primary."""
    west, topic = mirrored.pair.west, f"{CANARY_TOPIC}.{mirrored.name}"
    before = rights_of(west)
    grant(west, "mirror-control", ResourceType.TOPIC, topic, [AclOperation.WRITE], permission=AclPermissionType.DENY)
    ours = rights_of(west) - before
    try:
        yield
    finally:
        with as_admin(west) as client:
            delete_acls(client, ours)
            wait_until_acls_absent(client, ours)


def stuck(mirrored: Mirrored) -> Run:
    """A run whose canary has failed behind the promotion."""
    run = begin(mirrored.failover)
    with no_canary(mirrored), pytest.raises(MissingPermission):
        mirrored.failover.drive(run.id)
    taken = mirrored.failover.read_status(run.id)[1]
    assert (taken[-1].step, taken[-1].state) == ("canary", StepState.FAILED)
    return run


def test_a_source_that_answers_while_the_run_stands_is_fenced_and_people_are_called(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    with killed(pair.east):
        run = stuck(mirrored)
        found = check_fence(mirrored.link)
        assert (found.state, found.is_silent, found.alarms) == (FenceState.PENDING, True, ())
    assert not denied(pair.east, topic)
    file = read_fence_file(mirrored.services.evidence_dir / f"run-{run.id}" / f"unfence-{run.id}.json")
    assert file.topics == (topic,), "whoever puts the fence up: should west die behind it, this lifts it"

    said = mirrorbook("mirror", "watch", mirrored.name, "--once", "--config", str(mirrored.config.path))

    assert denied(pair.east, topic)
    alarm = format_sentence("answers_and_its_fence_is_pending", "east", run.id)
    assert said.returncode == 1, said
    assert alarm in said.stderr
    assert "the fence is seen on every broker" in said.stdout
    assert debt_of(mirrored).applied_at_ms is None
    shown = mirrorbook("mirror", "describe", mirrored.name, "--config", str(mirrored.config.path)).stdout
    assert alarm in " ".join(shown.split())
    plan = Failback(mirrored.link, mirrored.services, started_by="test").plan()
    assert any(alarm in warning for warning in map(str, plan.warnings))

    assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert debt_of(mirrored).applied_at_ms
    assert denied(pair.east, topic)
    assert stood(check_fence(mirrored.link))


@pytest.mark.slow
def test_a_watcher_that_waits_fences_the_source_while_the_run_stands(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    with ExitStack() as harmed:
        harmed.enter_context(suspended(pair.east))
        stuck(mirrored)
        with watching(mirrored) as watched:
            wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="the watcher sees that east is silent")
            harmed.close()
            wait_until(partial(denied, pair.east, topic), timeout_s=TIMEOUT_S, why="the watcher fences east")
            wait_until(lambda: watched.told[-1].is_exposed, timeout_s=TIMEOUT_S, why="and calls people")


@pytest.mark.slow
def test_a_conductor_in_the_middle_of_its_canary_is_not_disturbed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored, looked = copied(pair, tmp_path, topic), list[FenceNextAction]()
    with ExitStack() as harmed:
        harmed.enter_context(suspended(pair.east))

        def canary(cluster: ClusterConfig, name: MirrorName, note: str, topics: frozenset[str]) -> StepEvidence:
            harmed.close()
            looked.append(check_fence(mirrored.link).action)
            assert denied(pair.east, topic)
            assert debt_of(mirrored).applied_at_ms is None
            return run_canary(cluster, name, note, topics)

        monkeypatch.setattr("mirror_core.runbook.promotion_steps.run_canary", canary)
        assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE
    assert looked == [FenceNextAction.APPLY]
    assert debt_of(mirrored).applied_at_ms


def test_before_the_promotion_the_run_decides_and_its_abort_gives_the_source_back(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    before = rights_of(pair.east)
    with suspended(pair.east):
        run = begin(mirrored.failover)
        for name in STEPS[: STEPS.index("promote")]:
            mirrored.failover.run_step(run.id, name)
    assert debt_of(mirrored).applied_at_ms is None
    found = check_fence(mirrored.link)
    assert (found.action, found.is_held_by_run, found.alarms) == (FenceNextAction.NOTHING, True, ())
    assert not denied(pair.east, topic)
    assert mirrored.failover.abort(run.id).state is RunState.ABORTED
    assert rights_of(pair.east) == before


def test_a_planned_run_in_the_middle_that_nobody_conducts_calls_people(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    run = begin(mirrored.failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        mirrored.failover.run_step(run.id, name)
    for patience in ("CONDUCTOR_TIMEOUT_S", "_BETWEEN_TASKS_S"):
        monkeypatch.setattr(f"mirror_core.decide.run_status.{patience}", 0.0)  # let go of just now
    [alarm] = check_fence(mirrored.link).alarms
    assert f"failover {run.id} has stood still after fence" in alarm
    assert describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.OPEN_RUN].text == alarm
    assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert check_fence(mirrored.link).alarms == ()


def lifting(mirrored: Mirrored) -> None:
    """A failback that has deleted its fence, and has not forgotten the entries yet."""
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    failback.begin(failback.plan().hash)
    with (
        StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as other,
        ClusterClient(mirrored.link.source) as source,
    ):
        forget_pending_fence(other, mirrored.name)
        delete_acls(source, {entry.acl for entry in list_fence_entries(mirrored.link.mirror, other, source)})


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", [lifted_by_another, lifting])
def test_a_watcher_that_slept_until_the_fence_was_lifted_leaves_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: object
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    before = rights_of(pair.east)
    with suspended(pair.east):
        run = stuck(mirrored)
    slept = list[int]()

    def late(*arguments: object) -> None:
        if not slept:
            slept.append(1)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
            meanwhile(mirrored)  # type: ignore[operator]
        create_acls(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mirror_core.mirrors.old_source_fence.create_acls", late)
    found = check_fence(mirrored.link)
    assert slept
    assert found.action is FenceNextAction.NOTHING
    assert rights_of(pair.east) == before
    assert not denied(pair.east, topic)


def test_a_new_primary_whose_fence_was_lifted_is_fenced_again_before_its_failback_has_ended(
    pair: Pair, tmp_path: Path
) -> None:
    """Applications are home, and the failback has yet to protect them again: a watcher takes nothing over."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    home = failback.make_reverse_failover()
    assert home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id).state is RunState.DONE
    with as_admin(pair.west) as west:
        delete_acls(west, build_denials([topic]))
        wait_until_acls_absent(west, set(build_denials([topic])))

    found = check_fence(home.link)

    assert "the fence was removed and is applied again" in "".join(found.alarms)
    with as_admin(pair.west) as west:
        wait_until_acls_present(west, set(build_denials([topic])))
    assert failback.drive(run.id).state is RunState.DONE


def test_what_the_source_takes_is_counted_before_the_run_has_recorded_what_was_copied(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    with killed(pair.east):
        run = begin(mirrored.failover)
        mirrored.failover.run_steps(run.id, STEPS[: STEPS.index("stand") + 1])
    assert {status.lmo for status in mirrored.statuses.values()} == {None}
    produce(pair.east, topic, 7, user="app")

    read = ("--config", str(mirrored.config.path), "--json")
    returned = json.loads(mirrorbook("mirror", "describe", mirrored.name, *read).stdout)["returned"]
    assert (returned["subject"], returned["values"]["taken"], returned["values"]["lost"]) == ("east", 7, None)
