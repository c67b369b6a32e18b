"""What the core's runs need from a worker: Spark for the heavy comparison, this process for the last bit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mirror_core.decide.steps import Need, needing
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import RunKind
from mirrorbook_airflow.hooks import home
from mirrorbook_airflow.params import spark_conf

if TYPE_CHECKING:
    from pathlib import Path

    from mirror_core.evidence.folders import Folder
    from mirror_core.runbook.services import Services


def services(config: Path, steps: Collection[str], master: str) -> Services:
    """Services for these steps; evidence lies under `$AIRFLOW_HOME/mirrorbook/evidence`."""
    evidence = home("evidence")
    if any(
        set(steps).intersection(needing(kind, Need.SPARK)) for kind in RunKind
    ):  # the others don't wait for Spark to start
        from mirror_core.spark.services import spark_services
        from mirror_core.spark.session import check_conf

        settings = spark_conf()
        check_conf(settings)
        made = spark_services(config, evidence_dir=evidence, master=master, conf=settings)
        return replace(made, by_airflow=True)
    from mirror_core.runbook.services import local_services

    made = local_services(config, evidence_dir=evidence)
    return replace(made, by_airflow=True, copies=partial(_copies, master))


def _copies(master: str, place: str) -> Folder:
    """Spark is started by the step that ends a run, and only where it alone reaches the place."""
    from mirror_core.evidence.folders import is_url, local_folder

    if not is_url(place):
        return local_folder(place, private=True)
    try:
        from mirror_core.spark.hadoop import private_folder
        from mirror_core.spark.session import check_conf
    except ImportError:
        raise BadRequest(f"{place}: only Spark reaches this file system: install mirrorbook[spark]") from None
    settings = spark_conf()
    check_conf(settings)
    return private_folder(master, settings, place)
