"""A team's operator for a standalone master's REST interface: its worker starts no JVM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import httpx
from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

TIMEOUT_S: Final = 120
FORMAT: Final = {"action": "CreateSubmissionRequest", "clientSparkVersion": "4", "environmentVariables": {}}


class SubmitByRest(BaseOperator):
    template_fields: Sequence[str] = ("application_args",)

    def __init__(self, *, rest: str, master: str, application: str, application_args: Sequence[Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.rest = rest
        self.master = master
        self.application = application
        self.application_args = application_args
        self.driver = ""

    def execute(self, context: Context) -> None:
        settings = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.app.name": self.task_id}
        submitted = httpx.post(
            f"{self.rest}/v1/submissions/create",
            json={
                **FORMAT,
                "appResource": "",
                "mainClass": "org.apache.spark.deploy.SparkSubmit",
                "appArgs": ["--master", self.master, self.application, *self.application_args],
                "sparkProperties": {**settings, "spark.master": self.master},
            },
            timeout=TIMEOUT_S,
        ).json()
        self.driver = submitted["submissionId"]
        while (state := self._ask("GET", "status")["driverState"]) in ("SUBMITTED", "RUNNING"):
            time.sleep(1)
        if state != "FINISHED":
            raise RuntimeError(f"driver {self.driver}: {state}")

    def on_kill(self) -> None:
        if self.driver:
            self._ask("POST", "kill")

    def _ask(self, method: str, what: str) -> dict[str, Any]:
        url = f"{self.rest}/v1/submissions/{what}/{self.driver}"
        answer: dict[str, Any] = httpx.request(method, url, timeout=TIMEOUT_S).json()
        return answer
