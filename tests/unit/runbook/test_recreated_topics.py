"""A topic of the old source that is deleted and made anew: clients may have it created in between, as brokers like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.kafka.topics import NewTopic
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.runbook import divergent_tail_steps, truncation_strategies
from mirror_core.runbook.divergent_tail_steps import TailSteps
from mirror_core.runbook.step_records import RecreatedTopic, SalvageResult
from mirror_core.state.journal import make_checkpoint
from tests.support.cluster_names import LINK
from tests.support.memory_state import journal_of


def topic(topic_id: str, partitions: int, factor: int) -> TopicMetadata:
    return TopicMetadata("t", topic_id, False, dict.fromkeys(range(partitions), Leader(1, 0)), factor, factor)


WAS, NEW = topic("id-before", 3, 3), topic("id-on-west", 3, 2)
SALVAGED = {Partition("t", index): Offset(7) for index in range(3)}


@pytest.fixture
def steps() -> TailSteps:
    journal = journal_of("m-failback-20260101T000000-abcd", "salvage", "align")
    journal.log.put(
        make_checkpoint(journal.run_id, "salvage", SalvageResult(ends=PartitionOffsets.from_mapping(SALVAGED)))
    )
    nothing: Any = None
    return TailSteps(LINK, nothing, nothing, journal)


def recreate(
    steps: TailSteps, monkeypatch: pytest.MonkeyPatch, now: TopicMetadata | None, then: TopicMetadata
) -> list[str]:
    """What is done to a topic that is there, or gone, when between its end and its creation another one comes; or ours,
    by an attempt that was killed."""
    done = list[str]()
    there: dict[str, TopicMetadata] = {} if now is None else {"t": now}
    old: Any = SimpleNamespace(name="east")

    def existing(client: object, names: object) -> dict[str, TopicMetadata]:
        return dict(there) if client is old else {"t": NEW}

    def delete(client: object, name: str, topic_id: str) -> None:
        done.append(f"delete {topic_id}")
        there.clear()

    def create(client: object, topics: list[NewTopic]) -> frozenset[str]:
        (wanted,) = topics
        done.append(f"create {wanted.partitions} {wanted.replication_factor}")
        there.setdefault("t", then)
        return frozenset({"t"})

    monkeypatch.setattr(divergent_tail_steps, "find_existing_topics", existing)
    monkeypatch.setattr(divergent_tail_steps, "delete_topic", delete)
    monkeypatch.setattr(divergent_tail_steps, "create_topics", create)
    monkeypatch.setattr(
        truncation_strategies, "list_offsets", lambda client, wanted, point: dict.fromkeys(wanted, Offset(7))
    )
    west: Any = SimpleNamespace(name="west")
    steps._recreate_topics(old, west, (RecreatedTopic(name="t", id=WAS.id, replication_factor=3, settings={}),))
    return done


@pytest.mark.parametrize(("partitions", "factor"), [(3, 1), (1, 1), (12, 3)])
def test_what_brokers_have_made_of_it_meanwhile_is_not_taken_for_ours(
    steps: TailSteps, monkeypatch: pytest.MonkeyPatch, partitions: int, factor: int
) -> None:
    """Applications would come home to fewer replicas than they left, and nothing would say so."""
    words = f"it has {partitions} partition.* replication factor {factor}, not 3 and 3.* auto.create.topics.enable"
    strange = topic("id-strange", partitions, factor)
    for now in (WAS, strange):  # and when it is resumed
        with pytest.raises(Refused, match=words):
            recreate(steps, monkeypatch, now, strange)
    assert recreate(steps, monkeypatch, None, topic("id-ours", 3, 3)) == ["create 3 3"], "when it was deleted by hand"


def test_brokers_that_do_not_agree_whether_it_is_there_are_asked_again(
    steps: TailSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergent_tail_steps, "find_existing_topics", lambda client, names: {})
    with pytest.raises(Unreachable, match="topic t: its brokers do not agree"):
        steps._refuse_changed_topic(
            cast("Any", SimpleNamespace(name="east")), NewTopic(name="t", partitions=3, replication_factor=3)
        )


@pytest.mark.parametrize("partitions", [3, 2])
def test_our_own_of_an_attempt_that_was_killed_is_kept(
    steps: TailSteps, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Also where it has become wider on the other side since: the mirror home widens it."""
    ours = topic("id-ours", partitions, 3)
    assert recreate(steps, monkeypatch, ours, ours) == ["create 3 3"]
