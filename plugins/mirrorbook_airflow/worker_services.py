"""What the core's runs need from a worker: Spark for the heavy comparison, or none; this process for the last bit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_core.decide.steps import StepNeed, list_steps_needing
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import RunKind
from mirrorbook_airflow.hooks import get_home_folder
from mirrorbook_airflow.object_store import ObjectFolder, wrap_salvage
from mirrorbook_airflow.params import (
    NO_SPARK,
    read_executors_config,
    read_spark_conf,
    read_spark_masters,
)

if TYPE_CHECKING:
    from mirror_core.evidence.expectation_suites import TableExpectations
    from mirror_core.evidence.file_store import Folder
    from mirror_core.runbook.run_services import ParityCheck, Services


def make_services(config: Path, steps: Collection[str], master: str) -> Services:
    """Evidence is in `$AIRFLOW_HOME/mirrorbook/evidence`."""
    evidence = get_home_folder("evidence")
    needs_spark = any(set(steps).intersection(list_steps_needing(kind, StepNeed.SPARK)) for kind in RunKind)
    if needs_spark and master != NO_SPARK:  # the others don't wait for Spark to start
        from mirror_core.spark.services import make_spark_services

        prepared = make_spark_services(config, evidence_dir=evidence, master=master, **_make_spark_options())
    else:
        from mirror_core.runbook.run_services import local_services

        prepared = replace(
            local_services(config, evidence_dir=evidence),
            open_copy_folder=partial(_open_copy_folder, master),
            open_receipts=partial(_open_receipts, master),
        )
    return replace(prepared, salvage=wrap_salvage(prepared.salvage))


def make_parity_check(
    config: Path, master: str, expectations: TableExpectations, throttle: int | None = None
) -> ParityCheck:
    """`throttle`: bytes per second of each cluster."""
    if master == NO_SPARK:
        from mirror_core.parity.check import LocalParity

        return LocalParity(config, demands=expectations, throttle=throttle)
    from mirror_core.spark.parity_job import SparkParity

    return SparkParity(config, master, demands=expectations, throttle=throttle, **_make_spark_options())


def _make_spark_options() -> dict[str, Any]:
    return {"conf": _read_checked_conf(), "opened_by_tasks": get_executor_config()}


def _read_checked_conf() -> dict[str, str]:
    from mirror_core.spark.session import check_conf

    check_conf(settings := read_spark_conf())
    return settings


def open_receipts_folder(master: str, location: str) -> Folder:
    """Spark's file systems, or Airflow's without Spark."""
    from mirror_core.evidence.file_store import is_url, open_local_folder, refuse_password

    refuse_password(location)
    if not is_url(location):
        return open_local_folder(location)
    if master == NO_SPARK:
        return ObjectFolder(location)
    from mirror_core.spark.parity_job import SparkCertificateCheck

    return SparkCertificateCheck(master, conf=read_spark_conf()).folder(location)


def _open_receipts(master: str, location: str) -> Folder:
    """Starts Spark only where it alone reaches the location."""
    try:
        return open_receipts_folder(master or read_spark_masters()[0], location)
    except ImportError:
        raise BadRequest(
            f"{location}: only Spark reaches this file system: install your Mirrorbook wheel with [spark]"
        ) from None


def get_executor_config() -> Path:
    """The mirrorbook.yaml of Spark executors, perhaps on other machines."""
    if not read_executors_config():
        raise BadRequest(
            "Spark: its tasks would find no mirrorbook.yaml: name one in [mirrorbook] executors_config, which "
            f"executors and this worker have at the same path; or choose the Spark master {NO_SPARK}: without Spark"
        )
    return Path(read_executors_config())


def _open_copy_folder(master: str, location: str) -> Folder:
    """Starts Spark only where it alone reaches the location."""
    from mirror_core.evidence.file_store import is_url, open_local_folder

    if not is_url(location):
        return open_local_folder(location, private=True)
    master = master or read_spark_masters()[0]  # a drill is given none
    if master == NO_SPARK:
        return ObjectFolder(location)
    try:
        from mirror_core.spark.hadoop_store import open_private_folder
    except ImportError:
        raise BadRequest(
            f"{location}: only Spark reaches this file system: install your Mirrorbook wheel with [spark]"
        ) from None
    return open_private_folder(master, _read_checked_conf(), location)
