"""Seeds are the same in each run unless somebody asks for others."""

from __future__ import annotations

import pytest

from tests.support.random_seeds import EXPLORE, SEED, seed_of


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (EXPLORE, SEED):
        monkeypatch.delenv(name, raising=False)


def test_a_test_has_the_same_seed_in_each_run_and_another_one_than_its_neighbour() -> None:
    assert seed_of("killed copier, local") == 2088120904
    assert seed_of("killed copier, spark") != seed_of("killed copier, local")
    assert seed_of("a history", usual=11) == 11


def test_exploring_has_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXPLORE, "1")
    assert len({seed_of("a", usual=1) for _ in range(4)}) > 1


def test_the_one_that_a_failure_has_named_comes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(EXPLORE, "1")
    seed = seed_of("a")
    assert capsys.readouterr().out == f"a: seed {seed}; again with MIRRORBOOK_SEED={seed}\n"
    monkeypatch.setenv(SEED, str(seed))
    assert seed_of("a") == seed
