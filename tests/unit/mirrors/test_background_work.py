"""What is done beside copying takes turns: whoever takes the control id ends what another one does with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from mirror_core.dataplane.counters import Counters
from mirror_core.mirrors import background_work
from mirror_core.mirrors.background_work import BackgroundSync, BackgroundVerification

if TYPE_CHECKING:
    import pytest


class Turns:
    def __init__(self, acts: list[str]) -> None:
        self._acts = acts

    def __enter__(self) -> None:
        self._acts.append("begins")

    def __exit__(self, *_: object) -> None:
        self._acts.append("ends")


def test_a_sync_and_the_saving_of_a_proof_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = list[str]()
    link, writes = cast("Any", SimpleNamespace()), cast("Any", Turns(acts))

    def sync(_: object) -> SimpleNamespace:
        acts.append("syncs")
        return SimpleNamespace(refused=())

    monkeypatch.setattr(background_work, "run_sync", sync)
    BackgroundSync(link, Counters(), acts.append, writes).work_once()
    assert acts == ["begins", "syncs", "ends"]
    acts.clear()
    store = cast("Any", SimpleNamespace(save_proof=lambda proof: acts.append("saves")))
    BackgroundVerification(link, 1, Counters(), acts.append, writes)._save_proof(store, cast("Any", None))
    assert acts == ["begins", "saves", "ends"]
