"""Forecasts, shared by tests."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_core.model.names import Offset, Partition
from tests.support.loss_views import A0, A1, B0

COMMITTED: Mapping[str, Mapping[Partition, Offset]] = {"g": {A0: Offset(88), A1: Offset(20)}, "h": {B0: Offset(5)}}
