"""The trigger of a watched data plane: fires when it ends on purpose, or is unhealthy for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mirror_core.decide.fence_state import explain_nothing_to_watch
from mirror_core.model.errors import BadRequest, MirrorError, MissingPermission, Unreachable
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import MAX_FRESH_AGE_S, SteadyClock
from mirror_core.state.state_records import State
from mirrorbook_airflow.mirror_lookup import provide_mirror_config
from mirrorbook_airflow.trigger_threads import TriggerThreads

POLL_INTERVAL_S: Final = 2.0
_THREADS: Final = TriggerThreads("data-planes", 16)
LIVED_KEY: Final = "lived"
"""In the event `unhealthy`: whether a new heartbeat came during this watch."""


def explain_watch_end(state: State, mirror: MirrorName) -> str | None:
    """The reason; None while the watch goes on. Pure."""
    return explain_nothing_to_watch(state.mirrors.get(mirror), state.pending_fences.get(mirror))


def is_expected_absent(state: State, mirror: MirrorName) -> bool:
    """The data plane is expected to be away: a run holds the mirror, or the mirror is paused or stopped. Pure.

    Watching goes on, to see that it comes back.
    """
    return bool(state.active_run(mirror)) or state.mirrors[mirror].desired is not DesiredState.STARTED


def find_last_heartbeat_ms(state: State, mirror: MirrorName) -> int:
    """By its owner's clock; 0: none. Pure."""
    lease = state.leases.get(mirror)
    return 0 if lease is None or lease.released else lease.heartbeat_ms


class DataPlaneTrigger(BaseTrigger):
    """Fires once: `ended` with a reason, or `unhealthy` with the problem and the last heartbeat."""

    def __init__(self, mirror: str, destination: str, patience_s: float):
        super().__init__()
        self.mirror = MirrorName(mirror)
        self.destination = destination
        self._config_in_use: Path | None = None
        self.patience_s = patience_s
        """Time until the first heartbeat, also after a pause or a run."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("mirror", "destination", "patience_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        grace_s = self.patience_s - MAX_FRESH_AGE_S
        clock = SteadyClock()  # a wall clock that is set must not end a data plane that lives
        healthy_s = clock() + grace_s
        problem = "its lease has no heartbeat"
        details: dict[str, Any] = {"seen_ms": 0, LIVED_KEY: False}
        newest_heartbeat_ms: int | None = None
        while True:
            try:
                state = await _THREADS.run(self._read_state)
                if reason := explain_watch_end(state, self.mirror):
                    yield TriggerEvent({"status": "ended", "reason": reason})
                    return
                mirror, heartbeat_ms = state.mirrors[self.mirror], find_last_heartbeat_ms(state, self.mirror)
                details["seen_ms"] = heartbeat_ms or details["seen_ms"]
                details |= {"source": mirror.source, "destination": mirror.destination}
                if is_expected_absent(state, self.mirror):
                    healthy_s = max(healthy_s, clock() + grace_s)
                elif heartbeat_ms not in (0, newest_heartbeat_ms):  # a new one; its age says nothing: clocks may differ
                    details[LIVED_KEY] |= newest_heartbeat_ms is not None
                    healthy_s = max(healthy_s, clock())
                newest_heartbeat_ms = heartbeat_ms
                problem = "its lease has no heartbeat"
            except Unreachable as error:
                problem = str(error)
            except MirrorError as error:
                yield TriggerEvent({"status": "unhealthy", "reason": str(error), **details})
                return
            silent_s = clock() - healthy_s
            if silent_s > MAX_FRESH_AGE_S:
                yield TriggerEvent({"status": "unhealthy", "reason": f"{problem} for {silent_s:.0f} s", **details})
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    def _read_state(self) -> State:
        """Reads connections again only after a failed read: a vault of secrets may count each request."""
        from mirror_core.state.mirror_link import load_clusters, read_cluster_state

        path = self._config_in_use or provide_mirror_config(self.mirror)
        self._config_in_use = None
        clusters = load_clusters(path)
        try:
            state = read_cluster_state(clusters, self.destination)
        except (BadRequest, MissingPermission):  # a password that was changed in Airflow since
            path = provide_mirror_config(self.mirror)
            if (reloaded := load_clusters(path)) == clusters:
                raise
            state = read_cluster_state(reloaded, self.destination)
        self._config_in_use = path
        return state
