"""The buttons of a mirror, and of a set: which of Airflow's forms they lead to, and why one is grey. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.command_rules import format_held_by
from mirror_core.decide.process_liveness import ConductorStatus
from mirror_core.model.run import Run, RunKind, RunMode
from mirrorbook_airflow.page.mirror_state import Judged

FAILOVER: Final = "mirror_failover"
UNPLANNED: Final = "mirror_failover_unplanned"
FAILBACK: Final = "mirror_failback"
ACTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        FAILOVER: "Plan a failover",
        UNPLANNED: "Fail over without the source",
        FAILBACK: "Plan a failback",
        "mirror_parity": "Compare",
        "mirror_sync": "Sync",
        "mirror_drill": "Drill",
        "mirror_control": "Pause, resume, stop",
    }
)
SET: Final = "mirror_failover_set"
SET_UNPLANNED: Final = "mirror_failover_set_unplanned"
SET_ACTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {SET: "Plan a failover of the set", SET_UNPLANNED: "Give its sources up"}
)
_RUNS: Final = frozenset({FAILOVER, UNPLANNED, FAILBACK})


@dataclass(frozen=True, slots=True)
class Action:
    """A button: a link to the page of a DAG, whose form asks and whose run is approved there."""

    dag: str
    label: str
    why_not: str
    """Why it is grey; empty: it is not."""


def actions(
    why_not: Mapping[str, str], judged: Judged | None, run: Run | None, conducted: ConductorStatus
) -> Iterator[Action]:
    """The buttons of a mirror: the user's rights first, then what the core says of the mirror, and of its run.

    `judged`: None where that holds no longer.
    """
    for dag, label in ACTIONS.items():
        yield Action(dag, label, why_not.get(dag, "") or "; ".join(_refused(dag, judged, run, conducted)))


def set_actions(why_not: Mapping[str, str], unknown: Sequence[str], held: Sequence[Run]) -> Iterator[Action]:
    """The buttons of a set. `unknown`: mirrors of it that no cluster knows; `held`: runs that hold mirrors of it."""
    lost = [f"no cluster that answers knows mirror {name}" for name in unknown]
    for dag, label in SET_ACTIONS.items():
        runs = [run for run in held if not (dag == SET_UNPLANNED and _is_planned(run))]
        reasons = [*lost, *(f"{run.plan.mirror}: {run.plan.kind} {run.id} is under way" for run in runs)]
        yield Action(dag, label, why_not.get(dag, "") or "; ".join(reasons))


def _refused(dag: str, judged: Judged | None, run: Run | None, conducted: ConductorStatus) -> Sequence[str]:
    """The core's reasons, where they are known: what is not grey for them is refused by the DAG's plan all the same."""
    if run is not None and dag in _RUNS and not (dag == UNPLANNED and _is_planned(run)):
        return (format_held_by(run, conducted),)
    if judged is None:
        return ()
    if dag == FAILOVER and judged.decision is not None:
        return judged.decision.reasons
    if dag == UNPLANNED and judged.unplanned is not None:
        return judged.unplanned.refused
    return judged.failback if dag == FAILBACK else ()


def _is_planned(run: Run) -> bool:
    """A planned failover whose source dies is gone on with by an unplanned one."""
    return run.plan.kind is RunKind.FAILOVER and run.plan.mode is RunMode.PLANNED
