"""Sizes, shared by tests."""

from __future__ import annotations

MIB = 1 << 20
