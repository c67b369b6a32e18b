"""Everything that the demo starts, and how it is all stopped again: two clusters, Airflow, two applications."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import yaml

from demo.airflow import Airflow
from mirror_core.demo.applications import Applications
from mirror_core.demo.interrupts import Interrupts
from mirror_core.demo.place import Place
from mirror_core.demo.processes import Processes, end_known
from mirror_core.model.names import MirrorName
from mirror_core.sandbox.credentials import CONTROL, DATA
from mirror_core.sandbox.sandbox import Sandbox
from mirror_core.supervisor import supervise

CLUSTERS: Final = ("east", "west")
MIRROR: Final = "orders"
MARKER: Final = "mirrorbook-demo.json"


class Stage:
    """In one folder. Entering clears away what an earlier demo left there; leaving stops all, and keeps the logs."""

    def __init__(self, folder: Path, say: Callable[[str], None], interrupts: Interrupts) -> None:
        self.folder = folder.absolute()
        self.say = say
        self.sandbox = Sandbox(self.folder / "sandbox", say)
        self.airflow = Airflow(self.folder / "airflow")
        self.config = self.folder / "mirrorbook.yaml"
        """For the command line."""
        self._place = Place(self.folder, MARKER)
        self._interrupts = interrupts
        self._processes = Processes(self._place, interrupts)
        self.applications = Applications(self.folder / "applications", self.sandbox, self._processes)
        self._claim = ExitStack()

    def __enter__(self) -> Stage:
        left = self._claim.enter_context(self._place.claimed())
        end_known(left.leaders)
        self._stop_data_planes()
        self.sandbox.down(delete=True)
        for folder in (self.airflow.folder, self.applications.folder):
            shutil.rmtree(folder, ignore_errors=True)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._claim, self._interrupts.held(), ExitStack() as last:  # the last one is called first
            last.callback(self.sandbox.down)
            last.callback(self._stop_data_planes)
            last.callback(self.airflow.stop)
            last.callback(self._processes.stop_all)
            self.say("stopping everything")

    @property
    def evidence(self) -> Path:
        return self.airflow.folder / "mirrorbook" / "evidence"

    def set_up(self) -> None:
        """Clusters and Airflow up, and connected to each other."""
        self.airflow.start()
        assert self.airflow.pid is not None
        self._processes.lead(self.airflow.pid)
        with ThreadPoolExecutor(1) as pool:
            clusters = pool.submit(self.sandbox.up)  # at the same time: each needs a quarter of a minute
            self.airflow.wait_healthy()
            clusters.result()
        for name in CLUSTERS:
            cluster = self.sandbox.cluster(name)
            self.airflow.add_connection(name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        self._write_hooks()

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
            supervise.stop(home, MirrorName(folder.name))
