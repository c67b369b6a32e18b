"""The link between the sites, for game days: by it Mirrorbook reaches the sandbox's brokers, applications don't.

A process of its own; how the link is, is a file, so that whoever changes it needs no connection to the process. It
writes back what it has taken up.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from mirror_core.model.errors import BadRequest
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.ports import HOST, is_free
from mirrorbook_tools.sandbox.process import end, running, spawn
from mirrorbook_tools.sandbox.state import load_state, write_atomically
from mirrorbook_tools.sandbox.wan_proxy import READ, Route, Weather

MODULE: Final = "mirrorbook_tools.sandbox.wan_process"
WEATHER_FILE: Final = "weather.json"
TAKEN_UP_FILE: Final = "weather.now"
LOG_FILE: Final = "link.log"
_LOOK_S: Final = 0.05
_ANSWER_S: Final = 15.0
_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Link:
    """The handle of the process of the sandbox in this folder."""

    folder: Path

    def up(self, ports: Collection[int]) -> None:
        """Start it, if it is not running, and return when it takes connections. `ports`: those it listens on."""
        if self._process() is None:
            if taken := [port for port in ports if not is_free(port)]:
                raise SandboxFailed(f"the link cannot start: port {taken[0]} is taken by another process; stop that")
            (self.folder / TAKEN_UP_FILE).unlink(missing_ok=True)
            spawn([sys.executable, "-m", MODULE, str(self.folder / WEATHER_FILE)], self.folder / LOG_FILE)
        self._set(self._known())

    def becomes(self, ports: Collection[int], weather: Weather) -> None:
        """From now on it is so on the way to these brokers. Returns when it is."""
        if self._process() is None:
            raise BadRequest(
                "there is no link: `mirrorbook sandbox up` starts it, in a sandbox that was made with `up --link`"
            )
        self._set({**self._known(), **{str(port): asdict(weather) for port in ports}})

    def weather(self, port: int) -> Weather:
        """On the way to this broker."""
        known = self._known().get(str(port))
        return Weather(**known) if isinstance(known, dict) else Weather()

    def down(self) -> None:
        """End it; the next one begins with good weather."""
        end([one for one in [self._process()] if one], signal.SIGKILL, _GRACE_S)
        for file in (WEATHER_FILE, TAKEN_UP_FILE):
            (self.folder / file).unlink(missing_ok=True)

    def _process(self) -> psutil.Process | None:
        return next(running(MODULE, [self.folder / WEATHER_FILE]), None)

    def _known(self) -> dict[str, object]:
        path = self.folder / WEATHER_FILE
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _set(self, weather: dict[str, object]) -> None:
        wanted = json.dumps(weather, indent=2) + "\n"
        write_atomically(self.folder / WEATHER_FILE, wanted)
        deadline = time.monotonic() + _ANSWER_S
        while _text(self.folder / TAKEN_UP_FILE) != wanted:
            if time.monotonic() > deadline:
                raise SandboxFailed(f"the link has not answered for {_ANSWER_S:.0f} s: see {self.folder / LOG_FILE}")
            time.sleep(_LOOK_S)


async def serve(path: Path) -> None:
    """The process: until it is killed."""
    state = load_state(path.parent)
    if state is None:
        raise SandboxFailed(f"there is no sandbox in {path.parent}")
    routes = {
        str(ports.link): Route(ports.far)
        for cluster in state.clusters.values()
        for ports in cluster.nodes
        if ports.link is not None and ports.far is not None
    }
    for port, route in routes.items():
        await asyncio.start_server(route.connected, HOST, int(port), limit=READ)
    taken_up: str | None = None
    while True:
        wanted = _text(path)
        if wanted is not None and wanted != taken_up:
            for port, weather in json.loads(wanted).items():
                routes[port].becomes(Weather(**weather))
            write_atomically(path.with_name(TAKEN_UP_FILE), wanted)
            taken_up = wanted
        await asyncio.sleep(_LOOK_S)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
