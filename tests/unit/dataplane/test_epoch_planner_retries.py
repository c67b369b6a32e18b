"""Which FAILED partitions the data plane tries again, and when."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.epoch_planner import (
    COPIED_STATES,
    RETRIED_KINDS,
    RETRY_INTERVAL_S,
    Planner,
    compute_retry_ms,
    format_failure_reason,
    mark_failed,
    select_retries,
)
from mirror_core.decide.topic_settings import build_mirroring_configs, keep_raised_limit
from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.task_messages import PartitionFailure
from mirror_core.sync.mirror_topics import TopicPlacement

NOW = 1_795_000_000_000
STARTED = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="a",
    destination_id="b",
    topics=(".*",),
    producer_id=1,
    desired=DesiredState.STARTED,
    created_ms=0,
)


def status(topic: str, index: int, kind: FailureKind | None = None, *, due: int | None = NOW) -> PartitionStatus:
    well = PartitionStatus(
        partition=Partition(topic, index),
        state=PartitionState.MIRRORING,
        source_topic_id="1",
        destination_topic_id="2",
        source_epoch=3,
    )
    if kind is None:
        return well
    failed = mark_failed(well, PartitionFailure(partition=well.partition, reason="why", offset=Offset(7), kind=kind))
    return replace(failed, retry_at_ms=due)


def chosen(
    *known: PartitionStatus, now: int = NOW, held: bool = False, paused: tuple[str, ...] = ()
) -> dict[Partition, PartitionStatus | None]:
    by_partition = {one.partition: one for one in known}
    return select_retries(by_partition, COPIED_STATES, now, is_held=held, paused_topics=paused)


@pytest.mark.parametrize("kind", FailureKind)
def test_what_only_people_can_decide_is_left_to_them(kind: FailureKind) -> None:
    found = chosen(status("t", 0, kind))
    assert (found != {}) == (kind in {FailureKind.DENIED, FailureKind.REFUSED})
    assert (compute_retry_ms(kind, NOW) is not None) == (kind in RETRIED_KINDS)


def test_it_begins_again_as_after_a_recover_and_forgets_no_id() -> None:
    (again,) = chosen(status("t", 0, FailureKind.DENIED)).values()
    assert again == replace(status("t", 0), state=PartitionState.LOG_ALIGNMENT)


def test_where_nothing_was_copied_it_begins_as_if_never_seen() -> None:
    bare = replace(status("t", 0, FailureKind.REFUSED), destination_topic_id="")
    assert chosen(bare) == {bare.partition: None}


def test_nothing_is_tried_before_its_time_but_for_what_an_older_version_recorded() -> None:
    assert not chosen(status("t", 0, FailureKind.DENIED, due=NOW + 1))
    assert chosen(status("t", 0, FailureKind.DENIED, due=None))
    assert compute_retry_ms(FailureKind.DENIED, NOW) == NOW + RETRY_INTERVAL_S * 1000


def test_beside_a_run_nothing_is_tried() -> None:
    """A partition that a failover takes as it is, since it has FAILED, would be healthy, and not drained."""
    assert chosen(status("t", 0, FailureKind.DENIED))
    assert not chosen(status("t", 0, FailureKind.DENIED), held=True)


def test_of_a_paused_topic_nothing_is_tried() -> None:
    """No task would find out whether it fails again, so its reason would be gone from what people read."""
    kinds = {"t": FailureKind.DENIED, "u": FailureKind.REFUSED, "v": FailureKind.OCCUPIED}
    failed = [replace(status(topic, 0, kind), destination_topic_id="") for topic, kind in kinds.items()]
    assert len(chosen(*failed)) == len(failed)
    assert list(chosen(*failed, paused=("t", "v"))) == [Partition("u", 0)]
    assert not chosen(*failed, paused=tuple(kinds))


def test_a_plan_names_the_failed_partitions_of_a_paused_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(name: str) -> TopicMetadata:
        leaders = {index: Leader(1, 3) for index in range(2)}
        return TopicMetadata(name=name, id="1", internal=False, partitions=leaders, replication_factor=1, in_sync=1)

    known = [status("t", 0, FailureKind.DENIED), status("t", 1), status("u", 0, FailureKind.DENIED), status("u", 1)]
    topics = {name: described(name) for name in ("t", "u")}
    placed = TopicPlacement({name: replace(topic, id="2") for name, topic in topics.items()}, (), {})
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda *asked: topics)
    monkeypatch.setattr(epoch_planner, "create_missing_topics", lambda *asked: placed)
    monkeypatch.setattr(
        epoch_planner,
        "_fetch_known_offsets",
        lambda client, wanted, *asked, **options: dict.fromkeys(wanted, Offset(0)),
    )
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m", failback_run="r", paused_topics=("t",)))
    state: Any = SimpleNamespace(
        mirrors={}, partitions={"m": {one.partition: one for one in known}}, active_run=lambda name: None
    )
    work = Planner(link, cast("Any", None), cast("Any", None)).plan(state, all_ends=False)
    assert work.failed == {Partition("t", 0): "why"}
    assert set(work.partitions) == {Partition("u", 0), Partition("u", 1)}
    assert not [change.status for change in work.changes if change.status.partition == Partition("t", 0)]


def test_of_a_topic_that_is_denied_as_a_whole_one_is_tried() -> None:
    denied = [status("t", index, FailureKind.DENIED) for index in range(3)]
    assert list(chosen(*denied, status("u", 1, FailureKind.DENIED))) == [Partition("t", 0), Partition("u", 1)]
    assert list(chosen(status("t", 3), *denied)) == [one.partition for one in denied], "another one of it is copied"


def test_the_next_one_is_tried_when_the_first_failed_again() -> None:
    again = status("t", 0, FailureKind.DENIED, due=NOW + 1)
    assert list(chosen(again, status("t", 1, FailureKind.DENIED))) == [Partition("t", 1)]


def test_where_another_topic_stood_in_the_way_each_plan_looks_again() -> None:
    waiting = [replace(status("t", i, FailureKind.OCCUPIED, due=None), destination_topic_id="") for i in range(2)]
    assert chosen(*waiting) == {one.partition: None for one in waiting}
    assert not chosen(*waiting, held=True)
    assert not chosen(status("t", 0, FailureKind.OCCUPIED, due=None)), "some of it was copied: people look first"
    assert not chosen(replace(status("t", 0, FailureKind.CIRCLE, due=None), destination_topic_id=""))


def test_it_is_told_when() -> None:
    mirror, denied = STARTED, status("t", 0, FailureKind.DENIED)
    assert format_failure_reason(status("t", 0), mirror) is None
    assert format_failure_reason(denied, mirror) == "why. The data plane tries again: 2026-11-18 11:06:40 UTC"
    assert format_failure_reason(status("t", 0, FailureKind.FOREIGN, due=None), mirror) == "why"
    assert format_failure_reason(denied, replace(mirror, paused_topics=("t",))) == "why"
    assert format_failure_reason(denied, replace(mirror, paused_topics=("u",))) != "why"
    assert format_failure_reason(denied, replace(mirror, desired=DesiredState.PAUSED)) == "why"


def test_a_limit_that_was_raised_stays_and_one_that_is_too_low_is_raised() -> None:
    wanted = build_mirroring_configs({"max.message.bytes": "1000"}, 3)
    assert keep_raised_limit(wanted, {"max.message.bytes": "9000000"})["max.message.bytes"] == "9000000"
    assert keep_raised_limit(wanted, {"max.message.bytes": "10"}) == keep_raised_limit(wanted, {}) == wanted
