"""What the source deletes before it is copied is told: with exact offsets, once, and whoever dies meanwhile."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import NeverCopied
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.cluster_admin import as_admin
from tests.support.failover_runs import app_topic
from tests.support.gap_logs import assert_equal, bounds
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.shifted_clock import ShiftedClock
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster


def cut(cluster: SandboxCluster, topic: str, start: int) -> None:
    with as_admin(cluster) as client:
        delete_records(client, {Partition(topic, 0): Offset(start)})


def overtaken(pair: Pair, topic: str) -> None:
    """Offsets 20 to 34 are deleted while nobody copies; five more are left."""
    produce(pair.east, topic, 20)
    cut(pair.east, topic, 35)


def never(mirrored: Mirrored) -> NeverCopied | None:
    missed = [s.never_copied for s in mirrored.statuses.values() if s.never_copied]
    assert len(missed) <= 1
    return missed[0] if missed else None


def assert_told(mirrored: Mirrored, offsets: int, first: int, end: int) -> None:
    found = never(mirrored)
    assert found is not None
    assert (found.offsets, found.first, found.next) == (offsets, first, end)


def test_it_is_told_with_its_offsets_and_not_again(desk: Desk) -> None:
    pair, topic = desk.pair, new_topic(desk.pair.east)
    produce(pair.east, topic, 20)
    mirrored = desk.started(topic)
    mirrored.copy()
    copy = ("replicate", mirrored.name, "--runner", "local", "--until-caught-up")
    assert "deleted before they were copied: 0\n" in desk.run(*copy).out
    overtaken(pair, topic)

    said = desk.run(*copy)
    assert said.code == 0
    words = format_sentence("offsets_were_deleted_there_before_they", 15)
    assert f"cluster east: {words}: {topic}-0 (15)" in said.out
    assert "deleted before they were copied: 15\n" in said.out
    assert_equal(pair, topic, records=5)
    assert_told(mirrored, 15, 20, 35)

    before = never(mirrored)
    again = json.loads(desk.run(*copy, "--json").out)
    assert (again["never_copied"], again["caught_up"]) == ({}, True)
    assert never(mirrored) == before

    described = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)
    assert before is not None
    assert described["rows"][0]["never_copied"] == {
        **{"offsets": 15, "first": 20, "next": 35},
        **{"since_ms": before.since_ms, "newest_ms": before.newest_ms},
    }
    assert f"{topic}-0 (15, the last of them [20, 35))" in described["facts"]["never_copied"]["text"]
    assert "[20, 35)" in desk.run("mirror", "describe", mirrored.name).out
    warnings = tuple(map(str, mirrored.failover.plan(RunMode.PLANNED).warnings))
    assert [
        w for w in warnings if w.startswith(format_sentence("deleted_offsets_before_they_were_copied", "east", "west"))
    ]


def test_a_new_mirror_of_a_log_that_begins_late_has_missed_nothing(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    cut(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    assert replicate(mirrored.link).never_copied == {}
    assert never(mirrored) is None
    overtaken(pair, topic)
    assert replicate(mirrored.link).never_copied == {Partition(topic, 0): 15}
    assert_told(mirrored, 15, 20, 35)


@pytest.mark.parametrize(
    ("room", "act", "told"),
    [(EpochResults, "_put_never_copied", False), (ClaimBoard, "mark_recorded", True)],
    ids=["not recorded", "not answered"],
)
def test_a_driver_that_dies_before_its_task_goes_on_neither_forgets_it_nor_counts_it_twice(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: type, act: str, told: bool
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    overtaken(pair, topic)

    def dies(*_: object, called: list[int]) -> None:
        called.append(1)
        raise BadRequest("the driver dies")

    calls: list[int] = []
    with monkeypatch.context() as dying:
        dying.setattr(room, act, partial(dies, called=calls))
        with pytest.raises(BadRequest, match="the driver dies"):
            replicate(mirrored.link)
    assert calls
    assert bounds(pair.west, topic)[Partition(topic, 0)][1] == 20, "its task went on before that"
    assert (never(mirrored) is not None) == told
    mirrored.copy()
    assert_equal(pair, topic, records=5)
    assert_told(mirrored, 15, 20, 35)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0, 2])
def test_the_drain_of_a_failover_records_it_before_it_goes_on(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """And dates it by the brokers' clock."""
    topic, other = app_topic(pair), app_topic(pair)
    for one in (topic, other):
        produce(pair.east, one, 20)
    mirrored = new_mirror(pair, tmp_path, topic, other)
    mirrored.copy()
    overtaken(pair, topic)
    failover = mirrored.failover
    began_ms, clock.hours = now_ms(), hours
    assert failover.drive(begin(failover, RunMode.PLANNED).id).state is RunState.DONE
    clock.hours = 0
    assert_told(mirrored, 15, 20, 35)
    missed = never(mirrored)
    assert missed is not None
    assert began_ms - MAX_CLOCK_SKEW_MS <= missed.since_ms <= now_ms() + MAX_CLOCK_SKEW_MS
    assert_equal(pair, topic, records=5)
