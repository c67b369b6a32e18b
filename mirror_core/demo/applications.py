"""The two applications as their owner sees them: started, told where to work, stopped; and what they have done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from mirror_core.demo import discovery
from mirror_core.demo.discovery import Discovery
from mirror_core.demo.logs import PARTITIONS, QUIET, TOPIC, Written
from mirror_core.demo.processes import Processes
from mirror_core.sandbox.credentials import ADMIN
from mirror_core.sandbox.sandbox import Sandbox

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
            command = [sys.executable, "-m", f"mirror_core.demo.{name}", str(self._sandbox.dir), str(self.folder)]
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


def lose_east(sandbox: Sandbox, while_cut_off: Callable[[], None]) -> None:
    """First nothing gets through to west, while that goes on; then east dies while orders are written."""
    west = sandbox.cluster("west")
    west.stop_process()
    try:
        while_cut_off()
        sandbox.cluster("east").kill()
    finally:
        west.cont_process()
