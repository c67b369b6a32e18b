"""An Airflow standalone of our own: started in a folder, used through its REST API, stopped without a trace.

Tests of the DAGs use it as well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from mirror_core.model.errors import MirrorError
from mirrorbook_tools.demo.processes import end, session_of
from mirrorbook_tools.sandbox.ports import choose_ports

REPOSITORY: Final = Path(__file__).resolve().parent.parent
START_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
ASKING_STATES: Final = ("awaiting_input", "deferred")
"""Of a task that asks: the second one before Airflow 3.3, where it waits in a trigger."""
PATIENCE_S: Final = 120.0
"""For one answer of the API: where all cores are busy with JVMs it may take long, and nothing is wrong."""
HEALTHY: Final = ("metadatabase", "scheduler", "triggerer", "dag_processor")

T = TypeVar("T")


def _moment() -> None:
    time.sleep(0.2)


class AirflowFailed(MirrorError):
    """Airflow did not start, or a run did not go as it must."""


class Airflow:
    """An `airflow standalone` with its home in `folder`, on loopback only, and a client of its API.

    `settings` are further settings as Airflow's environment variables name them (no secrets: the environment shows).
    `pause` is called between two looks while something is waited for.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dags: Path = REPOSITORY / "dags",
        settings: Mapping[str, str] | None = None,
        pause: Callable[[], None] = _moment,
    ) -> None:
        self.folder = folder
        self.log_path = folder / "standalone.log"
        self._dags = dags
        self._settings = dict(settings or {})
        self._pause = pause
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None
        self.url = ""

    def start(self) -> None:
        """Start and return at once; `wait_healthy` waits."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        port, worker_logs, trigger_logs = choose_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            **self.settings(port),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with open(self.log_path, "ab") as log:  # appended to: whoever else writes there is not written over
            # A session of its own: Ctrl-C reaches the demo only, which then stops this in the right order.
            self._process = subprocess.Popen(
                self.command(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self) -> list[str]:
        """Of the process that leads all the others; SIGINT ends it, and them."""
        return [sys.executable, "-m", "airflow", "standalone"]

    def settings(self, port: int) -> dict[str, str]:
        """Environment of every Airflow process of this home."""
        return {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "8",  # 32 idle workers are too many for one machine
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            # A first parse waits until its parent has imported an API server: half a minute, where all cores are busy.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "150",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": str(PATIENCE_S),  # 5 s: a task is killed before it begins
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",  # a runbook is a chain: each hop waits this long
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
            **self._settings,
        }

    @property
    def pid(self) -> int | None:
        """Of the process that leads the session; None when it is not running."""
        return None if self._process is None else self._process.pid

    def wait_healthy(self) -> None:
        """Wait until all components say that they are well, and sign in."""
        self._until(self._is_healthy, START_TIMEOUT_S, "Airflow is healthy")
        if self._client is not None:
            self._client.close()
        self._client = self._sign_in("admin")

    def _sign_in(self, user: str) -> httpx.Client:
        login = {"username": user, "password": self.password(user)}
        answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=PATIENCE_S)
        answer.raise_for_status()
        headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        return httpx.Client(base_url=f"{self.url}/api/v2", headers=headers, timeout=PATIENCE_S)

    @contextmanager
    def signed_in(self, user: str) -> Iterator[None]:
        """Calls are this user's for a while."""
        before = self._client
        try:
            with self._sign_in(user) as self._client:
                yield
        finally:
            self._client = before

    def password(self, user: str = "admin") -> str:
        """As Airflow made it up at its first start."""
        path = self.folder / "simple_auth_manager_passwords.json.generated"
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return found[user]

    def stop(self) -> None:
        """Stop all of its processes: SIGINT to the parent, which ends its children, then whatever is left of them."""
        if self._client is not None:
            self._client.close()
        if self._process is None:
            return
        session = session_of(self._process.pid)
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)  # SIGTERM would leave all the children alone
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end(session)
        self._process = None

    # -- the API ------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request to the REST API; its JSON answer. AirflowFailed with Airflow's own words when it refuses."""
        assert self._client is not None, "wait_healthy() first"
        deadline = time.monotonic() + PATIENCE_S
        while (answer := self._client.request(method, path, json=body)).is_server_error:
            # Its SQLite is locked for some moments, where the machine is busy: nothing has been done then.
            if "Database error" not in answer.text or time.monotonic() > deadline:
                break
            time.sleep(1)
        if answer.is_error:
            raise AirflowFailed(f"Airflow: {method} {path}: {answer.status_code}: {answer.text[:1000]}")
        return answer.json() if answer.content else None

    def add_connection(self, name: str, properties: Mapping[str, str], data: Mapping[str, str]) -> None:
        """A connection of type `kafka_cluster` from librdkafka properties of the control and the data principal."""
        extra = {
            "security_protocol": properties["security.protocol"],
            "sasl_mechanism": properties["sasl.mechanism"],
            "data_username": data["sasl.username"],
            "data_password": data["sasl.password"],
        }
        body = {
            "connection_id": name,
            "conn_type": "kafka_cluster",
            "host": properties["bootstrap.servers"],
            "login": properties["sasl.username"],
            "password": properties["sasl.password"],
            "extra": json.dumps(extra),
        }
        self.call("POST", "/connections", body)

    def unpause(self, dag: str) -> None:
        """Let a DAG run, as soon as Airflow has read its file."""
        self._until(lambda: self._knows(dag), START_TIMEOUT_S, f"Airflow has read DAG {dag}")
        self.call("PATCH", f"/dags/{dag}", {"is_paused": False})

    def pause(self, dag: str) -> None:
        """Let it not run, as soon as Airflow has read its file."""
        self._until(lambda: self._knows(dag), START_TIMEOUT_S, f"Airflow has read DAG {dag}")
        self.call("PATCH", f"/dags/{dag}", {"is_paused": True})

    def trigger(self, dag: str, conf: Mapping[str, object], note: str = "") -> str:
        """Start a run as the form does; its id."""
        body = {"logical_date": None, "conf": dict(conf), "note": note or None}
        answer = self.call("POST", f"/dags/{dag}/dagRuns", body)
        return str(answer["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{run}")["state"])

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """State of each task by its id; `none` before it is scheduled. Mapped tasks show the last one listed."""
        answer = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances?limit=100")
        return {row["task_id"]: row["state"] or "none" for row in answer["task_instances"]}

    def question(self, dag: str, run: str, task: str) -> tuple[str, str]:
        """Subject and body (Markdown) of the approval that this task asks for."""
        detail = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails")
        return str(detail["subject"]), str(detail["body"])

    def await_question(self, dag: str, run: str, task: str, timeout_s: float) -> None:
        """Return when the task asks and may be answered.

        Airflow 3.3 loses an answer that overtakes the end of the process that has asked: it takes the task for failed,
        and asks again. That its end was noticed is said in the scheduler's log only, of each attempt.
        """
        key = f"TaskInstanceKey(dag_id={dag!r}, task_id={task!r}, run_id={run!r}, try_number="
        ended = f"Received executor event with state success for task instance {key}"

        def asks() -> bool:
            state = self.tasks(dag, run).get(task, "none")
            if state in ("failed", "upstream_failed", "success"):
                raise AirflowFailed(f"task {task} of {dag} is {state} and asks nothing")
            if state not in ASKING_STATES:
                return False
            attempt = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}")["try_number"]
            return f"{ended}{attempt}," in self.log_path.read_text(encoding="utf-8", errors="replace")

        self._until(asks, timeout_s, f"task {task} of {dag} asks")

    def answer(self, dag: str, run: str, task: str, choice: str) -> None:
        """Press `Approve` or `Reject`; see `await_question`."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
        self.call("PATCH", path, {"chosen_options": [choice], "params_input": {}})

    def log_of(self, dag: str, run: str, task: str) -> str:
        """The log of the task's newest attempt, as lines of text."""
        attempt = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}")["try_number"]
        answer = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{max(1, attempt)}")
        return "\n".join(_line(entry) for entry in answer["content"])

    # -- inside -------------------------------------------------------------------------------------------------

    def _knows(self, dag: str) -> bool:
        try:
            self.call("GET", f"/dags/{dag}")
        except AirflowFailed:
            errors = self.call("GET", "/importErrors")["import_errors"]
            if errors:
                raise AirflowFailed(f"Airflow cannot read the DAGs: {errors[0]['stack_trace'][-1500:]}") from None
            return False
        return True

    def _is_healthy(self) -> bool:
        try:
            parts = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            return False
        return all((parts.get(part) or {}).get("status") == "healthy" for part in HEALTHY)

    def _until(self, condition: Callable[[], T], timeout_s: float, why: str) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            if self._process is not None and self._process.poll() is not None:
                raise AirflowFailed(f"Airflow has ended while waiting until {why}: see {self.log_path}")
            if time.monotonic() > deadline:
                raise AirflowFailed(f"not within {timeout_s:.0f} s: {why}: see {self.log_path}")
            self._pause()


def _line(entry: object) -> str:
    """A log entry, with what was raised: Airflow keeps that apart from the text."""
    if not isinstance(entry, dict):
        return str(entry)
    raised = (f"{error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or ())
    return " ".join([str(entry.get("event", "")), *raised])
