"""Wheel build, shared by tests."""

from __future__ import annotations

from typing import Final

OLDEST: Final = "apache-airflow==3.3.0"
