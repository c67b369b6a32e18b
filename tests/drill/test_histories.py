"""Random histories of fixed seeds. `python -m tests.drill.histories` goes on with others for as long as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers import Pair
from tests.drill.histories import history

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.mark.parametrize(("seed", "hidden"), [(1, False), (2, False), (3, True)])
def test_whatever_happens_the_destination_is_the_committed_source(
    pair: Pair, tmp_path: Path, seed: int, hidden: bool
) -> None:
    with history(pair, tmp_path / "history", seed, hidden=hidden) as made:
        made.run(20.0)
        made.settle()
        assert made.check() > 0
