"""Fetch responses, shared by tests."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v10 import response as fetch_response
from kio.schema.fetch.v13 import response as response_by_id
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import Records, i32, i32Timedelta, i64

from mirror_core.model.names import Partition


def written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


Rows = dict[Partition, tuple[int, int, list[tuple[int, int]], bytes]]


def fetch_answer(rows: Rows, error: ErrorCode = ErrorCode.none, code: ErrorCode = ErrorCode.none) -> bytes:
    """As kio writes it: `error` of the whole answer, `code` of each partition."""
    topics: dict[str, list[Any]] = {}
    for partition, (high, stable, aborted, records) in rows.items():
        topics.setdefault(partition.topic, []).append(
            fetch_response.PartitionData(
                partition_index=i32(partition.index),
                error_code=code,
                high_watermark=i64(high),
                last_stable_offset=i64(stable),
                log_start_offset=i64(3),
                aborted_transactions=tuple(
                    fetch_response.AbortedTransaction(producer_id=ProducerId(p), first_offset=i64(o))
                    for p, o in aborted
                ),
                records=Records(records),
            )
        )
    return written(
        fetch_response.FetchResponse(
            throttle_time=i32Timedelta.parse(timedelta(0)),
            error_code=error,
            session_id=i32(0),
            responses=tuple(
                fetch_response.FetchableTopicResponse(topic=TopicName(t), partitions=tuple(p))
                for t, p in topics.items()
            ),
        )
    )


def fetch_answer_by_id(
    rows: Rows,
    ids: Mapping[str, bytes],
    error: ErrorCode = ErrorCode.none,
    code: ErrorCode = ErrorCode.none,
    *,
    replica: int = -1,
    throttle_ms: int = 0,
) -> bytes:
    """The same as v13, by the topics' ids. With an error, tagged fields follow, too."""
    tagged: Any = {}
    if code is not ErrorCode.none:
        tagged["current_leader"] = response_by_id.LeaderIdAndEpoch(leader_id=BrokerId(7), leader_epoch=i32(8))
        tagged["diverging_epoch"] = response_by_id.EpochEndOffset(epoch=i32(3), end_offset=i64(4))
    topics: dict[str, list[Any]] = {}
    for partition, (high, stable, aborted, records) in rows.items():
        topics.setdefault(partition.topic, []).append(
            response_by_id.PartitionData(
                partition_index=i32(partition.index),
                error_code=code,
                high_watermark=i64(high),
                last_stable_offset=i64(stable),
                log_start_offset=i64(3),
                aborted_transactions=tuple(
                    response_by_id.AbortedTransaction(producer_id=ProducerId(p), first_offset=i64(o))
                    for p, o in aborted
                )
                or (None if partition.index % 2 else ()),
                preferred_read_replica=BrokerId(replica),
                records=Records(records),
                **tagged,
            )
        )
    return written(
        response_by_id.FetchResponse(
            throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
            error_code=error,
            session_id=i32(0),
            responses=tuple(
                response_by_id.FetchableTopicResponse(topic_id=uuid.UUID(bytes=ids[t]), partitions=tuple(p))
                for t, p in topics.items()
            ),
        )
    )
