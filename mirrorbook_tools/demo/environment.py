"""What both demonstrations start, and how it is all stopped again: two clusters, two applications, `mirrorbook`.

`mirrorbook demo` plays on this stage, `make demo` on one that has an Airflow, too.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import yaml

from mirror_core.model.errors import Refused
from mirrorbook_tools.demo.commands import Commands
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.processes import Processes, end_known
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.demo.workdir import Place
from mirrorbook_tools.demo.workload import Applications, Life
from mirrorbook_tools.sandbox.sandbox import Sandbox

MIRROR: Final = "orders"
MARKER: Final = "demo.json"


class Stage:
    """In one folder. Entering clears away what an earlier demonstration left there; leaving stops all, keeps the logs.

    `keep`: the clusters are left running once the story has been told; Ctrl-C stops them all the same.
    """

    def __init__(self, folder: Path, screen: Screen, interrupts: Interrupts, *, keep: bool = False) -> None:
        self.folder = folder.absolute()
        self.screen = screen
        self.sandbox = Sandbox(self.folder / "sandbox", screen.say)
        self.config = self.folder / "mirrorbook.yaml"
        self.said = self.folder / "commands"
        self.evidence = self.folder / "evidence"
        self.receipts = self.folder / "receipts"
        self._keep = keep
        self._place = Place(self.folder, MARKER)
        self._interrupts = interrupts
        self.processes = Processes(self._place, interrupts)
        self.applications = Applications(self.folder / "applications", self.sandbox, self.processes)
        self.life = Life(
            self.applications, self.sandbox, screen, logs=self.folder, beside=lambda: self.commands.check_copying()
        )
        self.commands = Commands(self.config, self.said, self.processes, screen, self.life.tick)
        self._claim = ExitStack()
        self._stopped = 0
        """Processes beside brokers, at the end."""

    def __enter__(self) -> Self:
        with ExitStack() as claim:
            left = claim.enter_context(self._place.claimed())
            if left.kept and self.sandbox.running():
                stop = f"stop them with `{self.stop_command()}`, or choose another --dir"
                raise Refused(
                    "demonstration not started",
                    [f"clusters that an earlier one kept are running: {stop}"],
                    reason_code="demo_clusters_run",
                )
            end_known(left.leaders)
            self.stop_others()
            self.sandbox.down(delete=True)
            for folder in self.folders():
                if folder.exists():
                    shutil.rmtree(folder)
            self.said.mkdir()
            self._place.note({})
            self._claim = claim.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._claim, self._interrupts.held(), ExitStack() as last:  # the last one is called first
            last.callback(self._keep_clusters if self._keep and kind is None else self._stop_clusters)
            last.callback(self.stop_others)
            last.callback(self._stop_processes)
            self.screen.still()
            self.screen.say("stopping what was started")

    def set_up(self) -> None:
        """Both clusters, a configuration for the command line, and the applications at work on east."""
        self.sandbox.up()
        self.config.write_text(self.sandbox.mirrorbook_yaml() + self.switch_hooks(), encoding="utf-8")
        self.life.begin()
        self.life.at_work("east")

    def switch_hooks(self) -> str:
        """By the mirror's hook, whoever conducts a failover tells the applications to move."""
        return yaml.safe_dump({"mirrors": {MIRROR: {"switch": [self.applications.switch_hook()]}}})

    def folders(self) -> list[Path]:
        """What a demonstration writes, and the next one removes first."""
        return [self.applications.folder, self.said, self.evidence, self.receipts]

    def stop_others(self) -> None:
        """Stops what is neither a broker nor in `processes`, of this demonstration or an earlier one."""

    def stop_command(self) -> str:
        """What stops the clusters, and removes their data."""
        return f"mirrorbook sandbox down --delete --dir {self.sandbox.dir}"

    def _stop_processes(self) -> None:
        self._stopped = self.processes.stop_all()

    def _stop_clusters(self) -> None:
        brokers = self.sandbox.down()
        self.screen.say(f"everything is stopped: {brokers} broker(s), {self._stopped} other process(es)")

    def _keep_clusters(self) -> None:
        self._place.note({}, kept=True)
        self.screen.say(f"stopped: {self._stopped} process(es); the clusters are kept: west goes on, east is dead")
