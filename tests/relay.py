"""A wide-area link on one machine: connections to brokers that take their time, have a bandwidth, stall or break.

`relay()` runs it in a process of its own, so that it takes nothing of the interpreter of the copier under test. What is
read from one side is written to the other one `delay_ms` later. As on a real link, no more than so many bytes are on
their way (`WINDOW`), and a sender that is faster waits.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final

from mirror_core.sandbox.ports import HOST

WINDOW: Final = 16 << 20
"""Bytes of one connection on their way in one direction: what operating systems are tuned to for such links."""
_READ: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Weather:
    """How the link is now."""

    delay_ms: float = 0.0
    """One way."""
    bytes_per_s: float = 0.0
    """Of one connection in one direction; 0: no limit."""
    stalled: bool = False
    """Nothing comes through, and nothing breaks."""


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
def relay(routes: Mapping[int, int]) -> Iterator[Relay]:
    """`routes`: brokers' ports, by the ports that stand for them."""
    command = [sys.executable, "-m", "tests.relay", json.dumps({str(port): to for port, to in routes.items()})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Relay(process)
        finally:
            process.kill()


class _Route:
    """The link to one broker, in the relay's own process."""

    def __init__(self, target: int) -> None:
        self.weather = Weather()
        self._target = target
        self._clear = asyncio.Event()
        self._clear.set()
        self._writers = set[asyncio.StreamWriter]()

    def becomes(self, weather: Weather) -> None:
        self.weather = weather
        (self._clear.clear if weather.stalled else self._clear.set)()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await asyncio.sleep(2 * self.weather.delay_ms / 1000)  # the handshake of TCP
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target, limit=_READ)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._way(reader, far_writer))
                    both.create_task(self._way(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except* OSError:  # the broker is dead, or has closed: so it looks through the link, too
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of one connection, until it is closed."""
        travelling = asyncio.Queue[tuple[float, bytes]]()
        under_way, room = 0, asyncio.Event()

        async def arrive() -> None:
            nonlocal under_way
            while True:
                due, part = await travelling.get()
                await asyncio.sleep(due - clock())
                await self._clear.wait()
                if not part:
                    writer.write_eof()
                    return
                writer.write(part)
                await writer.drain()
                under_way -= len(part)
                room.set()

        clock, free_at = asyncio.get_running_loop().time, 0.0
        arriving = asyncio.ensure_future(arrive())
        try:
            while part := await reader.read(_READ):
                free_at = max(clock(), free_at)
                if self.weather.bytes_per_s:
                    free_at += len(part) / self.weather.bytes_per_s
                travelling.put_nowait((free_at + self.weather.delay_ms / 1000, part))
                under_way += len(part)
                while under_way > WINDOW and not arriving.done():
                    room.clear()
                    await room.wait()
            travelling.put_nowait((max(clock(), free_at) + self.weather.delay_ms / 1000, b""))
            await arriving
        finally:
            arriving.cancel()


async def _serve(wanted: Mapping[int, int]) -> None:
    routes = {port: _Route(target) for port, target in wanted.items()}
    for port, route in routes.items():
        await asyncio.start_server(route.connected, HOST, port, limit=_READ)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        for port in order["ports"]:
            if "weather" in order:
                routes[port].becomes(Weather(**order["weather"]))
            else:
                routes[port].cut()
        print("done", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve({int(port): target for port, target in json.loads(sys.argv[1]).items()}))
