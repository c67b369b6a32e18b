"""Replicas that are slowed down are set free in any case, also where a broker does not answer at that moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Final, cast

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.kafka.reassignment import ReplicaPlacement
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy
from mirror_core.runbook import truncation_strategies
from mirror_core.runbook.run_services import StepContext
from tests.support.memory_state import journal_of
from tests.support.sentences import format_sentence

A, B = Partition("a", 0), Partition("b", 0)
REPLICA: Final = FailbackStrategy.REPLICA


class Throttles:
    """What is set on a cluster. `silent`: its brokers take no change at present."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent = False
        self.topics: set[str] = set()
        self.rates: dict[int, str] = {}
        self.client = cast(ClusterClient, SimpleNamespace(name="east", brokers=lambda: (2,)))
        monkeypatch.setattr(truncation_strategies, "throttle_partitions", self.throttle)
        monkeypatch.setattr(truncation_strategies, "list_throttled_topics", self.throttled)
        monkeypatch.setattr(truncation_strategies, "unthrottle_topics", self.unthrottle)
        monkeypatch.setattr(truncation_strategies, "set_throttle_rate", self.set_rate)
        monkeypatch.setattr(truncation_strategies, "fetch_throttle_rate", self.rate_of)

    def throttle(self, client: ClusterClient, partitions: Iterable[Partition], leader: int, follower: int) -> None:
        self.topics |= {p.topic for p in partitions}

    def throttled(self, client: ClusterClient, topics: Iterable[str]) -> list[str]:
        return sorted(self.topics & set(topics))

    def unthrottle(self, client: ClusterClient, topics: Iterable[str]) -> None:
        if self.silent:
            raise Unreachable("cluster east: no answer")
        self.topics -= set(topics)

    def set_rate(self, client: ClusterClient, broker: int, rate: str | None) -> None:
        if rate is None:
            self.rates.pop(broker, None)
        else:
            self.rates[broker] = rate

    def rate_of(self, client: ClusterClient, broker: int) -> str | None:
        return self.rates.get(broker)

    def leave(self, acts: StepContext, partition: Partition) -> None:
        """As after a cut at whose end no broker answered."""
        with truncation_strategies._throttle_replicas(acts, self.client, 1, 2, {partition: Offset(5)}):
            self.set_rate(self.client, 2, "1")
            self.silent = True
        self.silent = False


@pytest.fixture
def acts() -> StepContext:
    link = SimpleNamespace(source=SimpleNamespace(name="east"))
    return cast(StepContext, SimpleNamespace(journal=journal_of("r", "align"), print_line=lambda line: None, link=link))


def test_throttles_that_stayed_go_before_others_are_set(acts: StepContext, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Throttles(monkeypatch)
    seen.leave(acts, A)
    assert seen.topics == {"a"}
    with truncation_strategies._throttle_replicas(acts, seen.client, 3, 2, {B: Offset(5)}) as left:
        assert left.rate is None, "our own rate would be taken for somebody else's"
        assert seen.topics == {"b"}
    assert (seen.topics, seen.rates) == (set(), {})


def test_a_cut_does_not_end_with_throttles(acts: StepContext, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Throttles(monkeypatch)
    ends = {A: Offset(9)}

    def cut(*arguments: object) -> None:
        seen.leave(acts, A)
        ends[A] = Offset(5)

    monkeypatch.setattr(truncation_strategies, "_truncate_leader", cut)
    led_by_2(monkeypatch, ends)
    truncation_strategies.truncate_by_replica(acts, seen.client, {A: Offset(5)}, {A: (2,)}, REPLICA)
    assert (seen.topics, seen.rates) == (set(), {})


def test_who_comes_after_the_election_is_told_which_broker_is_still_stopped(
    acts: StepContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, said, given = Throttles(monkeypatch), list[str](), list[Mapping[Partition, tuple[int, ...]]]()
    monkeypatch.setattr(acts, "print_line", said.append)
    led_by_2(monkeypatch, {A: Offset(5)})
    monkeypatch.setattr(truncation_strategies, "reassign", lambda client, wanted: given.append(wanted))
    truncation_strategies.truncate_by_replica(acts, seen.client, {A: Offset(5)}, {A: (1, 2)}, REPLICA)
    assert said == [format_sentence("start_broker_again", 1, "east")]
    assert given == [{A: (1, 2)}]


def test_throttles_are_gone_when_brokers_show_it(acts: StepContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what a process that died had set would be taken for somebody else's by the one that resumes."""
    seen = Throttles(monkeypatch)
    seen.leave(acts, A)
    shown = [["a"], ["a"], []]
    monkeypatch.setattr(truncation_strategies, "list_throttled_topics", lambda client, topics: shown.pop(0))
    truncation_strategies._remove_throttles(acts, seen.client)
    assert shown == []


class Following:
    """A replica that is slowed down, and fetches once at each fifth look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, clean: set[int]) -> None:
        self.looks, self.clean = 0, clean
        monkeypatch.setattr(truncation_strategies, "POLL_S", 0.0)
        for name in ("list_replica_ends", "_list_open_transactions"):
            monkeypatch.setattr(truncation_strategies, name, getattr(self, name))

    def list_replica_ends(self, client: ClusterClient, broker: int, partitions: object) -> dict[Partition, Offset]:
        self.looks += 1
        return {A: Offset(self.end)}

    @property
    def end(self) -> int:
        return self.looks // 5

    def _list_open_transactions(self, client: ClusterClient, broker: int, partitions: object) -> list[Partition]:
        return [] if self.end in self.clean else [A]


MARKS: Final = truncation_strategies._ParkingMarks(
    throttle_at=Offset(1), last_resting_offset=Offset(5), last_safe_offset=Offset(9)
)


def test_a_replica_is_held_where_no_transaction_is_open(acts: StepContext, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Throttles(monkeypatch)
    following = Following(monkeypatch, clean={4, 8})
    assert (
        truncation_strategies._park_replicas(acts, seen.client, 2, {A: MARKS}, REPLICA)
        == truncation_strategies.MIN_OPERATOR_S
    ), "people have less time there"
    assert (following.end, seen.rates) == (4, {2: "1"})
    assert (
        truncation_strategies._park_replicas(acts, seen.client, 2, {A: MARKS}, REPLICA)
        == truncation_strategies.OPERATOR_WAIT_S
    )


def test_a_replica_that_finds_no_such_place_in_time_makes_nobody_stop_a_broker(
    acts: StepContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Throttles(monkeypatch)
    Following(monkeypatch, clean={8})
    with pytest.raises(Refused, match=r"a transaction was open: a-0\. Resume to try again"):
        truncation_strategies._park_replicas(acts, seen.client, 2, {A: MARKS}, REPLICA)


def led_by_2(monkeypatch: pytest.MonkeyPatch, ends: Mapping[Partition, Offset]) -> None:
    def list_offsets(
        client: ClusterClient, partitions: Iterable[Partition], point: OffsetPoint
    ) -> dict[Partition, Offset]:
        return dict(ends)

    def replica_ends(client: ClusterClient, broker: int, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
        return {p: ends[p] for p in partitions}

    def placements(client: ClusterClient, partitions: Iterable[Partition]) -> Mapping[Partition, ReplicaPlacement]:
        return {A: ReplicaPlacement(leader=2, replicas=(2,), in_sync=(2,))}

    for name, function in (
        ("list_offsets", list_offsets),
        ("describe_producers", lambda client, partitions: {}),
        ("list_replica_ends", replica_ends),
        ("list_placements", placements),
    ):
        monkeypatch.setattr(truncation_strategies, name, function)
