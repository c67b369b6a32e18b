"""Plans and runs for machines: stable shapes, as docs/operate/commands.md says them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mirror_core.decide.conducting import Conducted
from mirror_core.model.run import Plan, Run, StepRecord


def plan_document(plan: Plan, reasons: tuple[str, ...]) -> dict[str, Any]:
    """`reasons`: why it may not be run."""
    return {
        "kind": plan.kind,
        "mirror": plan.mirror,
        "mode": plan.mode,
        "hash": plan.hash,
        "steps": [{"name": s.name, "action": s.action, "reversible": s.reversible} for s in plan.steps],
        "figures": dict(plan.figures),
        "partitions": dict(plan.partitions),
        "groups": dict(plan.groups),
        "rights": None if plan.rights is UNSET else list(plan.rights),
        "bound": {fact.name: fact.value for fact in plan.bound},
        "strategies": dict(plan.strategies),
        "discarded": plan.discarded,
        "warnings": list(plan.warnings),
        "unknown": list(plan.unknown),
        "refused": list(reasons),
    }


def run_document(run: Run, steps: tuple[StepRecord, ...], now: Conducted | None) -> dict[str, Any]:
    """`now`: whether anybody conducts it, as long as it has not ended."""
    return {
        "id": run.id,
        "state": run.state,
        "plan": plan_document(run.plan, ()),
        "plan_hash": run.plan_hash,
        "started_by": run.started_by,
        "approved_by": run.approved_by,
        "conducted_by": run.conducted_by,
        "conducted": None if now is None else _conducted_document(now),
        "started_ms": run.started_ms,
        "ended_ms": run.ended_ms,
        "note": run.note,
        "steps": [
            {
                "step": s.step,
                "state": s.state,
                "attempt": s.attempt,
                "started_ms": s.started_ms,
                "ended_ms": s.ended_ms,
                "evidence": dict(s.evidence),
                "error": s.error,
            }
            for s in steps
        ],
    }


def _conducted_document(now: Conducted) -> dict[str, Any]:
    """Who was seen last, and when by that host's clock; null where that is not known."""
    return {
        "sign": now.sign,
        "by": now.by or None,
        "host": now.host or None,
        "pid": now.pid,
        "seen_ms": now.seen_ms,
        "words": str(now),
    }
