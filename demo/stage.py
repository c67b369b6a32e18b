"""Everything that the demo starts, and how it is all stopped again: two clusters, Airflow, two applications."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import yaml

from demo.airflow import Airflow
from mirror_core.model.names import MirrorName
from mirror_core.supervisor import lifecycle
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.processes import Processes, end_known
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.demo.workdir import Place
from mirrorbook_tools.demo.workload import Applications, Life
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from mirrorbook_tools.sandbox.sandbox import Sandbox

CLUSTERS: Final = ("east", "west")
MIRROR: Final = "orders"
MARKER: Final = "mirrorbook-demo.json"
CALM: Final = {
    # Nobody edits the DAGs meanwhile: they are read once.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}
"""Airflow's settings that leave a small machine to the clusters and applications."""
WAIT_S: Final = 300.0
"""For a condition: a data plane's start on a busy laptop is no incident."""


class Stage:
    """In one folder. Entering clears away what an earlier demo left there; leaving stops all, and keeps the logs."""

    def __init__(self, folder: Path, screen: Screen, interrupts: Interrupts) -> None:
        self.folder = folder.absolute()
        self.screen = screen
        self.sandbox = Sandbox(self.folder / "sandbox", screen.say)
        self.config = self.folder / "mirrorbook.yaml"
        """For the command line."""
        self.said = self.folder / "commands"
        self._place = Place(self.folder, MARKER)
        self._interrupts = interrupts
        self.processes = Processes(self._place, interrupts)
        self.applications = Applications(self.folder / "applications", self.sandbox, self.processes)
        self.life = Life(self.applications, self.sandbox, screen, logs=self.folder, wait_s=WAIT_S)
        self.airflow = Airflow(self.folder / "airflow", settings=CALM, pause=self.life.tick)
        self._claim = ExitStack()

    def __enter__(self) -> Stage:
        left = self._claim.enter_context(self._place.claimed())
        end_known(left.leaders)
        self._stop_data_planes()
        self.sandbox.down(delete=True)
        for folder in (self.airflow.folder, self.applications.folder, self.said):
            shutil.rmtree(folder, ignore_errors=True)
        self.said.mkdir()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._claim, self._interrupts.held(), ExitStack() as last:  # the last one is called first
            last.callback(self.sandbox.down)
            last.callback(self._stop_data_planes)
            last.callback(self.airflow.stop)
            last.callback(self.processes.stop_all)
            self.screen.still()
            self.screen.say("stopping what was started")

    @property
    def evidence(self) -> Path:
        return self.airflow.folder / "mirrorbook" / "evidence"

    def set_up(self) -> None:
        """Clusters, the applications at work on east, and an Airflow that is connected to both clusters."""
        self.screen.say("Airflow is starting; it takes half a minute")
        self.airflow.start()
        assert self.airflow.pid is not None
        self.processes.lead(self.airflow.pid)
        self.sandbox.up()
        self._write_hooks()
        self.life.begin()
        self.life.at_work("east")
        self.airflow.wait_healthy()
        for name in CLUSTERS:
            cluster = self.sandbox.cluster(name)
            self.airflow.add_connection(name, cluster.client_config(CONTROL), cluster.client_config(DATA))

    # -- inside -------------------------------------------------------------------------------------------------

    def _write_hooks(self) -> None:
        """Whoever conducts a failover, Airflow or the command line, tells the applications by the mirror's hook."""
        hooks = yaml.safe_dump({"mirrors": {MIRROR: {"switch": [self.applications.switch_hook()]}}})
        self.config.write_text(self.sandbox.mirrorbook_yaml() + hooks, encoding="utf-8")
        (self.airflow.folder / "mirrorbook").mkdir(mode=0o700, exist_ok=True)
        (self.airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(hooks, encoding="utf-8")

    def _stop_data_planes(self) -> None:
        """They live outside of Airflow, so that they outlive it."""
        home = self.airflow.folder / "mirrorbook" / "data-plane"
        for folder in sorted(home.iterdir()) if home.is_dir() else ():
            lifecycle.stop_supervisor(home, MirrorName(folder.name))
