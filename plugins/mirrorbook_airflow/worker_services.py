"""What the core's runs need from a worker: Spark for the heavy comparison, or none; this process for the last bit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_core.decide.steps import StepNeed, list_steps_needing
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import RunKind
from mirrorbook_airflow.hooks import home
from mirrorbook_airflow.object_store import ObjectFolder, kept
from mirrorbook_airflow.params import NO_SPARK, executors_config, spark_conf, spark_masters, starts_data_planes

if TYPE_CHECKING:
    from mirror_core.evidence.file_store import Folder
    from mirror_core.evidence.suites import TableExpectations
    from mirror_core.runbook.run_services import ParityCheck, Services


def services(config: Path, steps: Collection[str], master: str) -> Services:
    """Services for these steps; evidence lies under `$AIRFLOW_HOME/mirrorbook/evidence`."""
    evidence = home("evidence")
    heavy = any(set(steps).intersection(list_steps_needing(kind, StepNeed.SPARK)) for kind in RunKind)
    if heavy and master != NO_SPARK:  # the others don't wait for Spark to start
        from mirror_core.spark.services import make_spark_services
        from mirror_core.spark.session import check_conf

        settings = spark_conf()
        check_conf(settings)
        opened = opened_by_tasks(config)
        made = make_spark_services(config, evidence_dir=evidence, master=master, conf=settings, opened_by_tasks=opened)
        return replace(made, by_airflow=True, salvage=kept(made.salvage))
    from mirror_core.runbook.run_services import local_services

    made = local_services(config, evidence_dir=evidence)
    made = replace(made, open_copy_folder=partial(_copies, master), open_receipts=partial(_receipts, master))
    return replace(made, by_airflow=True, salvage=kept(made.salvage))


def parity_check(config: Path, master: str, demands: TableExpectations, throttle: int | None = None) -> ParityCheck:
    """Compares all of a mirror: by Spark, or in this process. `throttle`: bytes per second of each cluster."""
    if master == NO_SPARK:
        from mirror_core.parity.check import LocalParity

        return LocalParity(config, demands=demands, throttle=throttle)
    from mirror_core.spark.parity_job import SparkParity
    from mirror_core.spark.session import check_conf

    check_conf(settings := spark_conf())
    opened = opened_by_tasks(config)
    return SparkParity(config, master, demands=demands, conf=settings, throttle=throttle, opened_by_tasks=opened)


def receipts_folder(master: str, place: str) -> Folder:
    """Where receipts are: URLs are Spark's, or without it Airflow's own."""
    from mirror_core.evidence.file_store import is_url, open_local_folder, refuse_password

    refuse_password(place)
    if not is_url(place):
        return open_local_folder(place)
    if master == NO_SPARK:
        return ObjectFolder(place)
    from mirror_core.spark.parity_job import SparkCertificateCheck

    return SparkCertificateCheck(master, conf=spark_conf()).folder(place)


def _receipts(master: str, place: str) -> Folder:
    """Of a step that reads them: Spark is started only where it alone reaches the place."""
    try:
        return receipts_folder(master or spark_masters()[0], place)
    except ImportError:
        raise BadRequest(
            f"{place}: only Spark reaches this file system: install your Mirrorbook wheel with [spark]"
        ) from None


def opened_by_tasks(config: Path) -> Path:
    """The mirrorbook.yaml that Spark's tasks open: they are other processes, perhaps on other machines."""
    if starts_data_planes():
        return config
    if not executors_config():
        raise BadRequest(
            "Spark: its tasks would find no mirrorbook.yaml: Airflow writes none where [mirrorbook] data_plane is "
            "watch: name one in [mirrorbook] executors_config, which executors and this worker have at the same path; "
            f"or choose the Spark master {NO_SPARK}: without Spark"
        )
    return Path(executors_config())


def _copies(master: str, place: str) -> Folder:
    """Spark is started by the step that ends a run, and only where it alone reaches the place."""
    from mirror_core.evidence.file_store import is_url, open_local_folder

    if not is_url(place):
        return open_local_folder(place, private=True)
    master = master or spark_masters()[0]  # a drill is given none
    if master == NO_SPARK:
        return ObjectFolder(place)
    try:
        from mirror_core.spark.hadoop_store import open_private_folder
        from mirror_core.spark.session import check_conf
    except ImportError:
        raise BadRequest(
            f"{place}: only Spark reaches this file system: install your Mirrorbook wheel with [spark]"
        ) from None
    settings = spark_conf()
    check_conf(settings)
    return open_private_folder(master, settings, place)
