"""Random histories of fixed seeds. `python -m tests.drill.histories` goes on with others for as long as you like."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.brokers import Pair
from tests.drill.histories import history

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

ENOUGH: Final = {"transact": 8, "start": 5, "kill": 2, "suspend": 1, "wake": 1, "crash": 1, "delete_records": 1}
"""How often each must have happened, and have struck somebody, before a history is one."""
LIMIT_S: Final = 300.0


@pytest.mark.parametrize(("seed", "hidden"), [(1, False), (2, False), (3, True)])
def test_whatever_happens_the_destination_is_the_committed_source(
    pair: Pair, tmp_path: Path, seed: int, hidden: bool
) -> None:
    with history(pair, tmp_path / "history", seed, hidden=hidden) as made:
        end = time.monotonic() + LIMIT_S

        def enough() -> bool:
            assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {dict(made.deeds)}"
            return all(made.deeds[deed] >= count for deed, count in ENOUGH.items())

        made.run(enough)
        print(dict(made.deeds))
        made.settle()
        assert made.check() > 0
