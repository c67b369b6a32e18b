"""Options of a table of records, how ranges are split, and what a digest tells apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import Offset, Partition
from mirror_core.parity.record_scan import (
    COLUMNS,
    MAX_BYTES_PER_BATCH,
    MAX_ROWS_PER_BATCH,
    LogRange,
    build_batches,
    compute_content_digest,
    parse_options,
    split_ranges,
)
from mirror_core.wire.batch import LOG_APPEND_TIME, BatchHeader
from mirror_core.wire.records import Record

NEEDED = {"config": "mirrorbook.yaml", "cluster": "east", "subscribe": "orders"}
HEADER = BatchHeader(*range(len(BatchHeader._fields)))._replace(attributes=0)
RECORD = Record(7, 1_000, b"key", b"value", ((b"name", b"one"),))


@pytest.mark.parametrize(
    ("given_options", "reason"),
    [
        ({"cluster": ""}, "missing options: cluster"),
        ({"subscribe": ""}, "either option subscribe"),
        ({"assign": "{}"}, "either option subscribe"),
        ({"topics": "orders"}, "unknown option topics"),
        ({"Kafka.sasl.password": "x"}, "credentials come from the file"),
        ({"minPartitions": "0"}, "minPartitions is '0'"),
        ({"columns": "offset,offset"}, "each once"),
        ({"columns": "offsetts"}, "name some of topic, partition, offset"),
        ({"columns": ""}, "name some of"),
    ],
)
def test_options_that_nobody_meant_are_refused(given_options: dict[str, str], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        parse_options({**NEEDED, **given_options})


def test_names_of_options_have_any_case() -> None:
    assert parse_options({**NEEDED, "STARTINGOFFSETS": "earliest", "minpartitions": "3"}).minPartitions == "3"


@given(st.lists(st.integers(1, 10_000), max_size=6), st.integers(1, 50))
def test_split_ranges_hold_every_offset_once(lengths: list[int], at_least: int) -> None:
    whole = [
        LogRange(partition=Partition("t", n), start=Offset(5), end=Offset(5 + length))
        for n, length in enumerate(lengths)
    ]
    pieces = [*split_ranges(whole, at_least)]
    assert all(piece.start < piece.end for piece in pieces)
    assert len(pieces) >= min(at_least, sum(lengths))
    for wanted in whole:
        mine = [piece for piece in pieces if piece.partition == wanted.partition]
        assert [piece.start for piece in mine] == [wanted.start, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == wanted.end


@pytest.mark.parametrize(
    "other",
    [
        RECORD._replace(timestamp_ms=1_001),
        RECORD._replace(key=None),
        RECORD._replace(key=b"", value=b"keyvalue"),
        RECORD._replace(key=b"keyvalu", value=b"e"),
        RECORD._replace(value=None),
        RECORD._replace(value=b""),
        RECORD._replace(headers=()),
        RECORD._replace(headers=((b"name", None),)),
        RECORD._replace(headers=((b"na", b"meone"),)),
        RECORD._replace(headers=((b"name", b"one"), (b"name", b"one"))),
    ],
)
def test_records_of_another_content_have_another_digest(other: Record) -> None:
    assert compute_content_digest(HEADER, other) != compute_content_digest(HEADER, RECORD)


def test_a_digest_tells_types_of_timestamps_apart_and_no_offsets() -> None:
    appended = HEADER._replace(attributes=LOG_APPEND_TIME)
    assert compute_content_digest(appended, RECORD) != compute_content_digest(HEADER, RECORD)
    assert compute_content_digest(HEADER, RECORD._replace(offset=8)) == compute_content_digest(HEADER, RECORD)


def records(count: int, value: bytes) -> Iterator[tuple[BatchHeader, Record]]:
    return ((HEADER, RECORD._replace(offset=n, value=value)) for n in range(count))


@pytest.mark.parametrize(("count", "value"), [(2 * MAX_ROWS_PER_BATCH + 1, b"x"), (5, bytes(MAX_BYTES_PER_BATCH // 2))])
def test_batches_are_small_and_hold_all(count: int, value: bytes) -> None:
    batches = [*build_batches(Partition("t", 0), records(count, value), [*COLUMNS.values()])]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(count)]
    assert len(batches) == 3
    assert list(build_batches(Partition("t", 0), records(0, b""), [*COLUMNS.values()])) == []
