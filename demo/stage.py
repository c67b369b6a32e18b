"""Everything that the demo starts, and how it is all stopped again: two clusters, Airflow, two applications."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from demo.airflow import REPOSITORY, Airflow, end, session_of
from demo.discovery import Discovery
from demo.logs import PARTITIONS, QUIET, TOPIC
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName
from mirror_core.sandbox.credentials import ADMIN, CONTROL, DATA
from mirror_core.sandbox.sandbox import Sandbox
from mirror_core.supervisor import supervise

CLUSTERS: Final = ("east", "west")
MIRROR: Final = "orders"
MARKER: Final = "mirrorbook-demo.json"
APPLICATION_STOP_S: Final = 150.0
"""A producer that cannot learn the fate of its last records gives up after 120 s."""
APPLICATIONS: Final = ("producer", "consumer")


class Stage:
    """In one folder. Entering clears away what an earlier demo left there; leaving stops all, and keeps the logs."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder.absolute()
        self.say = say
        self.sandbox = Sandbox(self.folder / "sandbox", say)
        self.airflow = Airflow(self.folder / "airflow")
        self.config = self.folder / "mirrorbook.yaml"
        """For the command line."""
        self.applications = self.folder / "applications"
        self.discovery = Discovery(self.applications / "primary")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Stage:
        self._claim()
        return self

    def __exit__(self, *exception: object) -> None:
        self.say("stopping everything")
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        self.airflow.stop()
        self._stop_data_planes()
        self.sandbox.down()

    @property
    def evidence(self) -> Path:
        return self.airflow.folder / "mirrorbook" / "evidence"

    def set_up(self) -> None:
        """Clusters and Airflow up, connected to each other, and a topic for the orders on east."""
        self.airflow.start()
        self._remember()
        with ThreadPoolExecutor(1) as pool:
            clusters = pool.submit(self.sandbox.up)  # at the same time: each needs a quarter of a minute
            self.airflow.wait_healthy()
            clusters.result()
        for name in CLUSTERS:
            cluster = self.sandbox.cluster(name)
            self.airflow.add_connection(name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        self._write_hooks()
        admin = AdminClient({**self.sandbox.cluster("east").client_config(ADMIN), **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)

    def start_applications(self) -> None:
        """The producer and the consumer, on east."""
        self.applications.mkdir()
        self.discovery.switch("east")
        for name in APPLICATIONS:
            with open(self.applications / f"{name}.log", "wb") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", f"demo.{name}", str(self.sandbox.dir), str(self.applications)],
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the demo: it stops them when nothing can be lost by it
                )
        self._remember()

    def application_is_well(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def stop_application(self, name: str) -> int:
        """Ask it to finish; its exit code."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            return process.wait(APPLICATION_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    # -- inside -------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        marker = self.folder / MARKER
        if self.folder.exists() and not marker.exists() and any(self.folder.iterdir()):
            raise BadRequest(f"{self.folder} holds something else than a demo: choose another folder with --dir")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if marker.exists():
            self._clear_leftovers(json.loads(marker.read_text(encoding="utf-8")))
        marker.write_text("{}", encoding="utf-8")

    def _clear_leftovers(self, known: dict[str, float]) -> None:
        """Processes of a demo that was killed, told from strangers with the same ids by the time they were started."""
        for pid, started in known.items():
            if session := [p for p in session_of(int(pid)) if p.pid != os.getpid()]:
                with suppress(psutil.NoSuchProcess):
                    if psutil.Process(int(pid)).create_time() != started:
                        continue
                end(session)
        self._stop_data_planes()
        self.sandbox.down(delete=True)
        for left in (self.airflow.folder, self.applications):
            shutil.rmtree(left, ignore_errors=True)

    def _write_hooks(self) -> None:
        """Whoever conducts a failover, Airflow or the command line, tells the applications by the mirror's hook."""
        command = [sys.executable, str(REPOSITORY / "demo" / "discovery.py"), str(self.discovery.path)]
        hooks = yaml.safe_dump({"mirrors": {MIRROR: {"switch": [{"name": "discovery", "command": command}]}}})
        self.config.write_text(self.sandbox.mirrorbook_yaml() + hooks, encoding="utf-8")
        (self.airflow.folder / "mirrorbook").mkdir(mode=0o700, exist_ok=True)
        (self.airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(hooks, encoding="utf-8")

    def _remember(self) -> None:
        """Sessions that we lead; a killed demo's successor ends them."""
        leaders = [self.airflow.pid, *(process.pid for process in self._processes.values())]
        known = {str(pid): psutil.Process(pid).create_time() for pid in leaders if pid is not None}
        (self.folder / MARKER).write_text(json.dumps(known), encoding="utf-8")

    def _stop_data_planes(self) -> None:
        """They live outside of Airflow, so that they outlive it."""
        home = self.airflow.folder / "mirrorbook" / "data-plane"
        for folder in sorted(home.iterdir()) if home.is_dir() else ():
            supervise.stop(home, MirrorName(folder.name))


def on_signals(handler: Callable[[int, object], None]) -> None:
    """Whatever politely ends us shall end what we started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
