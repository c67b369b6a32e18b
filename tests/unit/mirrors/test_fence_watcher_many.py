"""Many mirrors that owe something: nobody waits for another one's silent cluster before it was looked at."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.mirrors import fence_watcher
from mirror_core.model.errors import Indeterminate, LostOwnership, Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import MirrorLink
from tests.support.cluster_names import LINK

WELL = FenceDecision(state=FenceState.APPLIED)
SILENT = FenceDecision(state=FenceState.PENDING, is_silent=True)


def links(count: int) -> list[MirrorLink]:
    return [replace(LINK, mirror=replace(LINK.mirror, name=MirrorName(f"m{n}"))) for n in range(count)]


def test_all_are_looked_at_and_each_silent_cluster_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, broken = LostOwnership("somebody else has it"), Indeterminate("a record that nobody can read")
    answers: dict[str, Any] = {"m0": WELL, "m1": lost, "m2": broken, "m3": KeyError("hush")}

    def look(link: MirrorLink) -> FenceDecision:
        found = answers.get(link.mirror.name, SILENT)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, FenceDecision)
        return found

    monkeypatch.setattr(fence_watcher, "check_fence", look)
    found = fence_watcher.probe_each(links(32))
    assert len(found) == 32
    defect = str(found[MirrorName("m3")])
    assert defect.startswith("a defect of Mirrorbook: KeyError"), "one mirror's defect hides all others' alarms"
    assert "hush" not in defect
    assert [found[MirrorName(name)] for name in ("m0", "m1", "m2")] == [WELL, lost, broken]
    assert fence_watcher.list_silent_sources(links(32), found) == {LINK.source.name: [f"m{n}" for n in range(4, 32)]}


def test_what_passes_by_itself_is_looked_at_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def look(link: MirrorLink) -> FenceDecision:
        seen.append(link.mirror.name)
        if len(seen) == 1:
            raise Unreachable("west does not answer")
        return WELL

    monkeypatch.setattr(fence_watcher, "PROBE_RETRY_S", 0.0)
    monkeypatch.setattr(fence_watcher, "check_fence", look)
    assert fence_watcher.probe_each(links(1)) == {"m0": WELL}
    assert seen == ["m0", "m0"]


@pytest.mark.parametrize("answered", [True, False])
def test_one_wait_is_for_all_mirrors_of_a_cluster(monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    waits = list[float]()

    def answers(link: MirrorLink, stop: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return answered

    monkeypatch.setattr(fence_watcher, "wait_for_answer", answers)
    monkeypatch.setattr(fence_watcher, "read_state", lambda cluster: None)
    monkeypatch.setattr(fence_watcher, "check_fence", lambda link: WELL)
    found = fence_watcher.probe_on_first_answer(links(32), 45)
    assert waits == [45]
    assert len(found) == (32 if answered else 0)
