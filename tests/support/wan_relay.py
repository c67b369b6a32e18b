"""A wide-area link on one machine, the sandbox's (`mirrorbook_tools.sandbox.wan_proxy`), under the orders of a test.

`relay()` runs it in a process of its own, so that it takes nothing of the interpreter of the copier under test.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from mirrorbook_tools.sandbox import wan_proxy
from mirrorbook_tools.sandbox.ports import HOST
from mirrorbook_tools.sandbox.wan_proxy import READ, Route


@dataclass(frozen=True, slots=True)
class Weather(wan_proxy.Weather):
    """How the link is now."""

    held: tuple[int, ...] = ()
    """API keys of requests that do not come through, nor does what follows them on their connection."""


class Relay:
    """The handle of its process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._answer() == "ready"

    def becomes(self, ports: Sequence[int], weather: Weather) -> None:
        """From now on it is so on the way to the brokers for which these ports stand; what is on its way stays so."""
        self._order(ports=list(ports), weather=asdict(weather))

    def cut(self, ports: Sequence[int]) -> None:
        """Break all connections there are; new ones are taken."""
        self._order(ports=list(ports))

    def _order(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def relay(routes: Mapping[int, int], host: str = HOST) -> Iterator[Relay]:
    """`routes`: brokers' ports, by the ports of `host` that stand for them."""
    command = [
        sys.executable,
        "-m",
        "tests.support.wan_relay",
        host,
        json.dumps({str(port): to for port, to in routes.items()}),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Relay(process)
        finally:
            process.kill()


class _Holding(Route):
    """A route that may also hold requests back, in the relay's own process."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.held: tuple[int, ...] = ()
        self._turned = asyncio.Event()

    def holds(self, weather: Weather) -> None:
        self.held = weather.held
        self.becomes(weather)
        self._turned.set()
        self._turned = asyncio.Event()

    async def requests(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What a client sends, held back where it is to be."""
        while head := await _head(reader):
            size, key = struct.unpack(">ih", head)
            while key in self.held:
                await self._turned.wait()
            yield head
            left = size - 2
            while left and (part := await reader.read(min(READ, left))):
                left -= len(part)
                yield part


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Length and API key of the next request; nothing when there is none any more."""
    try:
        return await reader.readexactly(6)
    except asyncio.IncompleteReadError:
        return b""


async def _serve(host: str, wanted: Mapping[int, int]) -> None:
    routes = {port: _Holding(target) for port, target in wanted.items()}
    for port, one in routes.items():
        await asyncio.start_server(one.connected, host, port, limit=READ)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        for port in order["ports"]:
            if "weather" in order:
                routes[port].holds(Weather(**order["weather"]))
            else:
                routes[port].cut()
        print("done", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(sys.argv[1], {int(port): target for port, target in json.loads(sys.argv[2]).items()}))
