"""Random histories of fixed seeds. `python -m tests.drill.histories` goes on with others for as long as you like."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.drill.histories import history
from tests.drill.weather import QUICK
from tests.support.kafka_clients import Pair
from tests.support.random_seeds import seed_of
from tests.support.waiting import patience
from tests.support.wan_clusters import Distant, distant_clusters

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

ENOUGH: Final = {"transact": 8, "start": 5, "kill": 2, "suspend": 1, "wake": 1, "crash": 1, "delete_records": 1}
"""How often each must have happened, and have struck somebody, before a history is one."""
LIMIT_S: Final = patience(480.0)


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    extra = {"log.cleaner.backoff.ms": "1000", **QUICK}
    with distant_clusters(tmp_path_factory.mktemp("weather"), extra=extra) as made:
        yield made


BAD_DAYS: Final = {
    **dict.fromkeys(("stamp", "shorten", "restore", "oversleep"), 1),
    **{"start": 4, "blow": 4, "grow": 3, "forget": 2},
}


def test_bad_days_end_equal_or_with_a_true_reason(distant: Distant, tmp_path: Path) -> None:
    seed = seed_of("bad days", usual=11)
    with history(distant.pair, tmp_path / "history", seed, distant=distant) as made:
        end = time.monotonic() + LIMIT_S

        def enough() -> bool:
            assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {dict(made.actions)}"
            return all(made.actions[action] >= count for action, count in BAD_DAYS.items())

        made.run(enough)
        made.settle()
        assert made.check() > 0
        print(dict(made.actions))


@pytest.mark.parametrize(("seed", "hidden"), [pytest.param(1, False, marks=pytest.mark.slow), (2, False), (3, True)])
def test_whatever_happens_the_destination_is_the_committed_source(
    pair: Pair, tmp_path: Path, seed: int, hidden: bool
) -> None:
    chosen = seed_of(f"history {seed}", usual=seed)
    with history(pair, tmp_path / "history", chosen, hidden=hidden) as made:
        end = time.monotonic() + LIMIT_S

        def enough() -> bool:
            assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {dict(made.actions)}"
            return all(made.actions[action] >= count for action, count in ENOUGH.items())

        made.run(enough)
        print(dict(made.actions))
        made.settle()
        assert made.check() > 0
