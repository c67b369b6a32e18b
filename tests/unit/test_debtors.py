"""Many mirrors that owe something: nobody waits for another one's silent cluster before it was looked at."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from mirror_core.decide.standing import Judgement, Standing
from mirror_core.mirrors import debtors
from mirror_core.model.errors import Indeterminate, LostOwnership, Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.link import Link
from tests.unit.test_refusals import LINK

WELL = Judgement(standing=Standing.STANDS)
SILENT = Judgement(standing=Standing.OWED, silent=True)


def links(count: int) -> list[Link]:
    return [replace(LINK, mirror=replace(LINK.mirror, name=MirrorName(f"m{n}"))) for n in range(count)]


def test_all_are_looked_at_and_each_silent_cluster_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, broken = LostOwnership("somebody else has it"), Indeterminate("a record that nobody can read")
    answers: dict[str, Any] = {"m0": WELL, "m1": lost, "m2": broken, "m3": KeyError("hush")}

    def look(link: Link) -> Judgement:
        found = answers.get(link.mirror.name, SILENT)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Judgement)
        return found

    monkeypatch.setattr(debtors, "look_after", look)
    found = debtors.look_at_each(links(32))
    assert len(found) == 32
    defect = str(found[MirrorName("m3")])
    assert defect.startswith("a defect of Mirrorbook: KeyError"), "one mirror's defect hides all others' alarms"
    assert "hush" not in defect
    assert [found[MirrorName(name)] for name in ("m0", "m1", "m2")] == [WELL, lost, broken]
    assert debtors.silent(links(32), found) == {LINK.source.name: [f"m{n}" for n in range(4, 32)]}


def test_what_passes_by_itself_is_looked_at_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def look(link: Link) -> Judgement:
        seen.append(link.mirror.name)
        if len(seen) == 1:
            raise Unreachable("west does not answer")
        return WELL

    monkeypatch.setattr(debtors, "AGAIN_S", 0.0)
    monkeypatch.setattr(debtors, "look_after", look)
    assert debtors.look_at_each(links(1)) == {"m0": WELL}
    assert seen == ["m0", "m0"]


@pytest.mark.parametrize("answered", [True, False])
def test_one_wait_is_for_all_mirrors_of_a_cluster(monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    waits = list[float]()

    def answers(link: Link, stop: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return answered

    monkeypatch.setattr(debtors, "answers", answers)
    monkeypatch.setattr(debtors, "read_state", lambda cluster: None)
    monkeypatch.setattr(debtors, "look_after", lambda link: WELL)
    found = debtors.look_when_it_answers(links(32), 45)
    assert waits == [45]
    assert len(found) == (32 if answered else 0)
