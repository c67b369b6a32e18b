"""An Airflow as deployments run it: PostgreSQL, Redis, and tasks in Celery workers.

`make nightly` runs the tests of a running Airflow on it again (MIRRORBOOK_AIRFLOW=celery): PostgreSQL refuses what
SQLite takes (long names), it locks rows, and a Celery worker is not a child of the scheduler.

`python -m tests.support.celery_airflow` leads Airflow's processes, as `airflow standalone` does for a LocalExecutor:
SIGINT ends them, and so does the end of any of them that nobody has killed.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import pytest

from demo.airflow import REPOSITORY, START_TIMEOUT_S, STOP_TIMEOUT_S, Airflow
from tests.support.waiting import wait_until

POSTGRES_USER: Final = "postgres"
DATABASE: Final = "postgres"
PROCESSES: Final = ("api-server", "scheduler", "dag-processor", "triggerer", "celery worker")
LOOK_S: Final = 0.5


def make_airflow(folder: Path, settings: Mapping[str, str] | None = None) -> Airflow:
    """Of the kind that MIRRORBOOK_AIRFLOW names; by default `airflow standalone` with SQLite."""
    kind = os.environ.get("MIRRORBOOK_AIRFLOW", "standalone")
    kinds = {"standalone": Airflow, "celery": CeleryAirflow}
    return kinds[kind](folder, dags=REPOSITORY / "dags", settings=settings)


class CeleryAirflow(Airflow):
    """Its database and its broker listen on Unix sockets in their folder only."""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._services = Services(self.folder)
        self._services.start()
        super().start()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.celery_airflow"]

    def settings(self, port: int) -> dict[str, str]:
        sockets = self._services.sockets
        return {
            **super().settings(port),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": (
                f"postgresql+psycopg2://{POSTGRES_USER}@/{DATABASE}?host={sockets}"
            ),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": (
                f"postgresql+asyncpg://{POSTGRES_USER}@/{DATABASE}?host={sockets}"
            ),
            "AIRFLOW__CELERY__BROKER_URL": f"redis+socket://{sockets}/redis",
            "AIRFLOW__CELERY__RESULT_BACKEND": (f"db+postgresql+psycopg2://{POSTGRES_USER}@/{DATABASE}?host={sockets}"),
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
            # What a killed worker had taken from the queue and not begun: Redis would hand it out again a day later.
            "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
        }

    def stop(self) -> None:
        super().stop()
        self._services.stop()


class Services:
    """PostgreSQL and Redis of one Airflow. The database outlives a stop, until this process ends."""

    def __init__(self, folder: Path) -> None:
        # A socket's path has at most 107 bytes, and the server's user must be able to enter its folder.
        self.sockets = Path(f"/tmp/mirrorbook-airflow-{os.getpid()}-{abs(hash(folder)) % 10**8}")
        self._log = folder / "services.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        data = self.sockets / "data"
        user = POSTGRES_USER if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        with open(self._log, "ab") as log:
            if not data.exists():
                self._create_database(data, user, log)
            postgres = [find_postgres("postgres"), "-D", str(data), "-k", str(self.sockets), "-h", "", "-F"]
            redis = ["redis-server", "--port", "0", "--unixsocket", str(self.sockets / "redis"), "--save", ""]
            self._processes = [
                subprocess.Popen(postgres, stdout=log, stderr=log, user=user, cwd=self.sockets, start_new_session=True),
                subprocess.Popen(redis, stdout=log, stderr=log, cwd=self.sockets, start_new_session=True),
            ]
        wait_until(self._are_ready, timeout_s=START_TIMEOUT_S, why="PostgreSQL and Redis answer")

    def _create_database(self, data: Path, user: str | None, log: BinaryIO) -> None:
        for folder, mode in ((self.sockets, 0o755), (data, 0o700)):
            folder.mkdir(mode=mode)
            if user:
                shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
        atexit.register(shutil.rmtree, self.sockets, ignore_errors=True)
        trusting = ["--auth=trust", f"--username={POSTGRES_USER}", "--encoding=UTF8", "--locale=C.UTF-8"]
        subprocess.run(
            [find_postgres("initdb"), "-D", str(data), *trusting, "--no-sync"],
            check=True, stdout=log, stderr=log, user=user, cwd=self.sockets,
        )  # fmt: skip

    def _are_ready(self) -> bool:
        ended = [process.args for process in self._processes if process.poll() is not None]
        assert not ended, f"{ended} ended: {self._log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
        asked = subprocess.run([find_postgres("pg_isready"), "-q", "-h", str(self.sockets)], check=False)
        return asked.returncode == 0 and (self.sockets / "redis").exists()

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGINT)  # PostgreSQL: fast shutdown
        for process in self._processes:
            process.wait(STOP_TIMEOUT_S)


def find_postgres(program: str) -> str:
    """Debian keeps server programs apart from PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), reverse=True)
    found = next(map(str, places), None) or shutil.which(program)
    if not found:
        reason = f"{program} is missing (apt-get install --no-install-recommends postgresql redis-server)"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return found


def main() -> int:
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], check=True)
    children = [subprocess.Popen([*airflow, *process.split()]) for process in PROCESSES]
    try:
        while not any(_has_ended_by_itself(child) for child in children):
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        pass
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGINT if child is not children[-1] else signal.SIGTERM)
    for child in children:
        child.wait()
    return 0


def _has_ended_by_itself(child: subprocess.Popen[bytes]) -> bool:
    code = child.poll()
    return code is not None and code != -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main())
