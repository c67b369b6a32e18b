"""A source dies beside a mirror that is paused, or with two mirrors: what each of their plans says is missing."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from mirror_core.mirrors import mirror_commands
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from tests.support.broker_faults import killed
from tests.support.data_plane_thread import TIMEOUT_S, beating, driving
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin as begin_unplanned
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def was_seen(mirrored: Mirrored, partition: Partition, end: int) -> bool:
    """Whether the data plane has recorded this end of the source."""
    observation = mirrored.state.source_observations.get(mirrored.name)
    seen = dict(observation.get_ends()) if observation else {}
    return partition in seen and seen[partition].end == Offset(end)


def test_a_paused_mirror_is_complete_up_to_its_pause_when_its_source_dies(pair: Pair, tmp_path: Path) -> None:
    topic, prefix = app_topic(pair), f"later-{secrets.token_hex(4)}-"
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic, f"{prefix}.*")
    with driving(mirrored):
        beating(mirrored, 2)
        wait_until(lambda: was_seen(mirrored, Partition(topic, 0), 20), timeout_s=TIMEOUT_S, why="it is looked at")
        mirror_commands.pause_mirror(mirrored.link)  # the data plane ends with it
    paused_ms = now_ms()
    produce(pair.east, topic, 30)
    produce(pair.east, new_topic(pair.east, 1, prefix), 7)
    with killed(pair.east):
        run = begin_unplanned(mirrored.failover)
        silent_s, listed_s = (run.plan.figures[key] for key in (FigureKey.SOURCE_SEEN_S, FigureKey.TOPICS_LISTED_S))
        assert isinstance(silent_s, float)
        assert isinstance(listed_s, float)
        assert run.started_ms - paused_ms <= 1000 * min(silent_s, listed_s) + 1_000, "what came since is in the bound"
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    evidence = next(s.evidence for s in mirrored.failover.read_status(run.id)[1] if s.step == "record_lmo")
    for figures in (run.plan.figures, evidence):
        times = figures[FigureKey.COMPLETE_UP_TO_MS]
        assert isinstance(times, dict)
        up_to_ms = times["all topics together"]
        assert up_to_ms is None or up_to_ms <= paused_ms, times
    assert mirrored.statuses[Partition(topic, 0)].lmo == 20


def test_each_of_two_mirrors_tells_of_its_own_topics_when_their_source_dies(pair: Pair, tmp_path: Path) -> None:
    """One has copied all; the data plane of the other ended before 30 records were written."""
    topics = (app_topic(pair), app_topic(pair))
    for topic in topics:
        produce(pair.east, topic, 20)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, behind = (new_mirror(pair, tmp_path / name, topic) for name, topic in zip("ab", topics, strict=True))
    with driving(whole):
        beating(whole, 2)
        with driving(behind):
            beating(behind, 2)
            wait_until(lambda: was_seen(behind, Partition(topics[1], 0), 20), timeout_s=TIMEOUT_S, why="looked at")
        produce(pair.east, topics[1], 30)
        with killed(pair.east):
            plans = {m.name: m.failover.plan(RunMode.UNPLANNED) for m in (whole, behind)}
            lost = {name: plan.figures[FigureKey.LOST_OFFSETS] for name, plan in plans.items()}
            assert lost[whole.name] == 0, plans
            assert lost[behind.name] == 0, "what it was at the last look"
            seen_s = {name: plan.figures[FigureKey.SOURCE_SEEN_S] for name, plan in plans.items()}
            assert seen_s[behind.name] > seen_s[whole.name], "its bound is the wider one"  # type: ignore[operator]
            assert topics[1] not in str(plans[whole.name].figures)
            for mirrored in (whole, behind):
                run = begin_unplanned(mirrored.failover)
                assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert whole.statuses[Partition(topics[0], 0)].lmo == 20
    assert behind.statuses[Partition(topics[1], 0)].lmo == 20
