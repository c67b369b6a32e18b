"""Watching a mirror's data plane: a trigger that waits for it to be stopped on purpose and to owe nothing, or to be ill
for too long."""

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
from mirror_core.model.timing import MAX_FRESH_AGE_S, now_ms
from mirror_core.state.state_records import State
from mirrorbook_airflow.mirror_lookup import config_path as current_path
from mirrorbook_airflow.params import starts_data_planes

POLL_S: Final = 2.0


def ended(state: State, mirror: MirrorName) -> str | None:
    """Why there is nothing left to watch; None while there is. Pure."""
    return explain_nothing_to_watch(state.mirrors.get(mirror), state.pending_fences.get(mirror))


def excused(state: State, mirror: MirrorName) -> bool:
    """Whether the data plane is away on purpose: a run holds the mirror, or it is paused, or stopped and owes something
    to its old source. Pure.

    Watching goes on, or nobody would be there to see that it comes back, or that the supervisor lives.
    """
    return bool(state.active_run(mirror)) or state.mirrors[mirror].desired is not DesiredState.STARTED


def last_sign_ms(state: State, mirror: MirrorName) -> int:
    """The newest sign of life, by its owner's clock; 0: none. Pure."""
    lease = state.leases.get(mirror)
    return 0 if lease is None or lease.released else lease.heartbeat_ms


class DataPlaneTrigger(BaseTrigger):
    """Fires once: `ended` with the reason, or `unhealthy` with what is wrong, and the newest sign of life before it."""

    def __init__(self, mirror: str, destination: str, config_path: str, home: str, args: list[str], patience_s: float):
        super().__init__()
        self.mirror = MirrorName(mirror)
        self.destination = destination
        self.config_path = config_path
        """The file that a worker wrote. Empty: data planes are run by somebody else, and nobody wrote one."""
        self.home = home
        """The supervisors' folder. Empty: no process is started here."""
        self.args = args
        self._held: Path | None = None
        self.patience_s = patience_s
        """How long the data plane may take to show its first sign of life, also after a pause or a run."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("mirror", "destination", "config_path", "home", "args", "patience_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        grace_ms = round((self.patience_s - MAX_FRESH_AGE_S) * 1000)
        healthy_ms = now_ms() + grace_ms
        problem = "its lease has no heartbeat"
        known: dict[str, Any] = {"seen_ms": 0}
        newest_sign_ms = 0
        while True:
            try:
                state = await asyncio.to_thread(self._look)
                if reason := ended(state, self.mirror):
                    yield TriggerEvent({"status": "ended", "reason": reason})
                    return
                mirror, sign_ms = state.mirrors[self.mirror], last_sign_ms(state, self.mirror)
                known["seen_ms"] = max(known["seen_ms"], sign_ms)
                known |= {"source": mirror.source, "destination": mirror.destination}
                if excused(state, self.mirror):
                    healthy_ms = max(healthy_ms, now_ms() + grace_ms)
                elif sign_ms not in (0, newest_sign_ms):  # a new one; how old is not asked: the clocks may differ
                    healthy_ms = max(healthy_ms, now_ms())
                newest_sign_ms = sign_ms
                problem = "its lease has no heartbeat"
            except Unreachable as error:
                problem = str(error)
            except MirrorError as error:
                yield TriggerEvent({"status": "unhealthy", "reason": str(error), **known})
                return
            silent_s = (now_ms() - healthy_ms) / 1000
            if silent_s > MAX_FRESH_AGE_S:
                yield TriggerEvent({"status": "unhealthy", "reason": f"{problem} for {silent_s:.0f} s", **known})
                return
            await asyncio.sleep(POLL_S)

    def _look(self) -> State:
        """The mirror's state now. A supervisor of ours that has died is started again first."""
        from mirror_core.state.mirror_link import load_clusters, read_cluster_state
        from mirror_core.supervisor.lifecycle import ensure_supervisor

        if not (self.config_path and starts_data_planes()):
            return self._look_by_connections()
        path = Path(self.config_path)
        if self.home:
            ensure_supervisor(path, self.mirror, Path(self.home), self.args)
        return read_cluster_state(load_clusters(path), self.destination)

    def _look_by_connections(self) -> State:
        """The same, with connections as this process asks Airflow for them: again only after a look that failed, since
        a vault of secrets may count each question."""
        from mirror_core.state.mirror_link import load_clusters, read_cluster_state

        path = self._held or current_path(self.mirror)
        self._held = None
        known = load_clusters(path)
        try:
            found = read_cluster_state(known, self.destination)
        except (BadRequest, MissingPermission):  # a password that was changed in Airflow since
            path = current_path(self.mirror)
            if (anew := load_clusters(path)) == known:
                raise
            found = read_cluster_state(anew, self.destination)
        self._held = path
        return found
