"""Spark's Python daemon with the copy task imported before workers are forked.

Saves a quarter of the CPU before the first record.
"""

from __future__ import annotations

from pyspark.daemon import manager

from mirror_core.copy import task as _imported  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
