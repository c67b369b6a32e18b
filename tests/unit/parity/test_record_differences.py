"""Two streams of records: every kind of difference, and none where there is none."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.names import Partition
from mirror_core.parity.record_differences import MAX_FINDINGS_PER_CHUNK, compare_records, encode_canonical
from mirror_core.wire.records import Record
from tests.support.sentences import format_sentence

P = Partition("orders", 0)

HEADERS = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
RECORD = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(-1, 3),
    key=st.none() | st.binary(max_size=3),
    value=st.none() | st.binary(max_size=3),
    headers=HEADERS,
)
LOG = st.dictionaries(st.integers(0, 60), RECORD, max_size=40).map(
    lambda log: [record._replace(offset=offset) for offset, record in sorted(log.items())]
)


@given(log=LOG)
def test_a_log_equals_itself(log: list[Record]) -> None:
    found = compare_records(P, iter(log), iter(log))
    assert (found.differing, found.findings, found.src_digest) == (0, (), found.dst_digest)
    assert found.src_count == found.dst_count == len(log)


@given(source=LOG, destination=LOG)
def test_every_offset_that_differs_is_named_and_no_other(source: list[Record], destination: list[Record]) -> None:
    one, two = ({record.offset: record for record in log} for log in (source, destination))
    found = compare_records(P, iter(source), iter(destination))
    assert {f.offset for f in found.findings} == {at for at in one | two if one.get(at) != two.get(at)}
    assert {f.offset for f in found.findings if f.kind == "missing"} == one.keys() - two.keys()
    assert {f.offset for f in found.findings if f.kind == "extra"} == two.keys() - one.keys()
    assert (found.src_digest == found.dst_digest) == (source == destination)


@given(one=RECORD, two=RECORD)
def test_different_records_never_look_alike(one: Record, two: Record) -> None:
    assert (encode_canonical(one) == encode_canonical(two)) == (one == two)


def test_of_many_differences_the_first_are_kept_and_all_are_counted() -> None:
    log = [Record(n, 0, b"k", b"v", ()) for n in range(5 * MAX_FINDINGS_PER_CHUNK)]
    found = compare_records(P, iter(log), iter([]))
    assert (len(found.findings), found.differing) == (MAX_FINDINGS_PER_CHUNK, 5 * MAX_FINDINGS_PER_CHUNK)
    assert found.findings[-1].offset == MAX_FINDINGS_PER_CHUNK - 1


def test_large_records_that_differ_are_not_kept_in_memory() -> None:
    """A few kilobytes of zstd hold megabytes, and a chunk a hundred differences."""
    size, count = 4 << 20, 50
    tracemalloc.start()
    try:
        found = compare_records(
            P,
            (Record(n, 0, b"k", bytes(size), ()) for n in range(count)),
            (Record(n, 0, b"k", b"\1" * size, ()) for n in range(count)),
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.differing == count
    assert peak < 12 * size, f"{peak >> 20} MiB"


def test_content_is_not_shown() -> None:
    one = Record(0, 0, b"secret key", b"secret value", ((b"secret name", b"secret header"),))
    two = Record(0, 0, b"other key", None, ((b"secret name", b"other"),))
    text = str(compare_records(P, iter([one]), iter([two])).findings)
    assert "secret" not in text
    assert "10 bytes" in text


def test_content_is_shown_to_those_who_ask_for_it() -> None:
    def told(one: Record | None, two: Record | None) -> list[tuple[str, str]]:
        streams = (iter([record] if record else []) for record in (one, two))
        return [(f.kind, f.detail) for f in compare_records(P, *streams, values=True).findings]

    paid = Record(0, 5, b"order-7", b"9.95\x1b[2J", ((b"h", b"1"), (b"by", b"anna")))
    other = Record(0, 6, b"order-8", bytes(300), ((b"h", b"1"), (b"by", None)))
    assert told(paid, other) == [
        ("key", "b'order-7'; on the destination b'order-8'"),
        ("value", f"b'9.95\\x1b[2J'; on the destination {bytes(200)!r}... (300 bytes)"),
        ("headers", "header 2 of 2: b'by' = b'anna'; on the destination b'by' = null"),
        ("timestamp", "5 ms; on the destination 6 ms"),
    ]
    assert told(paid, None) == [
        ("missing", "the source's record is not on the destination: key b'order-7'; value b'9.95\\x1b[2J'")
    ]
    assert told(None, Record(0, 5, None, b"x", ())) == [
        ("extra", format_sentence("destination_record_not_on_source", "x"))
    ]
    assert told(paid, paid) == []
