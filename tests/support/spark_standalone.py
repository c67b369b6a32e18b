"""A Spark standalone cluster: a master on this machine, a worker on each of the others. All of them can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

from mirror_core.spark.session import find_spark_java_home
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.support.network_namespaces import Machines
from tests.support.waiting import patience, wait_until

ROOT: Final = Path(__file__).parents[2]
SPARK_HOME: Final = Path(pyspark.__file__).parent
PATIENCE_S: Final = patience(120.0)


class Standalone:
    """Each worker has so many `cores`. The master remembers its applications in a folder, as one in production does."""

    def __init__(self, machines: Machines, folder: Path, cores: int) -> None:
        self.machines = machines
        self._folder = folder
        self._cores = cores
        self._port, self._page, self._rest = choose_ports(3)
        self.master = f"spark://{machines.here}:{self._port}"
        self.page = f"http://{machines.here}:{self._page}"
        self.rest = f"http://{machines.here}:{self._rest}"
        self._processes: dict[str, psutil.Popen] = {}

    def start_master(self) -> None:
        words = ("--host", self.machines.here, "--port", str(self._port), "--webui-port", str(self._page))
        self._start("master", "master.Master", self.machines.here, (), words)
        self._says("master", "Successfully started service 'MasterUI'")

    def start_workers(self, *numbers: int) -> None:
        for number in numbers:
            self._start_worker(number)
        for number in numbers:
            self._says(f"worker-{number}", "Successfully registered with master")

    def runs(self, name: str) -> bool:
        return name in self._processes

    def list_commands(self) -> list[str]:
        """Of all processes that the workers have started, executors' Python among them."""
        lines = []
        for process in self._processes.values():
            for child in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    lines.append(" ".join(child.cmdline()))
        return lines

    def kill(self, name: str) -> None:
        """SIGKILL: `master`, or `worker-0` with the executors that it has started."""
        process = self._processes.pop(name)
        for one in [*process.children(recursive=True), process]:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue  # it has followed another one
        process.wait()

    def submit(self, *words: str) -> str:
        """What spark-submit said, and whatever it has started; it has ended well."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, *words]
        environment = {**os.environ, "JAVA_HOME": str(find_spark_java_home()), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def _start_worker(self, number: int) -> None:
        machine = self.machines.others[number]
        words = ("--host", machine.address, "--cores", str(self._cores), "--memory", "2g", "--webui-port", "0")
        where = ("--work-dir", str(self._folder / f"work-{number}"))
        self._start(f"worker-{number}", "worker.Worker", machine.address, machine.prefix, (*words, *where, self.master))

    def _start(self, name: str, module: str, address: str, prefix: Sequence[str], words: Sequence[str]) -> None:
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._folder / 'master'}"
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_spark_java_home()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_MASTER_OPTS": f"{recovery} -Dspark.master.rest.enabled=true -Dspark.master.rest.port={self._rest}",
            "PYTHONPATH": str(ROOT),  # of executors: they inherit it
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [*prefix, str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{module}", *words]
        with self._log(name).open("wb") as log:
            self._processes[name] = psutil.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _says(self, name: str, text: str) -> None:
        def said() -> bool:
            assert self._processes[name].is_running(), self._log(name).read_text(encoding="utf-8")
            return text in self._log(name).read_text(encoding="utf-8")

        wait_until(said, timeout_s=PATIENCE_S, why=f"{name} says {text!r}")


@contextmanager
def standalone(machines: Machines, folder: Path, *, cores: int = 4) -> Iterator[Standalone]:
    """Running; gone afterwards."""
    folder.mkdir()
    cluster = Standalone(machines, folder, cores)
    try:
        cluster.start_master()
        cluster.start_workers(*range(len(machines.others)))
        yield cluster
    finally:
        cluster.stop()
