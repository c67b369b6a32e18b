"""What Spark starts on an executor to fork its Python workers from: Spark's own, with what tasks need imported before.

So that is done once instead of once a worker: of the CPU that a first record takes, that is a quarter.
"""

from __future__ import annotations

from pyspark.daemon import manager

from mirror_core.copy import task as _imported  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
