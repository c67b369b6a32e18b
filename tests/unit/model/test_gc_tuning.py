"""Garbage in cycles is sought seldom, and as before when the process is another's."""

from __future__ import annotations

import gc

from mirror_core.model.gc_tuning import reduced_gc_frequency


def test_another_ones_process_has_its_ways_back() -> None:
    before = gc.get_threshold()
    with reduced_gc_frequency():
        assert gc.get_threshold() == (100_000, *before[1:])
        assert gc.isenabled()
    assert gc.get_threshold() == before
