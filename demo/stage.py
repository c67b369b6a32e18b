"""What `make demo` adds to the demonstration's stage: an Airflow that is connected to both clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from demo.airflow import Airflow
from mirrorbook_tools.demo.environment import Stage
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA

CLUSTERS: Final = ("east", "west")
CALM: Final = {
    # Nobody edits the DAGs meanwhile: they are read once.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}
"""Airflow's settings that leave a small machine to the clusters and applications."""


class AirflowStage(Stage):
    """Whoever conducts here, Airflow or the command line, tells the applications by the same hook."""

    def __init__(self, folder: Path, screen: Screen, interrupts: Interrupts) -> None:
        super().__init__(folder, screen, interrupts)
        shared = {
            "AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG": str(self.config),
            "AIRFLOW__MIRRORBOOK__RECEIPTS": str(self.receipts),
        }
        self.airflow = Airflow(self.folder / "airflow", settings=CALM | shared, pause=self.life.tick)
        self.evidence = self.airflow.folder / "mirrorbook" / "evidence"
        self.supervisors = self.folder / "data-plane"

    def set_up(self) -> None:
        """Airflow starts first, and is waited for last."""
        self.screen.say("Airflow is starting; it takes half a minute")
        self.airflow.start()
        assert self.airflow.pid is not None
        self.processes.lead(self.airflow.pid)
        (self.airflow.folder / "mirrorbook").mkdir(mode=0o700, exist_ok=True)
        (self.airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(self.switch_hooks(), encoding="utf-8")
        super().set_up()
        self.airflow.wait_healthy()
        for name in CLUSTERS:
            cluster = self.sandbox.cluster(name)
            self.airflow.add_connection(name, cluster.client_config(CONTROL), cluster.client_config(DATA))

    def folders(self) -> list[Path]:
        return [*super().folders(), self.airflow.folder, self.supervisors]

    def stop_others(self) -> None:
        self.airflow.stop()
