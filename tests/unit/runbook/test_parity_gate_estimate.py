"""What the gate would still have to read, and when that is too much."""

from __future__ import annotations

import pytest

from mirror_core.model.errors import Refused
from mirror_core.runbook.parity_gate import LITTLE_BYTES, LITTLE_OFFSETS, RemainingCompare, refuse_above_limit
from tests.support.sentences import format_sentence


@pytest.mark.parametrize(
    ("rest", "little"),
    [
        (RemainingCompare(LITTLE_OFFSETS, None, 20.0), True),
        (RemainingCompare(LITTLE_OFFSETS + 1, 10, 20.0), False),
        (RemainingCompare(LITTLE_OFFSETS, LITTLE_BYTES, 20.0), True),
        (RemainingCompare(100, LITTLE_BYTES + 1, 0.1), False),  # a hundred records of a megabyte are not little
        (RemainingCompare(0, 0, 0.0), True),
    ],
)
def test_little_is_few_offsets_and_few_bytes(rest: RemainingCompare, little: bool) -> None:
    assert rest.is_little is little


def test_the_limit_is_the_operators() -> None:
    rest = RemainingCompare(5_000, 2_500_000, 5.0)
    refuse_above_limit(rest, None, "r", "m")
    refuse_above_limit(rest, 5.0, "r", "m")
    with pytest.raises(Refused) as refused:
        refuse_above_limit(rest, 4.9, "r", "m")
    words = str(refused.value)
    assert format_sentence("parity_gate_too_long", "5,000", "2.5", "5.0", "4.9") in words
    assert "`mirrorbook failover resume m --gate-limit 4.9`" in words, "what is typed next must not forget the limit"
    refuse_above_limit(RemainingCompare(0, 0, 0.0), 0.0, "r", "m")
