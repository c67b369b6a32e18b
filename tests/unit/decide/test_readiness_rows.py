"""The table of readiness: what a plan and its figures know of each partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failover_readiness import NEVER_AGE_S, list_readiness_rows
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    StandstillForecast,
    UnseenCluster,
)
from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.model.forecast import PartitionLoss
from mirror_core.model.names import Offset
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.model.timing import UNKNOWN_NOW_MS
from mirror_core.sync.acl_rows import to_acl_row
from tests.support.readiness_views import A0, DESTINATION, NAME, VIEW


def test_each_partition_has_what_a_plan_knows_of_it() -> None:
    first, second = list_readiness_rows(VIEW, [])
    assert (first.topic, first.partition, first.state, first.position, first.source_end) == (
        "a",
        0,
        "MIRRORING",
        93,
        100,
    )
    assert (first.lag, first.missing, first.behind_s, first.proved) == (7, 4, None, 60)
    assert (second.lag, second.missing, second.behind_s, second.proved) == (0, 0, 0.5, 50)
    ages = (first.proof_age_s, first.sync_age_s, first.drill_age_s, first.heartbeat_age_s)
    assert ages == (70.0, 1.0, NEVER_AGE_S, 2.0)
    assert (first.data_plane, first.refused, first.standstill_s) == (True, "", None)
    (predicted, _) = list_readiness_rows(replace(VIEW, forecast=StandstillForecast(4.5, "last run")), [])
    assert predicted.standstill_s == 4.5


def test_a_partition_that_was_never_compared_is_older_than_any_limit() -> None:
    first, second = list_readiness_rows(
        replace(
            VIEW,
            verification=MirrorVerification.from_partitions(NAME, {A0: VerifiedEnd(60, 0, 40_000, 60)}, {"a": "d"}),
        ),
        [],
    )
    assert (first.proved, first.proof_age_s) == (60, 60.0)
    assert (second.proved, second.proof_age_s) == (0, NEVER_AGE_S)


def test_by_a_clock_that_is_behind_no_age_is_known() -> None:
    for row in list_readiness_rows(replace(VIEW, now_ms=10_000), []):
        assert (row.behind_s, row.heartbeat_age_s) == (None, None)


def test_no_data_plane_is_known_to_be_at_work_at_an_unknown_time() -> None:
    for row in list_readiness_rows(replace(VIEW, now_ms=UNKNOWN_NOW_MS, leader_ahead_ms=7_200_000), []):
        assert (row.behind_s, row.heartbeat_age_s, row.sync_age_s, row.data_plane) == (None, None, None, False)


def test_what_is_not_known_is_none_and_what_never_was_is_older_than_any_limit() -> None:
    dark = replace(
        VIEW,
        source=UnseenCluster("gone"),
        destination=UnseenCluster("gone"),
        source_observation=None,
        verification=None,
        groups=None,
        lease=None,
    )
    first, _ = list_readiness_rows(dark, [])
    assert (first.position, first.source_end, first.lag, first.missing, first.proved) == (None,) * 5
    assert (first.behind_s, first.heartbeat_age_s) == (None, None)
    assert (first.proof_age_s, first.sync_age_s, first.drill_age_s, first.data_plane) == (
        NEVER_AGE_S,
        NEVER_AGE_S,
        NEVER_AGE_S,
        False,
    )
    assert "source east could not be read" in first.refused


def test_an_age_by_a_clock_that_is_behind_is_none() -> None:
    first, _ = list_readiness_rows(replace(VIEW, now_ms=20_000), [])
    ages = (first.proof_age_s, first.sync_age_s, first.heartbeat_age_s, first.behind_s)
    assert (ages, first.drill_age_s) == ((None,) * 4, NEVER_AGE_S)


def test_a_proof_of_another_topic_of_that_name_proves_nothing() -> None:
    other = replace(DESTINATION, topics={"a": ClusterTopic(id="other", partitions=2)})
    assert [row.proved for row in list_readiness_rows(replace(VIEW, destination=other), [])] == [0, 0]


def test_the_copy_is_as_far_behind_as_the_look_at_which_it_lacked_nothing() -> None:
    seen = PartitionLoss(
        position=Offset(5), observed_end=Offset(5), age_s=3.0, missing=0, is_offline=False, is_failed=False
    )
    assert seen.behind_s == 3.0
    assert replace(seen, missing=1).behind_s is None, "longer than 3 s, and nobody knows how long"
    assert replace(seen, missing=1, recovery_point_age_s=9.0).behind_s == 9.0
    assert replace(seen, missing=None, age_s=None, recovery_point_age_s=9.0).behind_s is None, (
        "the position is not known now"
    )
    assert replace(seen, missing=None, age_s=None).behind_s is None


def test_a_row_of_drift_knows_its_topic() -> None:
    def topic(part: SyncCategory, subject: str) -> str:
        return DriftRow(part=part, subject=subject, source="", destination="", action=SyncAction.EQUAL).topic

    assert topic(SyncCategory.TOPICS, "a.b-c") == "a.b-c"
    assert topic(SyncCategory.CONFIGS, "a.b-c: retention.ms") == "a.b-c"
    assert topic(SyncCategory.GROUPS, "my group a.b-c-12") == "a.b-c"
    assert topic(SyncCategory.GROUPS, "mygroup") == ""


@pytest.mark.parametrize(
    ("resource", "pattern", "topic"),
    [
        (Resource.TOPIC, Pattern.LITERAL, "a.b-c"),
        (Resource.TOPIC, Pattern.PREFIXED, ""),
        (Resource.GROUP, Pattern.LITERAL, ""),
    ],
)
def test_a_row_of_rights_knows_the_topic_that_they_are_about(resource: Resource, pattern: Pattern, topic: str) -> None:
    """Whatever a principal is called."""
    acl = Acl(
        resource=resource,
        pattern=pattern,
        name="a.b-c",
        principal="User: on TOPIC literal 'z' for x",
        operation=Operation.READ,
    )
    assert to_acl_row(acl, SyncAction.EQUAL).topic == topic
