"""A topic that one may not DESCRIBE is denied, with the grant that is missing: never taken for one that is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.kafka.client import ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.reassignment import TopicIds
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import NewTopic, TopicConfigs
from mirror_core.model.errors import MissingPermission
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.runbook import failback_conductor, snapshot_reader
from mirror_core.runbook.divergent_tail_steps import TailSteps
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.step_records import RecreatedTopic
from mirror_core.state.state_records import State
from mirror_core.sync import mirror_topics as placing
from mirror_core.sync.mirror_sync import list_hidden_rows
from mirror_core.sync.mirror_topics import TopicPlacement, create_missing_topics
from tests.support.mirror_views import MIRROR
from tests.support.sentences import format_sentence

SEEN = {name: TopicMetadata(name, f"id-{name}", False, {0: Leader(1, 0)}, 1, 1) for name in ("orders", "paid")}


def cluster(denied: Collection[str] = (), there: Collection[str] = ("orders", "paid")) -> Any:
    """A cluster as its brokers answer: with the denied among what is asked for by name, without them in listings."""

    def metadata(names: Collection[str] | None = None) -> ClusterMetadata:
        asked = there if names is None else names
        found = {name: SEEN[name] for name in asked if name in there and name not in denied}
        return ClusterMetadata("E", 1, {}, found, frozenset(denied if names is not None else ()) & frozenset(asked))

    config = SimpleNamespace(user=lambda principal: "mirror")
    return SimpleNamespace(
        name="east",
        principal=None,
        config=config,
        metadata=metadata,
        brokers=lambda: (1,),
        timeout_s=1.0,
        timed_out_at={},
    )


ORDERS = RecreatedTopic(name="orders", id="id-orders", replication_factor=1, settings={})


def status(topic: str) -> PartitionStatus:
    return PartitionStatus(
        partition=Partition(topic, 0),
        state=PartitionState.MIRRORING,
        source_topic_id=f"id-{topic}",
        destination_topic_id=f"id-{topic}",
    )


def test_what_exists_is_told_only_when_all_of_it_may_be_seen() -> None:
    assert find_existing_topics(cluster(there=["paid"]), ["orders", "paid"]) == {"paid": SEEN["paid"]}
    with pytest.raises(MissingPermission) as caught:
        find_existing_topics(cluster(["orders"]), ["orders", "paid"])
    assert str(caught.value) == (format_sentence("topics_hidden_grant", "east"))


def test_a_failbacks_plan_does_not_create_and_copy_what_it_may_not_see() -> None:
    statuses = {Partition(name, 0): status(name) for name in SEEN}
    with pytest.raises(MissingPermission, match="may not DESCRIBE orders"):
        failback_conductor._snapshot_logs(cluster(["orders"]), statuses)


@pytest.mark.parametrize(
    "act",
    [
        lambda old, new: TailSteps._list_old_source(_steps(), old),
        lambda old, new: TailSteps._recreate_topics(_steps(), old, new, (ORDERS,)),
        lambda old, new: TailSteps._topics_to_recreate(_steps(), old, ["orders"]),
        lambda old, new: TailSteps._save_growth(_steps(), old, ()),
    ],
)
def test_no_step_of_a_failback_takes_a_hidden_topic_for_a_deleted_one(
    act: Callable[[Any, Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mirror_core.runbook.divergent_tail_steps.read_output", lambda *asked: SimpleNamespace(ends=_Ends())
    )
    monkeypatch.setattr("mirror_core.runbook.divergent_tail_steps.describe_configs", lambda *asked: {})
    with pytest.raises(MissingPermission, match="may not DESCRIBE orders"):
        act(cluster(["orders"]), cluster())


def _steps() -> Any:
    journal = SimpleNamespace(load_checkpoint=lambda *asked: None, save_checkpoint=lambda *saved: None)
    return SimpleNamespace(
        _topic_names=lambda: ["orders"], _list_changed_topics=lambda: ["orders"], statuses=dict, journal=journal
    )


class _Ends:
    def to_mapping(self) -> dict[Partition, Offset]:
        return {}


def test_a_hidden_topic_is_not_left_writable_when_the_others_are_demoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.runbook.failback_steps.ClusterClient", _opened(cluster(["orders"])))
    with pytest.raises(MissingPermission, match="may not DESCRIBE orders"):
        FailbackSteps._list_existing_topics(_steps(), Any, ["orders", "paid"])  # type: ignore[arg-type]


def _opened(client: Any) -> Any:
    class Opened:
        def __init__(self, *args: object) -> None: ...

        def __enter__(self) -> Any:
            return client

        def __exit__(self, *exc: object) -> None: ...

    return Opened


def test_a_plan_asks_by_name_for_what_a_listing_leaves_out() -> None:
    assert snapshot_reader._find_hidden_topics(cluster(there=["paid"]), ["orders"]).topics == frozenset(), "it is gone"
    hidden = snapshot_reader._find_hidden_topics(cluster(["orders"]), ["orders"])
    assert hidden.topics == {"orders"}
    assert "--topic orders" in hidden.grant_command
    unused: Any = SimpleNamespace()
    assert snapshot_reader._find_hidden_topics(unused, ()).topics == frozenset(), "nothing is missing: nobody is asked"


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        (cluster(there=["paid"]), FailureKind.GONE, "topic orders is deleted"),
        (cluster(["orders"]), FailureKind.DENIED, "may not DESCRIBE orders"),
    ],
)
def test_a_topic_that_is_not_listed_any_more_is_gone_or_denied_and_then_tried_again(
    source: Any, kind: FailureKind, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {Partition(name, 0): status(name) for name in SEEN}
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda link, client: client.metadata().topics)
    monkeypatch.setattr(
        epoch_planner, "create_missing_topics", lambda *asked: TopicPlacement({"paid": SEEN["paid"]}, (), {})
    )
    monkeypatch.setattr(
        epoch_planner, "fetch_topic_ids", lambda client, topics: TopicIds(dict.fromkeys(topics, frozenset()), ())
    )
    monkeypatch.setattr(
        epoch_planner,
        "_fetch_known_offsets",
        lambda client, wanted, point, topics=None: dict.fromkeys(wanted, Offset(0)),
    )
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m", failback_run="r", paused_topics=()))
    state: Any = SimpleNamespace(mirrors={}, partitions={"m": known}, active_run=lambda name: None)
    planner = Planner(link, source, cluster())
    assert not planner.plan(state, all_ends=False).failed, "metadata may lag behind"
    [change] = [c.status for c in planner.plan(state, all_ends=False).changes if c.status.partition.topic == "orders"]
    assert (change.state, change.kind) == (PartitionState.FAILED, kind)
    assert words in (change.reason or "")
    assert (change.retry_at_ms is not None) == (kind is FailureKind.DENIED)


def test_a_sync_says_of_a_recorded_topic_that_it_is_hidden_and_nothing_of_one_that_is_gone() -> None:
    known = {Partition(name, 0): status(name) for name in SEEN}
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m"))
    state = State(partitions={MirrorName("m"): known})
    [row] = list_hidden_rows(link, state, cluster(["orders"]), ["paid"])
    assert (row.subject, row.action) == ("orders", "refuse")
    assert "may not DESCRIBE orders" in row.reason
    assert list_hidden_rows(link, state, cluster(there=["paid"]), ["paid"]) == []
    stopped = replace(status("orders"), state=PartitionState.STOPPED)
    state.partitions[MirrorName("m")][stopped.partition] = stopped
    assert list_hidden_rows(link, state, cluster(["orders"]), ["paid"]) == []


def test_a_topic_that_may_not_be_seen_on_the_destination_is_not_created_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[str]()
    configs = TopicConfigs({}, {})
    monkeypatch.setattr(
        placing, "describe_visible_configs", lambda client, names, of: (dict.fromkeys(names, configs), {})
    )
    monkeypatch.setattr(placing, "list_known_settings", lambda *asked: frozenset())

    def create(client: object, new: Iterable[NewTopic]) -> frozenset[str]:
        made.extend(topic.name for topic in new)
        return frozenset()

    monkeypatch.setattr(placing, "create_topics", create)
    monkeypatch.setattr("mirror_core.sync.mirror_topics.refuse_topics_in_circles", lambda link, names: {})
    link: Any = SimpleNamespace(mirror=MIRROR)
    state: Any = SimpleNamespace(partitions={}, mirrors={})
    placement = create_missing_topics(link, state, cluster(), cluster(["orders"], there=["orders"]), SEEN)
    assert made == ["paid"]
    assert placement.failure_kinds == {"orders": FailureKind.DENIED}
    assert "--operation Describe --topic orders" in placement.refused["orders"]
    assert [row.action for row in placement.rows if row.subject == "orders"] == ["refuse"]
    with pytest.raises(MissingPermission):
        create_missing_topics(link, State(), cluster(), cluster(SEEN, there=["orders"]), SEEN)
