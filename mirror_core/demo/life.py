"""The applications at work while a demonstration goes on: counted, looked after, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from mirror_core.demo.applications import Applications
from mirror_core.demo.logs import LogEnds
from mirror_core.demo.screen import Counters, Screen
from mirror_core.model.errors import MirrorError
from mirror_core.sandbox.credentials import ADMIN
from mirror_core.sandbox.sandbox import Sandbox

LIVE: Final = 600
"""Orders that are acknowledged in an act before the next one: a few seconds of life."""
POLL_S: Final = 0.2


class StoryFailed(MirrorError):
    """Something of a demonstration did not do what it must."""


class Life:
    """Of one demonstration. `wait_s`: how long it waits for a condition; `logs`: where to look if that was in vain.

    `beside` is called in each moment of waiting in which west is watched: it raises when copying has ended.
    """

    def __init__(
        self,
        applications: Applications,
        sandbox: Sandbox,
        screen: Screen,
        *,
        logs: Path,
        wait_s: float,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self._applications = applications
        self._sandbox = sandbox
        self._screen = screen
        self._logs = logs
        self._wait_s = wait_s
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
        deadline = time.monotonic() + self._wait_s
        while not condition():
            if time.monotonic() > deadline:
                late = f"not within {self._wait_s:.0f} s: {why}; logs are in {self._logs}"
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
        written = len(self._applications.acknowledged.look())
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
            return None if self._west is None else sum(self._west.look(timeout_s=1.0))
        except KafkaException:
            return None  # the counters say so; what matters is waited for
