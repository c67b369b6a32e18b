"""A wide-area link on one machine: connections to a broker that take their time, have a bandwidth, stall or break.

What is read from one side is written to the other one `delay_ms` later. As on a real link, no more than so many bytes
are on their way (`WINDOW`), and a sender that is faster waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from mirrorbook_tools.sandbox.ports import HOST

WINDOW: Final = 16 << 20
"""Bytes of one connection on their way in one direction: what operating systems are tuned to for such links."""
READ: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Weather:
    """How the link is now."""

    delay_ms: float = 0.0
    """One way."""
    bytes_per_s: float = 0.0
    """For one connection in one direction; 0: no limit."""
    stalled: bool = False
    """Nothing comes through, and nothing breaks."""

    def __str__(self) -> str:
        if self.stalled:
            return "cut off"
        return f"{self.delay_ms:g} ms away, each way" if self.delay_ms else "near by"


class Route:
    """The link to one broker."""

    def __init__(self, target: int) -> None:
        self.weather = Weather()
        self._target = target
        self._clear = asyncio.Event()
        self._clear.set()
        self._writers = set[asyncio.StreamWriter]()

    def becomes(self, weather: Weather) -> None:
        """From now on it is so; what is on its way stays so."""
        self.weather = weather
        (self._clear.clear if weather.stalled else self._clear.set)()

    def cut(self) -> None:
        """Break all connections there are; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await asyncio.sleep(2 * self.weather.delay_ms / 1000)  # the handshake of TCP
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target, limit=READ)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._way(self.requests(reader), far_writer))
                    both.create_task(self._way(parts(far_reader), writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except* OSError:  # the broker is dead, or has closed: so it looks through the link, too
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def requests(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What a client sends."""
        return parts(reader)

    async def _way(self, sent: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
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
            async for part in sent:
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


async def parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(READ):
        yield part
