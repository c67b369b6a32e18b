"""Many topics, partitions and rights: looked up, not searched for among all; asked and changed together."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Sequence, ValuesView
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.create_partitions.v1.request import CreatePartitionsRequest
from kio.schema.errors import ErrorCode

from mirror_core.dataplane.task_runner import find_unreached
from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.kafka.log_offsets import build_describe_producers
from mirror_core.kafka.topics import (
    _MAX_CHANGES_PER_REQUEST,
    NEW_TOPIC_WAIT_S,
    NewTopic,
    TopicConfigs,
    _count_changes,
    _split_into_requests,
    create_partitions,
    delete_topics,
    wait_for_leaders,
)
from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.rights.acl_rules import SortedNames, covers
from mirror_core.sync import mirror_topics
from mirror_core.sync.mirror_topics import create_missing_topics
from mirror_core.sync.topic_errors import run_for_each_topic
from tests.support.mirror_views import MIRROR

names = st.text(alphabet="ab*.", max_size=4)


@given(name=names, pattern=st.sampled_from(Pattern), known=st.lists(names, max_size=12))
def test_names_are_covered_as_each_of_them_is(name: str, pattern: Pattern, known: list[str]) -> None:
    acl = Acl(resource=Resource.TOPIC, name=name, pattern=pattern, principal="User:a", operation=Operation.READ)
    one_by_one = sorted({each for each in known if covers(acl, each)})
    assert SortedNames(known).find_covered(acl) == one_by_one
    assert SortedNames(known).has_covered(acl) == bool(one_by_one)


class Walked(UserDict[Partition, PartitionStatus]):
    """Counts how often somebody goes through all of it."""

    walks = 0

    def values(self) -> ValuesView[PartitionStatus]:
        self.walks += 1
        return super().values()


def walks(number: int) -> int:
    """Of a plan's look at a mirror of so many topics, all of them recorded."""
    views = {f"t{n}": TopicMetadata(f"t{n}", f"id{n}", False, {0: Leader(1, 0)}, 1, 1) for n in range(number)}
    statuses = Walked(
        (
            p,
            PartitionStatus(
                partition=p,
                state=PartitionState.MIRRORING,
                source_topic_id=views[p.topic].id,
                destination_topic_id=views[p.topic].id,
            ),
        )
        for p in (Partition(name, 0) for name in views)
    )
    link: Any = SimpleNamespace(mirror=MIRROR, source=SimpleNamespace(name="east"))
    state: Any = SimpleNamespace(partitions={"m": statuses})
    cluster: Any = SimpleNamespace(
        name="west",
        timeout_s=1.0,
        metadata=lambda names: SimpleNamespace(topics=views, denied=frozenset()),
        brokers=lambda: (1,),
        call_each=lambda requests, answer: [*requests],
    )
    placement = create_missing_topics(link, state, cluster, cluster, views)
    assert placement.ready == views
    assert not placement.refused
    return statuses.walks


def test_a_plan_goes_through_what_is_recorded_as_often_for_many_topics_as_for_few() -> None:
    assert 0 < walks(3) == walks(60)


