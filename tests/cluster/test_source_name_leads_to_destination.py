"""The address of a dead source leads to the new primary by now: many switch applications so. It is not the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mirror_core.decide.fence_state import FenceNextAction
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook.snapshot_reader import take_snapshot
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import rights_of
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.pending_fences import copied, debt_of, promoted
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster

ANOTHER = format_sentence("cluster_replaced_pattern")


def led_to_west(mirrored: Mirrored, folder: Path) -> Mirrored:
    """The same mirror, with a configuration by whose addresses east is west."""
    words = yaml.safe_load(mirrored.config.path.read_text())
    words["clusters"]["east"] = words["clusters"]["west"]
    path = folder / "moved.yaml"
    path.write_text(yaml.safe_dump(words))
    return replace(mirrored, config=load_config(path))


def test_a_name_that_leads_to_the_new_primary_fences_it_not(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    mirror_commands.run_sync(mirrored.link)
    moved = led_to_west(mirrored, tmp_path)
    with suspended(pair.east):
        promoted(moved)
        debt = debt_of(mirrored)
        assert (debt.action, debt.applied_at_ms) == (FenceAction.APPLY, None)
        assert not denied(pair.west, topic), "the run fenced the cluster that it promoted"

        found = check_fence(moved.link)

        assert not denied(pair.west, topic), "the watch fenced the new primary"
        assert found.action is FenceNextAction.NOTHING
        assert "correct the address" in found.alarms[0]
        assert debt_of(mirrored).applied_at_ms is None
    assert check_fence(mirrored.link).action is FenceNextAction.APPLY
    assert denied(pair.east, topic)


@pytest.mark.slow
def test_a_fence_is_owed_to_be_lifted_where_it_is(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    moved, before = led_to_west(mirrored, tmp_path), rights_of(pair.east)
    run = begin(mirrored.failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        mirrored.failover.run_step(run.id, name)
    assert moved.failover.abort(run.id).state is RunState.ABORTED
    for _ in range(2):
        assert debt_of(mirrored).action is FenceAction.LIFT
        trouble = debt_of(mirrored).trouble
        assert trouble is not None
        assert (trouble.code, trouble.subject) == ("fence_attempt_failed", "east")
        assert "correct the address" in str(trouble.values["reason"])
        assert check_fence(moved.link).alarms
    assert check_fence(mirrored.link).action is FenceNextAction.LIFT
    assert rights_of(pair.east) == before


def test_a_plan_knows_no_ends_by_another_cluster(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    produce(pair.east, topic, 3)
    moved = led_to_west(mirrored, tmp_path)
    view = take_snapshot(moved.link, mirrored.state, RunMode.UNPLANNED)
    assert "its address leads to cluster" in str(view.source)
