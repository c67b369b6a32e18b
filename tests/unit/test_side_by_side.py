"""Several mirrors at the same time: each in a thread."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.errors import LostOwnership, MirrorError, Refused, Unreachable
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.runbook import side_by_side
from mirror_core.runbook.set_runs import Standing
from mirror_core.runbook.sets import Together
from mirror_core.runbook.side_by_side import at_once, patiently
from tests.unit.test_decide_verbs import RUN

A, B = MirrorName("a"), MirrorName("b")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "PAUSE_S", 0.0)


def test_what_fails_for_a_moment_is_tried_again_beside_the_others() -> None:
    errors: list[MirrorError] = [Unreachable("for a moment")]
    log, said = list[str](), list[str]()

    def once(name: MirrorName) -> None:
        if name == A and errors:
            raise errors.pop()
        log.append(name)

    failed = at_once({name: partial(patiently, name, said.append, partial(once, name)) for name in (A, B)}, said.append)
    assert (sorted(log), failed, said) == (["a", "b"], {}, ["a: for a moment; once more"])


def test_who_loses_one_of_them_leaves_the_others_where_they_are() -> None:
    def lose() -> None:
        raise LostOwnership("x")

    with pytest.raises(LostOwnership, match=r"^a: x; the others wait where they are"):
        at_once({A: lose, B: lambda: None}, print)


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
