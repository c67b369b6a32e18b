"""Whose logs are looked into first, where many are to be."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.copy.align import Aligner
from mirror_core.copy.beside import Beside
from mirror_core.copy.looks import AT_ONCE, Case
from mirror_core.decide.position import Seen
from mirror_core.model.names import Partition
from tests.judging import EAST, WEST
from tests.unit.test_looks import SEEN, replicator

MANY = 40


def looked_at(monkeypatch: pytest.MonkeyPatch, epoch: int) -> Sequence[Case]:
    """In this order, in an epoch. The higher a partition's number, the further it is behind."""
    east, west = (SimpleNamespace(name=name, metadata=lambda topics: None) for name in (EAST, WEST))
    begun, many = list[Case](), [replicator(index) for index in range(MANY)]
    settled_at = list[float]()

    def settled(wanted: dict[Partition, object]) -> dict[Partition, Seen]:
        settled_at.append(time.monotonic())
        return {p: replace(SEEN, source_end=100 + p.index) for p in wanted}

    def begin(cases: Sequence[Case]) -> Iterator[Any]:
        begun.extend(cases)
        return iter(())

    with closing(Beside()) as beside:
        aligner: Any = Aligner(east, west, 7, list, beside, epoch)  # type: ignore[arg-type]
        for name, instead in (("_route", lambda *_: True), ("_agreed", lambda _: {}), ("_settled", settled)):
            monkeypatch.setattr(aligner, name, instead)
        monkeypatch.setattr(aligner._looks, "begin", begin)
        aligner.align(many)
    assert all(case.asked <= settled_at[0] for case in begun), "a leader remembers what it did when it was asked"
    return begun


def test_those_furthest_behind_are_first_and_in_each_epoch_others_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no look ends in time, the same ones would hold up all others in each epoch."""
    first = set[int]()
    for epoch in range(MANY):
        numbers = [case.replicator.partition.index for case in looked_at(monkeypatch, epoch)]
        assert sorted(numbers) == list(range(MANY))
        assert numbers[0] == MANY - 1
        first.update(numbers[:AT_ONCE])
    assert first == set(range(MANY))
