"""Watching a mirror's data plane: a trigger that waits for it to be stopped on purpose, or to be ill for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mirror_core.model.clock import FRESH_S, now_ms
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.mirror import Desired
from mirror_core.model.names import MirrorName
from mirror_core.state.records import State

POLL_S: Final = 2.0


def ended(state: State, mirror: MirrorName) -> str | None:
    """Why there is nothing left to watch; None while there is. Pure."""
    found = state.mirrors.get(mirror)
    if found is None:
        return "the mirror was deleted"
    return None if found.desired is Desired.STARTED else f"the mirror is {found.desired.lower()}"


def last_sign_ms(state: State, mirror: MirrorName, now_ms: int) -> int:
    """Wall clock of the newest sign of life. A run that holds the mirror is one: it keeps the data plane away. Pure."""
    if state.active_run(mirror):
        return now_ms
    lease = state.leases.get(mirror)
    return 0 if lease is None or lease.released else lease.beat_ms


class DataPlaneTrigger(BaseTrigger):
    """Fires once: `ended` with the reason, or `unhealthy` with what is wrong."""

    def __init__(self, mirror: str, destination: str, config_path: str, home: str, args: list[str], patience_s: float):
        super().__init__()
        self.mirror = MirrorName(mirror)
        self.destination = destination
        self.config_path = config_path
        self.home = home
        self.args = args
        self.patience_s = patience_s
        """How long the data plane may take to show its first sign of life."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("mirror", "destination", "config_path", "home", "args", "patience_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        healthy_ms = now_ms() + round((self.patience_s - FRESH_S) * 1000)
        problem = "its lease has no heartbeat"
        while True:
            try:
                state = await asyncio.to_thread(self._look)
                if reason := ended(state, self.mirror):
                    yield TriggerEvent({"status": "ended", "reason": reason})
                    return
                healthy_ms = max(healthy_ms, last_sign_ms(state, self.mirror, now_ms()))
                problem = "its lease has no heartbeat"
            except Unreachable as error:
                problem = str(error)
            except MirrorError as error:
                yield TriggerEvent({"status": "unhealthy", "reason": str(error)})
                return
            silent_s = (now_ms() - healthy_ms) / 1000
            if silent_s > FRESH_S:
                yield TriggerEvent({"status": "unhealthy", "reason": f"{problem} for {silent_s:.0f} s"})
                return
            await asyncio.sleep(POLL_S)

    def _look(self) -> State:
        """The mirror's state now; a supervisor that has died is started again first."""
        from mirror_core.state.link import configured, state_on
        from mirror_core.supervisor.supervise import ensure

        path = Path(self.config_path)
        ensure(path, self.mirror, Path(self.home), self.args)
        return state_on(configured(path), self.destination)
