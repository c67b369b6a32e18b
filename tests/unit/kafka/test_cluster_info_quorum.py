"""Whether controllers have a majority while one more node is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse, PartitionData, ReplicaState, TopicData
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from mirror_core.kafka.cluster_info import Quorum, fetch_metadata_ages_ms
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable


@pytest.mark.parametrize(
    ("voters", "alive", "survives"),
    [
        ({1, 2, 3}, {1, 2, 3}, True),
        ({1, 2, 3}, {1, 2}, False),
        ({1, 2, 3}, {2, 3}, True),
        ({1, 2, 3, 4}, {1, 2, 3, 4}, True),
        ({1, 2, 3, 4}, {1, 2, 3}, False),
        ({1}, {1}, False),
        ({101, 102, 103}, {101, 103}, True),
    ],
)
def test_a_majority_of_all_that_vote_is_needed(voters: set[int], alive: set[int], survives: bool) -> None:
    quorum = Quorum(
        now_ms=0, active=2, voters=frozenset(voters), alive=frozenset(alive), metadata_ages_ms=dict.fromkeys(voters, 0)
    )
    assert quorum.has_majority_without(1) is survives


def replica(node: int, fetched_ms: int, caught_up_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=BrokerId(node),
        log_end_offset=i64(0),
        last_fetch_timestamp=i64(fetched_ms),
        last_caught_up_timestamp=i64(caught_up_ms),
    )


@pytest.mark.parametrize("is_old_last", [True, False])
def test_a_broker_with_a_new_disk_is_not_as_old_as_what_controllers_remember_of_its_old_one(is_old_last: bool) -> None:
    rows = (replica(4, 9_900, 9_900), replica(4, 2_000, 2_000))
    voters = (replica(1, -1, 10_000), replica(2, 9_800, 9_800), replica(3, 5_000, 5_000))
    row = PartitionData(
        partition_index=i32(0),
        error_code=ErrorCode.none,
        leader_id=BrokerId(1),
        leader_epoch=i32(1),
        high_watermark=i64(0),
        current_voters=voters,
        observers=rows if is_old_last else rows[::-1],
    )
    topic = TopicData(topic_name=TopicName("__cluster_metadata"), partitions=(row,))
    response = DescribeQuorumResponse(error_code=ErrorCode.none, topics=(topic,))

    class Client:
        def call(self, *_: object) -> DescribeQuorumResponse:
            return response

    assert fetch_metadata_ages_ms(cast("Any", Client())) == {1: 200, 2: 200, 3: 5_000, 4: 200}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.request_timed_out, Unreachable),
        (ErrorCode.not_leader_or_follower, Unreachable),
        (ErrorCode.unknown_server_error, RemoteFault),
        (ErrorCode.cluster_authorization_failed, MissingPermission),
    ],
)
@pytest.mark.parametrize("is_of_partition", [True, False])
def test_controllers_that_do_not_answer_a_broker_are_not_controllers_that_refuse(
    code: ErrorCode, error: type[RemoteFault], *, is_of_partition: bool
) -> None:
    row = PartitionData(
        partition_index=i32(0),
        error_code=code,
        leader_id=BrokerId(-1),
        leader_epoch=i32(-1),
        high_watermark=i64(-1),
        current_voters=(),
        observers=(),
    )
    topic = TopicData(topic_name=TopicName("__cluster_metadata"), partitions=(row,))
    response = DescribeQuorumResponse(
        error_code=ErrorCode.none if is_of_partition else code, topics=(topic,) if is_of_partition else ()
    )
    config = SimpleNamespace(user=lambda _: "User:control")
    client: Any = SimpleNamespace(name="east", principal=None, config=config, call=lambda *_: response)
    with pytest.raises(RemoteFault) as raised:
        fetch_metadata_ages_ms(client)
    assert type(raised.value) is error
