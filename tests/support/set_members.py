"""Set members, shared by tests."""

from __future__ import annotations

from mirror_core.decide.set_schedule import (
    NextAction,
    RunPhase,
)

P, F = RunPhase, NextAction
