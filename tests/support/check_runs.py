"""Check runs, shared by tests."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support.cluster_names import LINK

NAME = LINK.mirror.name

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
