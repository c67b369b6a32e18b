"""What the core's runs need from a worker: Spark for the heavy comparison, this process for the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mirror_core.decide.steps import Need, needing
from mirror_core.model.run import RunKind
from mirrorbook_airflow.hooks import home

if TYPE_CHECKING:
    from mirror_core.runbook.services import Services
    from mirror_core.state.link import Link


def services(link: Link, step: str | None, master: str) -> Services:
    """Services for one step (None: none is taken); evidence lies under `$AIRFLOW_HOME/mirrorbook/evidence`."""
    evidence = home("evidence")
    if any(step in needing(kind, Need.SPARK) for kind in RunKind):  # the others don't wait for Spark to start
        from mirror_core.spark.services import spark_services

        return replace(spark_services(link.config.path, evidence_dir=evidence, master=master), by_airflow=True)
    from mirror_core.runbook.services import local_services

    return replace(local_services(link.config.path, evidence_dir=evidence), by_airflow=True)
