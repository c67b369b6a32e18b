"""What the core's runs need from a worker: Spark for the heavy comparison, this process for the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mirrorbook_airflow.hooks import home

if TYPE_CHECKING:
    from mirror_core.runbook.services import Services
    from mirror_core.state.link import Link


ON_SPARK: Final = frozenset({"prove", "salvage"})
"""Steps that go over all data; the others must not wait for Spark to be imported and started."""


def services(link: Link, step: str | None, master: str) -> Services:
    """Services for one step (None: none is taken); evidence lies under `$AIRFLOW_HOME/mirrorbook/evidence`."""
    evidence = home("evidence")
    if step in ON_SPARK:
        from mirror_core.spark.services import spark_services

        return spark_services(link.config.path, evidence_dir=evidence, master=master)
    from mirror_core.runbook.services import local_services

    return local_services(link.config.path, evidence_dir=evidence)
