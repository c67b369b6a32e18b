"""What the other cluster has of a tail's records, and the page that says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence.run_report import write_salvage_report
from mirror_core.kafka.reassignment import ReplicaPlacement
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition, SalvageMatch
from mirror_core.parity.salvage import find_tail_records
from mirror_core.runbook.truncation_strategies import choose_remaining_brokers
from mirror_core.wire.records import Record


def record(key: bytes | None, value: bytes | None, offset: int = 0) -> Record:
    return Record(offset=offset, timestamp_ms=0, key=key, value=value, headers=())


@pytest.mark.parametrize(
    ("tail", "other", "match"),
    [
        (record(b"k", b"1"), [], SalvageMatch.MISSING),
        (record(b"k", b"1"), [record(b"j", b"1")], SalvageMatch.MISSING),
        (record(b"k", b"1"), [record(b"k", b"2"), record(b"k", b"1"), record(b"k", b"3")], SalvageMatch.SAME_VALUE),
        (record(b"k", b"1"), [record(b"k", b"2")], SalvageMatch.CONFLICTING),
        (record(b"k", None), [record(b"k", b"")], SalvageMatch.CONFLICTING),
        (record(b"k", b""), [record(b"k", None)], SalvageMatch.CONFLICTING),
        (record(b"k", None), [record(b"k", None)], SalvageMatch.SAME_VALUE),
        (record(None, b"1"), [record(None, b"1")], SalvageMatch.UNKEYED),
        (record(b"", b"1"), [record(None, b"1")], SalvageMatch.MISSING),
    ],
)
def test_a_record_is_looked_for_by_its_key_and_its_value(
    tail: Record, other: list[Record], match: SalvageMatch
) -> None:
    assert find_tail_records([tail], other).find_match(tail) is match


BYTES = st.none() | st.binary(max_size=2)
LOG = st.lists(st.builds(record, BYTES, BYTES), max_size=12)


@given(LOG, LOG)
def test_fates_are_those_of_a_look_at_every_record(tail: list[Record], other: list[Record]) -> None:
    found = find_tail_records(tail, other)
    for one in tail:
        mine = [two.value for two in other if one.key is not None and two.key == one.key]
        wanted = (
            SalvageMatch.SAME_VALUE if one.value in mine else SalvageMatch.CONFLICTING if mine else SalvageMatch.MISSING
        )
        assert found.find_match(one) is (SalvageMatch.UNKEYED if one.key is None else wanted)


def test_the_page_has_counts_and_offsets_and_escapes_names(tmp_path: Path) -> None:
    wanted = ParityRange(partition=Partition("a<b", 1), start=Offset(10), end=Offset(20))
    saved = SalvagedPartition(
        requested_range=wanted,
        log_start=Offset(0),
        records=9,
        matches={"missing": 7, "same value": 2},
        first_offsets={"missing": (Offset(11),), "same value": (Offset(12), Offset(13))},
    )
    page = write_salvage_report(tmp_path, [saved], run="r", old="east", new="west").read_text()
    assert page.count("a&lt;b-1") == 2
    assert '<td>missing</td><td class="n">7</td><td>11</td>' in page
    assert '<td>same value</td><td class="n">2</td><td>12, 13</td>' in page
    assert '<tr><td>conflicting</td><td class="n">0</td>' in page
    assert "http" not in page, "the page reaches out of itself"


def test_partitions_are_left_to_as_few_brokers_as_can_be() -> None:
    def held(*in_sync: int) -> ReplicaPlacement:
        return ReplicaPlacement(leader=in_sync[0], replicas=(*in_sync, 9), in_sync=in_sync)

    now = {Partition("a", n): found for n, found in enumerate((held(1, 2), held(2, 3), held(3, 1, 2), held(4)))}
    assert list(choose_remaining_brokers(now).values()) == [2, 2, 2, 4]
