"""What somebody deletes on the source stays on the destination for the hold, and follows afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.decide.gaps_and_resume import MAX_MARKED_START
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.topics import delete_records
from mirror_core.model.config_sections import MirrorSections
from mirror_core.model.errors import MirrorError
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import HeldDeletion
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy, RunMode, RunState
from mirror_core.state.state_records import PartitionRecord
from tests.cluster.desk import Desk
from tests.cluster.links import writer_of
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import content, failback_of, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.gap_logs import assert_equal, bounds
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.log_shapes import Row
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence
from tests.support.topic_equality import assert_parity

pytestmark = pytest.mark.cluster
DAY_MS = 86_400_000


def cut(pair: Pair, topic: str, start: int) -> None:
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(start)})


def with_hold(mirrored: Mirrored, hold_ms: int = DAY_MS) -> Mirrored:
    sections = MirrorSections(deletion_holds_ms={mirrored.name: hold_ms})
    return replace(mirrored, config=replace(mirrored.config, mirrors=sections))


def held(mirrored: Mirrored, topic: str) -> HeldDeletion | None:
    return mirrored.statuses[Partition(topic, 0)].held_deletion


def held_range(mirrored: Mirrored, topic: str) -> tuple[int, int] | None:
    found = held(mirrored, topic)
    return None if found is None else (found.first, found.next)


def start_on_west(pair: Pair, topic: str) -> int:
    return bounds(pair.west, topic)[Partition(topic, 0)][0]


def dies(*_: object) -> None:
    raise MirrorError("the driver dies")


def a_day_passes(mirrored: Mirrored, topic: str) -> None:
    """As the state topic would have it."""
    status = mirrored.statuses[Partition(topic, 0)]
    assert status.held_deletion is not None
    earlier = replace(status.held_deletion, since_ms=status.held_deletion.since_ms - DAY_MS)
    with writer_of(mirrored.link) as writer:
        writer.put(PartitionRecord(mirrored.name, replace(status, held_deletion=earlier)))


def test_the_copy_keeps_what_is_deleted_on_the_source_until_the_hold_is_taken_away(desk: Desk) -> None:
    pair, topic = desk.pair, new_topic(desk.pair.east)
    sent = produce(pair.east, topic, 20)
    mirrored = desk.started(topic)
    mirrored.copy()
    copy = ("replicate", mirrored.name, "--runner", "local", "--until-caught-up")

    def hold(text: str) -> None:
        document: dict[str, Any] = yaml.safe_load(desk.config.read_text(encoding="utf-8"))
        document["mirrors"] = {mirrored.name: {"hold_deletions": text}}
        desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    def described() -> str:
        facts = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)["facts"]
        return str(facts["held_deletions"]["text"])

    assert described() == "none: deletions are followed at once"
    hold("24h")
    assert described() == "for 1 d: none now"
    cut(pair, topic, 12)
    said = desk.run(*copy)
    assert said.code == 0
    assert (format_sentence("cluster_deleted_held_records", "east", "west", 1, 12)) in said.out
    assert read_all(pair.west, topic) == sent
    first = held(mirrored, topic)
    assert first is not None

    cut(pair, topic, 15)
    sent += produce(pair.east, topic, 5)
    assert desk.run(*copy).code == 0, "another process, which has taken the lease over"
    assert held(mirrored, topic) == first, "the hold began anew"
    assert read_all(pair.west, topic) == sent
    assert described().endswith(f"; their offsets: {topic}-0 [0, 12)")
    assert described().startswith(format_sentence("held_deletions_for_a_day", 1, 12, 1))
    assert_parity(mirrored)
    plan = desk.run("failover", "plan", mirrored.name)
    assert "deleted on the source, readable on the destination" in " ".join(plan.out.split())

    hold("0")
    assert desk.run(*copy).code == 0
    assert_equal(pair, topic, records=10)
    assert held(mirrored, topic) is None


def test_when_the_hold_is_over_the_copy_follows_and_what_was_deleted_meanwhile_waits_anew(
    pair: Pair, tmp_path: Path
) -> None:
    topic = new_topic(pair.east)
    sent = produce(pair.east, topic, 20)
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    mirrored.copy()
    cut(pair, topic, 8)
    mirrored.copy()
    cut(pair, topic, 15)
    assert (held_range(mirrored, topic), start_on_west(pair, topic)) == ((0, 8), 0)
    a_day_passes(mirrored, topic)
    mirrored.copy()
    assert read_all(pair.west, topic) == sent[8:]
    mirrored.copy()
    assert (held_range(mirrored, topic), start_on_west(pair, topic)) == ((8, 15), 8)
    a_day_passes(mirrored, topic)
    mirrored.copy()
    mirrored.copy()
    assert_equal(pair, topic, records=5)
    assert held(mirrored, topic) is None


def test_nothing_is_deleted_whose_hold_could_not_be_recorded(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    sent = produce(pair.east, topic, 20)
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    mirrored.copy()
    cut(pair, topic, 8)
    with monkeypatch.context() as dying:
        dying.setattr(EpochResults, "record_log_starts", dies)
        with pytest.raises(MirrorError, match="the driver dies"):
            mirrored.copy()
    assert (held(mirrored, topic), read_all(pair.west, topic)) == (None, sent)
    mirrored.copy()
    assert (held_range(mirrored, topic), read_all(pair.west, topic)) == ((0, 8), sent)


def test_what_the_source_deletes_far_beyond_the_copy_costs_nothing_that_is_held(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    sent = produce(pair.east, topic, 20)
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    mirrored.copy()
    end = 20 + MAX_MARKED_START + 50
    many = log_shapes.new_producer(pair.east, linger_ms="1000", batch_num_messages="100000", compression_type="zstd")
    log_shapes.send(many, topic, (Row(key=b"k", value=b"") for _ in range(20, end)))
    cut(pair, topic, end)
    later = produce(pair.east, topic, 5)
    mirrored.copy()
    assert read_all(pair.west, topic) == [*sent, *later]
    assert held_range(mirrored, topic) == (0, end)


def test_a_planned_failover_is_no_way_round_the_hold(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    mirrored.copy()
    cut(pair, topic, 8)
    mirrored.copy()
    cut(pair, topic, 15)  # at the last moment
    failover = mirrored.failover
    figures = failover.plan(RunMode.PLANNED).figures
    assert figures[FigureKey.HELD_RANGES] == (f"{topic}-0 [0, 8)",)
    run = failover.drive(begin(failover))
    assert run.state is RunState.DONE
    _, steps = failover.read_status(run.id)
    drained = next(step for step in steps if step.step == "drain")
    assert drained.evidence["held_deletions"] == f"15 offsets held: {topic}-0 (15)"
    assert read_all(pair.west, topic) == sent
    assert not denied(pair.west, topic)


@pytest.mark.slow
def test_a_planned_failover_deletes_what_is_due_and_a_failback_brings_the_rest_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = with_hold(new_mirror(pair, tmp_path, topic))
    mirrored.copy()
    cut(pair, topic, 8)
    mirrored.copy()
    a_day_passes(mirrored, topic)
    cut(pair, topic, 15)
    failover = mirrored.failover
    assert failover.drive(begin(failover)).state is RunState.DONE
    assert read_all(pair.west, topic) == sent[8:]

    failback = failback_of(mirrored)
    choice = AllowedStrategies(topics={topic: FailbackStrategy.RECREATE})
    run = failback.begin(failback.plan(choice).hash, choice)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert content(read_all(pair.east, topic)) == sent[8:]
