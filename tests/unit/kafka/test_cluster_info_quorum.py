"""Whether controllers have a majority while one more node is away."""

from __future__ import annotations

import pytest

from mirror_core.kafka.cluster_info import Quorum


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
    assert (
        Quorum(now_ms=0, active=2, voters=frozenset(voters), alive=frozenset(alive)).has_majority_without(1) is survives
    )
