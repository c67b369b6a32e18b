"""Several mirrors at the same time: each in a thread, and held from the first to the last round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.errors import LostOwnership, MirrorError, Refused, Unreachable
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.runbook import side_by_side
from mirror_core.runbook.set_runs import SetFailed, Standing
from mirror_core.runbook.sets import Together
from mirror_core.runbook.side_by_side import held
from tests.unit.test_decide_verbs import RUN

A, B = MirrorName("a"), MirrorName("b")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "PAUSE_S", 0.0)


def contexts(log: list[str], errors: dict[MirrorName, list[MirrorError]]) -> dict[MirrorName, Any]:
    """What is done in each of them; of these errors each is one of an attempt to enter it."""

    @contextmanager
    def one(name: MirrorName) -> Iterator[None]:
        if errors.get(name):
            raise errors[name].pop()
        log.append(f"+{name}")
        try:
            yield
        finally:
            log.append(f"-{name}")

    made: dict[MirrorName, Callable[[], AbstractContextManager[None]]] = {name: partial(one, name) for name in (A, B)}
    return made


def test_all_are_held_until_the_last_one_is_through() -> None:
    log, said = list[str](), list[str]()
    with held(contexts(log, {A: [Unreachable("for a moment")]}), said.append) as failed:
        log.append("rounds")
    assert (sorted(log[:2]), log[2], sorted(log[3:])) == (["+a", "+b"], "rounds", ["-a", "-b"])
    assert (failed, said) == ({}, ["a: for a moment; once more"])


def test_one_that_cannot_be_had_is_told_of_and_the_others_are_held() -> None:
    log, error = list[str](), Refused("no", ["not now"])

    def rounds() -> None:
        with held(contexts(log, {A: [error]}), print) as failed:
            raise SetFailed(", ".join(failed))

    with pytest.raises(SetFailed, match=r"^a$"):
        rounds()
    assert log == ["+b", "-b"]


def test_who_loses_one_lets_go_of_the_others() -> None:
    log = list[str]()
    with pytest.raises(LostOwnership, match="the others wait"), held(contexts(log, {A: [LostOwnership("x")]}), print):
        pytest.fail("it goes on")
    assert log == ["+b", "-b"]


def test_interrupted_it_lets_go_of_none_since_its_threads_are_at_work_still() -> None:
    log = list[str]()
    with pytest.raises(KeyboardInterrupt), held(contexts(log, {}), print):
        raise KeyboardInterrupt
    assert sorted(log) == ["+a", "+b"]


def test_a_set_is_not_gone_on_with_by_airflow_while_a_person_conducts_one_of_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that has lost it: its teardown leaves all of them alone."""
    asked = list[str]()

    def refuse(run_id: str, title: str) -> None:
        asked.append(run_id)
        raise Refused(title, ["it is conducted by ann"])

    one: Any = SimpleNamespace(started_by="airflow", refuse_conducted=refuse)
    several = Together(MirrorSet("shop", (A, B)), {A: one, B: one}, say=print)
    runs = {A: replace(RUN, id="a-1", conducted_by="ann"), B: replace(RUN, id="b-1", conducted_by="airflow")}
    monkeypatch.setattr(Together, "_standings", lambda self, attempt: {n: Standing(r, ()) for n, r in runs.items()})
    with pytest.raises(LostOwnership, match=r"a: run a-1 of set shop:\s+- it is conducted by ann"):
        several.refuse_conducted("shop-1")
    assert asked == ["a-1"]
