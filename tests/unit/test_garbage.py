"""Garbage in cycles is sought seldom, and as before when the process is another's."""

from __future__ import annotations

import gc

from mirror_core.model.garbage import seldom_sought


def test_another_ones_process_has_its_ways_back() -> None:
    before = gc.get_threshold()
    with seldom_sought():
        assert gc.get_threshold() == (100_000, *before[1:])
        assert gc.isenabled()
    assert gc.get_threshold() == before
