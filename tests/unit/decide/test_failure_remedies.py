"""What can be done about each sort of failure, and what must not be: pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.failure_remedies import (
    ACTION_EFFECTS,
    REMEDIES,
    RecoveryAction,
    TopicCondition,
    explain_blockers,
    find_current_kind,
)
from mirror_core.mirrors.mirror_facts import FACT_LABELS, FactKey, format_driver
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.state.state_records import PartitionRecord, State
from tests.support.memory_state import fold

STATUS = PartitionStatus(
    partition=Partition("t", 0),
    state=PartitionState.FAILED,
    source_topic_id="s1",
    destination_topic_id="d1",
    kind=FailureKind.FOREIGN,
)
TOPIC = TopicCondition(
    name="t",
    source_id="s1",
    is_hidden=False,
    destination_id="d1",
    states=frozenset({PartitionState.FAILED}),
    other_mirror=None,
)
MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="e",
    destination_id="w",
    topics=("t",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=1,
)


def test_every_kind_has_a_remedy_and_every_remedy_has_words() -> None:
    assert set(REMEDIES) == set(FailureKind)
    assert set(ACTION_EFFECTS) == set(RecoveryAction)
    assert all(remedy.actions for remedy in REMEDIES.values())


def test_what_is_not_ours_is_never_deleted_and_what_is_lost_never_retried() -> None:
    assert RecoveryAction.RECOPY not in REMEDIES[FailureKind.OCCUPIED].actions
    for kind in (FailureKind.FOREIGN, FailureKind.RECREATED, FailureKind.REPLACED):
        assert RecoveryAction.RETRY not in REMEDIES[kind].actions


@pytest.mark.parametrize(
    ("status", "topic", "kind"),
    [
        ({}, {}, FailureKind.FOREIGN),
        ({"kind": None}, {}, FailureKind.OTHER),
        ({}, {"source_id": None}, FailureKind.GONE),
        ({}, {"source_id": None, "is_hidden": True}, FailureKind.DENIED),
        ({}, {"destination_id": None, "is_hidden": True}, FailureKind.DENIED),
        ({}, {"source_id": "s2"}, FailureKind.RECREATED),
        ({}, {"source_id": "s2", "destination_id": None}, FailureKind.RECREATED),
        ({}, {"destination_id": "d2"}, FailureKind.REPLACED),
        ({"kind": FailureKind.RECOPYING}, {"destination_id": None}, FailureKind.REPLACED),
        ({"kind": FailureKind.RECOPYING}, {}, FailureKind.RECOPYING),
        ({"kind": FailureKind.OCCUPIED, "destination_topic_id": ""}, {"source_id": "s2"}, FailureKind.OCCUPIED),
    ],
)
def test_the_kind_is_what_the_clusters_say_now(
    status: dict[str, object], topic: dict[str, object], kind: FailureKind
) -> None:
    assert find_current_kind(replace(STATUS, **status), replace(TOPIC, **topic)) is kind  # type: ignore[arg-type]


@given(st.sampled_from(FailureKind), st.sampled_from(["s1", "s2", None]), st.sampled_from(["d1", "d2", None]))
def test_no_retry_begins_a_topic_from_zero(kind: FailureKind, source: str | None, destination: str | None) -> None:
    """Wherever a retry is offered, both topics are those that were copied, or the source's is not there at all."""
    status, topic = replace(STATUS, kind=kind), replace(TOPIC, source_id=source, destination_id=destination)
    if RecoveryAction.RETRY in REMEDIES[find_current_kind(status, topic)].actions:
        assert source is None or (source, destination) == ("s1", "d1")


@pytest.mark.parametrize(
    ("topic", "mirror", "copier", "word"),
    [
        ({}, {}, None, None),
        ({"other_mirror": "n"}, {}, None, "is kept by mirror n"),
        ({"states": frozenset({PartitionState.STOPPED})}, {}, None, "mirror m is stopped"),
        ({}, {"desired": DesiredState.STOPPED}, None, "mirror m is stopped"),
        ({}, {}, "host/1/x", "host/1/x copies this mirror now"),
    ],
)
def test_a_recopy_is_hindered_by_what_would_make_it_a_loss(
    topic: dict[str, object], mirror: dict[str, object], copier: str | None, word: str | None
) -> None:
    found = list(
        explain_blockers(RecoveryAction.RECOPY, replace(TOPIC, **topic), replace(MIRROR, **mirror), copier)  # type: ignore[arg-type]
    )
    assert len(found) == (word is not None)
    assert word is None or word in found[0]


def test_a_recopy_waits_for_a_line_that_describe_prints() -> None:
    [reason] = explain_blockers(RecoveryAction.RECOPY, TOPIC, MIRROR, "host/1/x")
    shown = f"{FACT_LABELS[FactKey.DATA_PLANE]}: {format_driver(None, has_driver=False, is_unknown=False)}"
    assert f"`mirrorbook mirror describe {MIRROR.name} --all` says `{shown}`" in reason


def test_a_retry_may_be_asked_for_beside_a_copier() -> None:
    assert list(explain_blockers(RecoveryAction.RETRY, TOPIC, MIRROR, "host/1/x")) == []


def test_statuses_survive_the_state_topic() -> None:
    status = replace(STATUS, source_epoch=7)
    state = fold(State().to_rows(PartitionRecord(MIRROR.name, status)))
    assert state.partitions == {MIRROR.name: {status.partition: status}}
