"""Log starts follow by the record of the hold, and by the brokers' clock."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.model.mirror import HeldDeletion
from mirror_core.model.names import Offset, Partition
from tests.support.sentences import format_sentence
from tests.support.trimmed_partitions import A, B, HeldState, results, status

HOLD_MS = 1_000
HELD = HeldDeletion(first=Offset(0), next=Offset(50), since_ms=7)


class Logs:
    """Both clusters' logs, of two partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, recorded: HeldDeletion | None = None) -> None:
        self.source, self.destination = dict.fromkeys((A, B), Offset(50)), dict.fromkeys((A, B), Offset(0))
        self.source[B] = Offset(0)
        self.clock_ms: int | None = 7
        link: Any = SimpleNamespace()
        east, west = (SimpleNamespace(name=name) for name in ("east", "west"))
        self.planner = Planner(
            link,
            cast("Any", east),
            cast("Any", west),
            hold_ms=HOLD_MS,
            read_broker_clock_ms=lambda: self.clock_ms,
            held_deletions={} if recorded is None else {A: recorded},
        )
        module = "mirror_core.dataplane.epoch_planner"
        monkeypatch.setattr(f"{module}._fetch_known_offsets", self._fetch)
        monkeypatch.setattr(f"{module}.delete_records", lambda client, starts: self.destination.update(starts))

    def _fetch(self, client: Any, partitions: list[Partition], point: Any, *, topics: Any) -> dict[Partition, Offset]:
        if point.name == "HIGH_WATERMARK":
            return dict.fromkeys(partitions, Offset(100))
        offsets = self.source if client.name == "east" else self.destination
        return {p: offsets[p] for p in partitions}

    def follow(self) -> None:
        assert self.planner.follow_log_start([A, B]) == []
        self.planner.move_log_starts()


def test_a_deletion_is_held_and_followed_when_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)
    logs.follow()
    assert (logs.planner.changed_holds, logs.destination[A]) == ({A: HELD}, 0)
    logs.clock_ms = 1_006
    logs.follow()
    assert (logs.planner.changed_holds, logs.destination[A]) == ({}, 0), "without a plan in between it began anew"
    logs.clock_ms = 1_007
    logs.follow()
    assert (logs.planner.changed_holds, logs.destination[A]) == ({}, 50)
    logs.follow()
    assert logs.planner.changed_holds == {A: None}


def test_a_process_that_takes_over_goes_by_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch, recorded=HELD)
    logs.clock_ms = 1_007
    logs.follow()
    assert logs.destination[A] == 50


def test_without_a_hold_the_record_goes_and_the_brokers_clock_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch, recorded=HELD)
    logs.planner.hold_ms = 0
    logs.planner.read_broker_clock_ms = pytest.fail
    logs.follow()
    assert (logs.planner.changed_holds, logs.destination[A]) == ({A: None}, 50)


def test_people_hear_why_nothing_follows_while_the_brokers_clock_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(monkeypatch)
    logs.clock_ms = None
    logs.follow()
    assert (logs.planner.changed_holds, logs.destination[A]) == ({}, 0)
    assert "Set message.timestamp.type=LogAppendTime on it" in logs.planner.unmoved_starts[A]
    logs.source[A] = Offset(0)
    logs.follow()
    assert logs.planner.unmoved_starts == {}


def test_a_hold_is_recorded_with_the_partition_and_people_hear_of_it_once() -> None:
    said = list[str]()
    lease, made = HeldState(status(A), status(B)), results(said)
    made.link.config = SimpleNamespace(deletion_hold_ms=lambda name: 86_400_000)  # type: ignore[misc, assignment]
    made.record_log_starts(cast("Any", lease), {}, {A: HELD})
    assert lease.state.partitions["m"] == {A: replace(status(A), held_deletion=HELD), B: status(B)}  # type: ignore[index]
    assert said == [
        format_sentence(
            "cluster_deleted_held_records_since",
            "east",
            "west",
            1,
            50,
            1,
            "1970-01-01 00:00:00.007 UTC",
            "orders-0",
            "[0, 50)",
        )
    ]
    writes = lease.writes
    made.record_log_starts(cast("Any", lease), {}, {})
    assert lease.writes == writes
    made.record_log_starts(cast("Any", lease), {}, {A: None})
    assert lease.state.partitions["m"][A] == status(A)  # type: ignore[index]
    assert len(said) == 1