def test_a_part_that_is_looked_at_again_is_known_to_be_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two topics was created in this very moment: a right that is missing for it alone concerns it alone."""
    views = {name: TopicMetadata(name, name, False, {0: Leader(1, 0)}, 1, 1) for name in ("a", "b")}
    counts = list[int]()

    def told(client: Any, names: list[str], of: int) -> tuple[dict[str, Any], dict[str, Any]]:
        counts.append(of)
        return {name: TopicConfigs(overrides={}, effective={}) for name in names}, {}

    monkeypatch.setattr(mirror_topics, "describe_visible_configs", told)
    monkeypatch.setattr(mirror_topics, "list_known_settings", lambda *asked: frozenset())
    monkeypatch.setattr(mirror_topics, "create_topics", lambda client, new: {n.name for n in new} & {"a"})
    there = dict[str, TopicMetadata]()

    def metadata(names: Any) -> Any:
        if counts:
            there.update(views)
        return SimpleNamespace(topics={name: there[name] for name in names if name in there}, denied=frozenset())

    cluster: Any = SimpleNamespace(name="west", timeout_s=1.0, metadata=metadata, brokers=lambda: (1,))
    link: Any = SimpleNamespace(mirror=MIRROR)
    state: Any = SimpleNamespace(partitions={}, mirrors={})
    monkeypatch.setattr(
        mirror_topics, "TopicConflicts", lambda *asked: SimpleNamespace(find_conflict=lambda there: None)
    )
    monkeypatch.setattr(mirror_topics, "apply_config_changes", lambda *asked, validate_only: {})
    monkeypatch.setattr(mirror_topics, "refuse_topics_in_circles", lambda link, names: {})
    assert create_missing_topics(link, state, cluster, cluster, views).ready == views
    assert counts == [2, 2]


@pytest.mark.parametrize(("made", "raises"), [(7, True), (9, False)])
def test_the_more_new_topics_there_are_the_longer_they_may_take(
    monkeypatch: pytest.MonkeyPatch, made: int, raises: bool
) -> None:
    """Brokers tell of them when all are made."""
    names = [f"t{number}" for number in range(made)]
    now, looks = [100.0], list[float]()

    def metadata(wanted: list[str]) -> Any:
        looks.append(now[0])
        views = {name: TopicMetadata(name, name, False, {0: Leader(1, 0)}, 1, 1) for name in wanted}
        return SimpleNamespace(topics=views if now[0] >= 101.8 else {})

    monkeypatch.setattr("mirror_core.kafka.topics.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleeping(now)))
    cluster: Any = SimpleNamespace(name="west", timeout_s=1.0, metadata=metadata, mark_metadata_stale=lambda: None)
    if raises:
        with pytest.raises(Unreachable, match="cluster west: no leaders of t0, t1"):
            wait_for_leaders(cluster, names)
    else:
        wait_for_leaders(cluster, names)
    assert looks[-1] == pytest.approx(100 + 1 + made * NEW_TOPIC_WAIT_S if raises else 101.8, abs=0.11)


def test_a_broker_that_never_tells_of_new_topics_is_not_the_only_one_that_is_asked() -> None:
    asked = ["lags"]

    def metadata(wanted: list[str]) -> Any:
        views = {name: TopicMetadata(name, name, False, {0: Leader(1, 0)}, 1, 1) for name in wanted}
        return SimpleNamespace(topics={} if asked[-1] == "lags" else views)

    cluster: Any = SimpleNamespace(
        name="west", timeout_s=1.0, metadata=metadata, mark_metadata_stale=lambda: asked.append("knows")
    )
    wait_for_leaders(cluster, ["t0"])
    assert asked == ["lags", "knows"]


def sleeping(now: list[float]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        now[0] += seconds

    return sleep


def test_one_that_is_refused_among_many_costs_few_more_requests() -> None:
    asked = list[list[str]]()

    def action(wanted: list[str]) -> None:
        asked.append(wanted)
        if "t77" in wanted:
            raise RemoteFault("not t77")

    refused = run_for_each_topic(action, [f"t{n}" for n in range(256)])
    assert {name: str(error) for name, error in refused.items()} == {"t77": "not t77"}
    assert len(asked) <= 1 + 2 * 8
    done = [name for wanted in asked if "t77" not in wanted for name in wanted]
    assert sorted([*done, "t77"]) == sorted(f"t{n}" for n in range(256)), "each was done once"


def denying(denied: set[str], asked: list[list[str]]) -> Callable[[list[str]], None]:
    """As a broker, which says of each what it refuses and does all else."""

    def action(wanted: list[str]) -> None:
        asked.append(wanted)
        if mine := [name for name in wanted if name in denied]:
            raise MissingPermission("nobody may", {name: MissingPermission(f"not {name}") for name in mine})

    return action


def test_a_right_that_is_missing_for_all_is_raised() -> None:
    with pytest.raises(MissingPermission, match="nobody may"):
        run_for_each_topic(denying({"a", "b"}, []), ["a", "b"], total=2)


def test_a_right_that_is_missing_for_some_concerns_those_and_costs_one_more_request() -> None:
    asked, denied = list[list[str]](), {"t7", "t77", "t200"}
    found = run_for_each_topic(denying(denied, asked), [f"t{n}" for n in range(256)], total=300)
    assert {name: str(error) for name, error in found.items()} == {name: f"not {name}" for name in denied}
    assert all(isinstance(error, MissingPermission) for error in found.values())
    assert [len(wanted) for wanted in asked] == [256, 253]


def test_all_that_is_new_may_be_denied_beside_what_is_there_already() -> None:
    assert list(run_for_each_topic(denying({"new"}, []), ["new"], total=2)) == ["new"]


@given(st.lists(st.integers(1, 3 * _MAX_CHANGES_PER_REQUEST), max_size=30))
def test_requests_are_as_large_as_may_be_and_leave_nothing_out(sizes: list[int]) -> None:
    shares = list(_split_into_requests(range(len(sizes)), lambda key: sizes[key]))
    assert [key for share in shares for key in share] == list(range(len(sizes)))
    totals = [sum(sizes[key] for key in share) for share in shares]
    assert all(
        total <= _MAX_CHANGES_PER_REQUEST or len(share) == 1 for total, share in zip(totals, shares, strict=True)
    )
    following = [sizes[share[0]] for share in shares[1:]]
    assert all(total + size > _MAX_CHANGES_PER_REQUEST for total, size in zip(totals, following, strict=False))


def test_a_topic_counts_with_its_partitions_and_settings() -> None:
    plain = NewTopic(name="t", partitions=5, replication_factor=1, configs={"a": "1", "b": "2"})
    assert _count_changes(plain) == 8
    assert _count_changes(NewTopic(name="t", partitions=0, replication_factor=0, assignments=((1,), (2,)))) == 3


class Controller:
    """Takes all that it is asked for; brokers know the topics at once. It refuses a request of too much."""

    name, timeout_s = "west", 5.0

    def __init__(self, width: int, there: int) -> None:
        self.widths = {f"t{n}": width for n in range(there)}
        self.asked = list[int]()
        """Changes by each request."""

    def metadata(self, wanted: Iterable[str]) -> Any:
        views = {
            name: TopicMetadata(name, name, False, dict.fromkeys(range(self.widths[name]), Leader(1, 0)), 1, 1)
            for name in wanted
            if name in self.widths
        }
        return SimpleNamespace(topics=views)

    def brokers(self) -> list[int]:
        return []

    def call_controller(self, request: Any, answer: object) -> Any:
        if isinstance(request, CreatePartitionsRequest):
            self.asked.append(sum(row.count - self.widths[row.name] for row in request.topics))
            self.widths |= {str(row.name): int(row.count) for row in request.topics}
            names = [row.name for row in request.topics]
        else:
            names = list(request.topic_names)
            self.asked.append(len(names))
        rows = [SimpleNamespace(name=name, error_code=ErrorCode.none, error_message=None) for name in names]
        return SimpleNamespace(results=rows, responses=rows)

    def call_controller_each(self, requests: Sequence[Any], answer: object) -> list[Any]:
        return [self.call_controller(request, answer) for request in requests]


def test_no_more_is_widened_or_deleted_by_one_request_than_a_controller_takes() -> None:
    controller: Any = Controller(width=1, there=500)
    create_partitions(controller, dict.fromkeys(controller.widths, 31))
    assert set(controller.widths.values()) == {31}
    assert sum(controller.asked) == 500 * 30
    assert max(controller.asked) <= _MAX_CHANGES_PER_REQUEST
    controller = Controller(width=1, there=3 * _MAX_CHANGES_PER_REQUEST)
    delete_topics(controller, controller.widths)
    assert controller.asked == [_MAX_CHANGES_PER_REQUEST] * 3


def receipts(told: Iterable[tuple[str, int]]) -> Any:
    return [SimpleNamespace(partition=Partition(topic, 0), next=Offset(end)) for topic, end in told]


def test_what_a_drain_has_left_is_what_no_receipt_says_is_reached() -> None:
    ends = {Partition(topic, 0): Offset(5) for topic in "abcd"}
    told = receipts([("a", 5), ("b", 4), ("c", 6), ("c", 2)])
    assert find_unreached(ends, told) == {Partition("b", 0): 5, Partition("d", 0): 5}


def test_no_answer_about_producers_is_about_all_of_a_brokers_partitions() -> None:
    partitions = [Partition(f"t{n // 40}", n % 40) for n in range(1010)]
    requests = build_describe_producers(partitions)
    asked = [[Partition(str(t.name), int(i)) for t in one.topics for i in t.partition_indexes] for one in requests]
    assert [len(one) for one in asked] == [100] * 10 + [10]
    assert [p for one in asked for p in one] == partitions
