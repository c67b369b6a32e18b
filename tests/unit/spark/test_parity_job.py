"""What a comparison on Spark does before its first job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import ClusterIdentity, ClusterName
from mirror_core.spark import parity_job
from mirror_core.spark.parity_job import SparkCertificateCheck, SparkParity

EAST, WEST = (ClusterIdentity(ClusterName(name), f"id-of-{name}") for name in ("east", "west"))


@pytest.mark.parametrize(
    "count_slots",
    [
        lambda: SparkParity(Path("mirrorbook.yaml"))(EAST, WEST, (), None),
        lambda: SparkCertificateCheck().tasks,
    ],
    ids=["comparison", "certificates"],
)
@pytest.mark.parametrize(
    "error", [Py4JNetworkError("no JVM"), PySparkRuntimeError("no JVM"), ConnectionRefusedError("no JVM")], ids=repr
)
def test_a_spark_that_is_gone_when_slots_are_counted_is_a_fault_with_its_reason(
    count_slots: Callable[[], object], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(context: object) -> int:
        raise error

    monkeypatch.setattr(parity_job, "get_spark_context", lambda *given: None)
    monkeypatch.setattr(parity_job, "wait_for_task_slots", count)
    with pytest.raises(RemoteFault, match=r"^comparison: Spark gave up before it began: .*no JVM"):
        count_slots()


def test_neither_driver_nor_workers_import_what_takes_long() -> None:
    imports = "import sys, mirror_core.spark.parity_job, mirror_core.spark.executor_tasks"
    code = f"{imports}; print([name for name in ('pandas', 'pyarrow.dataset') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
