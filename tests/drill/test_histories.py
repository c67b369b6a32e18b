"""A few random histories, always other ones; the seed of one that fails is printed and begins it again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.brokers import Pair
from tests.drill.histories import history

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.mark.parametrize("seed", [1, 2, pytest.param(None, id="random")])
def test_whatever_happens_the_destination_is_the_committed_source(pair: Pair, tmp_path: Path, seed: int | None) -> None:
    chosen = random.randrange(1 << 32) if seed is None else seed
    print(f"seed {chosen}")
    with history(pair, tmp_path / "history", chosen) as made:
        made.run(20.0)
        made.settle()
        assert made.check() > 0
