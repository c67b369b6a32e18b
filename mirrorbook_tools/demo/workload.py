"""The applications at work while a demonstration goes on: counted, looked after, and waited for.

The two applications as their owner sees them: started, told where to work, stopped; and what they have done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_core.model.errors import MirrorError
from mirrorbook_tools.demo import discovery
from mirrorbook_tools.demo.discovery import Discovery
from mirrorbook_tools.demo.logs import PARTITIONS, QUIET, TOPIC, Event, LogEnds, Written
from mirrorbook_tools.demo.processes import Processes
from mirrorbook_tools.demo.terminal_screen import Counters, Screen
from mirrorbook_tools.sandbox.credentials import ADMIN
from mirrorbook_tools.sandbox.sandbox import Sandbox

NAMES: Final = ("producer", "consumer")
HOME: Final = "east"
STOP_S: Final = 150.0
"""A producer that cannot learn the fate of its last records gives up after 120 s."""


class Applications:
    """In their folder: a log each, and what each writes down."""

    def __init__(self, folder: Path, sandbox: Sandbox, processes: Processes) -> None:
        self.folder = folder
        self.discovery = Discovery(folder / "primary")
        self.acknowledged = Written(folder / "acknowledged.tsv")
        self.handled = Written(folder / "handled.tsv")
        self._sandbox = sandbox
        self._processes = processes
        self._at_work: list[str] = []

    def start(self) -> None:
        """Both, on east, on a topic that is new."""
        admin = AdminClient({**self._sandbox.cluster(HOME).client_config(ADMIN), **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
        self.folder.mkdir()
        self.discovery.switch(HOME)
        for name in NAMES:
            command = [sys.executable, "-m", f"mirrorbook_tools.demo.{name}", str(self._sandbox.dir), str(self.folder)]
            self._processes.start(name, command, out=self.log(name))
            self._at_work.append(name)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def ended(self) -> str | None:
        """The name of one that has ended by itself; None while all run that were not told to stop."""
        return next((name for name in self._at_work if self._processes.ended(name) is not None), None)

    def stop(self, name: str) -> int:
        """Ask it to finish; its exit code."""
        self._at_work.remove(name)
        return self._processes.stop(name, STOP_S)

    def switch_hook(self) -> dict[str, Any]:
        """What a mirror's step `switch` calls, as `mirrorbook.yaml` says it, so that the applications move."""
        return {"name": "discovery", "command": [sys.executable, discovery.__file__, str(self.discovery.path)]}


LIVE: Final = 600
"""Orders that are acknowledged in an act before the next one: a few seconds of life."""
WAIT_S: Final = 300.0
"""For a condition: a data plane's start on a busy laptop is no incident."""
CUT_OFF: Final = 100
"""Orders that east acknowledges while nothing gets through to west: half a second of life."""
POLL_S: Final = 0.2


class StoryFailed(MirrorError):
    """Something of a demonstration did not do what it must."""


