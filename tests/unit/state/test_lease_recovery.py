"""A new writer for a lease that is still ours: an attempt that failed leaves nothing that fences somebody later."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName
from mirror_core.state import lease
from mirror_core.state.lease import LeaseRecovery
from mirror_core.state.state_records import State
from mirror_core.state.writer import StateWriter
from tests.support.waiting import wait_until

LEASE = Lease(mirror=MirrorName("m"), owner="me", generation=1, heartbeat_ms=1, writers_until_ms=1)


def test_an_attempt_that_failed_keeps_no_writer_and_none_of_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    made = list[weakref.ref[StateWriter]]()

    class Watched(StateWriter):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, timeout_s=0.2, **options)  # type: ignore[arg-type]
            made.append(weakref.ref(self))

    state = State()
    state.put(LEASE)
    monkeypatch.setattr(lease, "read_complete_state", lambda cluster: state)
    monkeypatch.setattr(lease, "StateWriter", Watched)
    gc.disable()  # what only a collector finds goes on asking brokers until then
    try:
        attempt = LeaseRecovery(load_config(path).cluster("west"), LEASE, lambda state: None, pause_s=0.0)
        wait_until(lambda: attempt.is_done, timeout_s=30, why="it has failed")
        with pytest.raises(Unreachable):
            attempt.get_writer()
        wait_until(lambda: made[0]() is None, timeout_s=5, why="its writer is gone")
    finally:
        gc.enable()
