"""How the tasks of a comparison are cut into waves."""

from __future__ import annotations

import pytest

from mirror_core.decide.parity_spans import ParitySpan
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.parity.parity_table import is_table_name
from mirror_core.spark.parity_pipeline import cut_waves


def make_tasks(count: int) -> list[tuple[ParitySpan, ...]]:
    spans = (
        ParitySpan(
            id=str(number),
            range=ParityRange(partition=Partition("orders", number), start=Offset(0), end=Offset(1)),
            size_bytes=1,
        )
        for number in range(count)
    )
    return [(span,) for span in spans]


@pytest.mark.parametrize(
    ("tasks", "slots", "is_throttled", "sizes", "at_once"),
    [
        pytest.param(40, 4, False, [16, 16, 8], 32, id="four tasks for each slot"),
        pytest.param(3, 4, False, [3], 3, id="fewer than slots"),
        pytest.param(10, 4, True, [2, 2, 2, 2, 2], 4, id="throttled: as many as slots in two waves"),
        pytest.param(7, 5, True, [2, 2, 2, 1], 4, id="throttled: never more than slots"),
        pytest.param(3, 1, True, [1, 1, 1], 1, id="throttled, with one slot"),
        pytest.param(1, 8, True, [1], 1, id="throttled: one task has the whole throttle"),
    ],
)
def test_waves_hold_all_tasks_in_order(
    tasks: int, slots: int, is_throttled: bool, sizes: list[int], at_once: int
) -> None:
    packed = make_tasks(tasks)
    waves, shared_by = cut_waves(packed, slots, is_throttled=is_throttled)
    assert [len(wave) for wave in waves] == sizes
    assert [task for wave in waves for task in wave] == packed
    assert shared_by == at_once


@pytest.mark.parametrize(
    ("table", "is_name"),
    [
        ("lake.mirrors.parity", True),
        ("mirrors.parity", True),
        ("parity", False),
        ("./mirrors.parity", False),
        ("/data/parity", False),
        ("s3a://bucket.example/parity", False),
        ("file:///data/parity", False),
    ],
)
def test_a_name_is_told_from_a_folder(table: str, is_name: bool) -> None:
    assert is_table_name(table) is is_name