class Life:
    """For one demonstration. `logs`: where to look if it waited in vain.

    `beside` is called in each moment of waiting in which west is watched: it raises when copying has ended.
    """

    def __init__(
        self,
        applications: Applications,
        sandbox: Sandbox,
        screen: Screen,
        *,
        logs: Path,
        beside: Callable[[], None],
    ) -> None:
        self._applications = applications
        self._sandbox = sandbox
        self._screen = screen
        self._logs = logs
        self._beside = beside
        self._west: LogEnds | None = None
        self._playing = False
        self.behind: int | None = None
        """Orders that west does not have yet; None while it is not watched, or does not answer."""

    def begin(self) -> None:
        """The applications start, on east."""
        self._applications.start()
        self._playing = True

    def end(self) -> None:
        """They have ended; there is nothing to count any more."""
        self._playing = False
        self._screen.still()

    def watch_west(self) -> None:
        """From now on it is counted how far west is behind."""
        self._west = LogEnds(self._sandbox.cluster("west").client_config(ADMIN))

    def await_copy(self, behind: int) -> None:
        """Wait until west is at most so many orders behind."""
        self.watch_west()
        self.until(lambda: self.behind is not None and self.behind < behind, "west has what east has")
        self._screen.say(f"west is {self.behind} orders behind, live, and has the same offsets")

    def lose_east(self) -> None:
        """First nothing gets through to west for a moment, then east dies while orders are written."""
        self.leave_west()  # it answers nobody while it is cut off
        enough = self._applications.acknowledged.on("east") + CUT_OFF
        west = self._sandbox.cluster("west")
        west.stop_process()
        try:
            self.until(lambda: self._applications.acknowledged.on("east") >= enough, "east goes on without west")
            self._sandbox.cluster("east").kill()
        finally:
            west.cont_process()
        self._screen.say("east was killed while orders were written; west had not got the last ones yet")

    def check_switch(self, cluster: str, conductor: str) -> None:
        """StoryFailed when the applications were not told to use this cluster."""
        if (primary := self._applications.discovery.primary()) != cluster:
            raise StoryFailed(f"{conductor} has not told the applications to use {cluster}: they use {primary}")

    def stop_producer(self) -> list[Event]:
        """All that was acknowledged."""
        if code := self._applications.stop("producer"):
            raise StoryFailed(f"the producer could not learn what became of its last orders: exit code {code}")
        return self._applications.acknowledged.read_new()

    def stop_consumer(self, wanted: Set[int]) -> list[Event]:
        """All that was handled: when these orders are, or nothing more is to be expected."""
        handled = self._applications.handled
        self.until(lambda: wanted <= handled.numbers(), "the consumer has handled every order", fatal=False)
        self._applications.stop("consumer")
        self.end()
        return handled.read_new()

    def leave_west(self) -> None:
        if self._west is not None:
            self._west.close()
        self._west = self.behind = None

    def at_work(self, cluster: str) -> None:
        """Wait for a few seconds of ordinary work there: orders acknowledged, and handled."""
        acked = self._applications.acknowledged.on(cluster)
        self.until(lambda: self._applications.acknowledged.on(cluster) >= acked + LIVE, f"orders go to {cluster}")
        last = max(self._applications.acknowledged.numbers())
        self.until(lambda: last in self._applications.handled.numbers(), "the consumer handles orders")
        self._screen.say(f"applications work on {cluster}: {len(self._applications.handled.numbers()):,} orders read")

    def until(self, condition: Callable[[], bool], why: str, *, fatal: bool = True) -> None:
        """Wait. What is not fatal is left for the verdict to find."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                late = f"not within {WAIT_S:.0f} s: {why}; logs are in {self._logs}"
                if fatal:
                    raise StoryFailed(late)
                self._screen.say(late)
                return
            self.tick()

    def tick(self) -> None:
        """A moment of waiting: are all well, and how far are they?"""
        if self._playing:
            if name := self._applications.ended():
                raise StoryFailed(f"the {name} has ended by itself: see {self._applications.log(name)}")
            if self._west is not None:
                self._beside()
            self._screen.counters(self._counted())
        time.sleep(POLL_S)

    # -- inside -------------------------------------------------------------------------------------------------

    def _counted(self) -> Counters:
        # In the order of a record's way backwards, so that none seems to be read before it is written.
        copied = self._copied()
        read = len(self._applications.handled.numbers())
        written = len(self._applications.acknowledged.read_new())
        self.behind = None if copied is None else max(0, written - copied)
        last_ms = self._applications.acknowledged.last_ms
        return Counters(
            written=written,
            read=min(read, written),
            behind=self.behind,
            silent_s=None if last_ms is None else max(0.0, time.time() - last_ms / 1000),
        )

    def _copied(self) -> int | None:
        """Orders that west holds; None when nothing is copied, or it does not answer."""
        try:
            return None if self._west is None else sum(self._west.read_new(timeout_s=1.0))
        except KafkaException:
            return None  # the counters say so; what matters is waited for
