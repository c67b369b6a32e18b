"""What a recopy would delete beside the FAILED partitions' logs, and the source does not have."""

from __future__ import annotations

from mirror_core.mirrors.recovery_plan import list_destination_only
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange

T0, T1, T2, T3 = (Partition("t", index) for index in range(4))


def test_what_only_the_destination_has_is_told_by_log_ends() -> None:
    ends = {T0: Offset(10), T1: Offset(12), T2: Offset(7), T3: Offset(0)}
    source_ends = {T0: Offset(10), T1: Offset(9), T2: Offset(50)}
    assert list(list_destination_only(ends, {T0, T1}, source_ends)) == [
        ParityRange(partition=T1, start=Offset(9), end=Offset(12)),
        ParityRange(partition=T2, start=Offset(0), end=Offset(7)),  # no copy, whatever the source has under its name
    ]
