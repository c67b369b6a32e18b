"""Wheel build, shared by tests."""

from __future__ import annotations

from typing import Final

OLDEST: Final = "apache-airflow==3.2.2"
AS_OF_OLDEST: Final = ("--exclude-newer", "2026-06-01")
"""It fails with some dependencies that were released later."""
