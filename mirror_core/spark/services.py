from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from mirror_core.runbook.run_services import Services, local_services
from mirror_core.spark.hadoop_store import open_private_folder
from mirror_core.spark.parity_job import SparkCertificateCheck, SparkParity
from mirror_core.spark.salvage_job import SparkSalvage
from mirror_core.spark.session import NO_CONF


def make_spark_services(
    config_path: Path,
    *,
    evidence_dir: Path,
    master: str = "local[*]",
    conf: Mapping[str, str] = NO_CONF,
    opened_by_tasks: Path | None = None,
) -> Services:
    """Full parity and salvage on Spark. What applications wait for stays in this process."""
    return replace(
        local_services(config_path, evidence_dir=evidence_dir),
        parity=SparkParity(config_path, master, conf=conf, opened_by_tasks=opened_by_tasks),
        salvage=SparkSalvage(config_path, master, conf=conf, opened_by_tasks=opened_by_tasks),
        open_copy_folder=partial(open_private_folder, master, conf),
        open_receipts=lambda location: SparkCertificateCheck(master, conf=conf).folder(location),
    )
