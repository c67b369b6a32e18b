"""Heartbeats of `mirror watch`, written without fencing the owner."""

from __future__ import annotations

import time
from typing import Final

from mirror_core.decide.watchers import LOOKS, STEP, Watched, Watching, judged, newest
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.checkpoint import Watcher
from mirror_core.model.clock import now_ms
from mirror_core.model.defects import named
from mirror_core.model.logs import logger
from mirror_core.model.names import DRILL, MirrorName
from mirror_core.state.aside import Aside
from mirror_core.state.journal import checkpoint
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.supervisor.identity import this_process

_log = logger(__name__)

SIGN_S: Final = 30.0
"""Minimum interval."""
_PATIENCE_S: Final = 2.0


class Signs:
    """Failures never affect watching."""

    def __init__(self, cluster: ClusterConfig, by: str, every_s: float) -> None:
        """`every_s`: longest interval."""
        self._cluster = cluster
        self._by = by
        self._every_s = every_s
        self._aside: Aside | None = None
        self._worn = False
        """The client may hold an expired certificate."""
        self._given: dict[MirrorName, float] = {}

    def __enter__(self) -> Signs:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._aside is not None and not self._aside.empty(_PATIENCE_S):
                self._lost("no answer in time")
        except Exception as error:  # noqa: BLE001 - said, and nothing depends on it
            self._lost(named(error))

    def give(self, mirror: MirrorName) -> None:
        """Rate-limited. Drills are not watched."""
        if mirror.startswith(DRILL):
            return
        if time.monotonic() - self._given.get(mirror, -SIGN_S) < SIGN_S:
            return
        self._given[mirror] = time.monotonic()
        me = this_process()
        sign = Watcher(by=self._by, host=me.machine.host, pid=me.pid, at_ms=now_ms(), every_s=self._every_s)
        try:
            if self._aside is None or self._worn:
                if self._aside is not None:
                    self._aside.empty(0.0)
                self._aside, self._worn = Aside(self._cluster), False
            self._aside.put(checkpoint(mirror, STEP, sign), self._lost)
        except Exception as error:  # noqa: BLE001 - said, and the next one is tried
            self._lost(named(error))

    def _lost(self, why: str) -> None:
        self._worn = True
        _log.warning(
            "watches on, but its sign of life was not written to the state topic, so others may say that nobody "
            "watches: %s",
            why,
            cluster=self._cluster.name,
        )


def busy_s(link: Link) -> float:
    """Slow fence commands delay checks. `LOOKS` checks may be missed."""
    ruling = link.source.ruling
    shut, opened = ruling.fence, ruling.unfence
    opening_s = opened.timeout_s * (opened.retries + 1) if opened else 0.0
    return max(shut.timeout_s if shut else 0.0, opening_s) / LOOKS


def watched(state: State, mirror: MirrorName, at_ms: int | None = None) -> Watched:
    """From one read and the clocks."""
    now, debt = now_ms() if at_ms is None else at_ms, f"debt/{mirror}"
    if debt in state.unreadable and not mirror.startswith(DRILL):
        words = f"it is not known whether an old source has to be watched: key {debt}: {state.unreadable[debt]}"
        return Watched(watching=Watching.UNKNOWN, mirror=mirror, words=words)
    return judged(mirror, state.debts.get(mirror), newest(mirror, state.checkpoints), now)
