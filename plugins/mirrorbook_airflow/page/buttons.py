"""The buttons of a mirror, and of a set: which of Airflow's forms they lead to, and why one is grey. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from textwrap import shorten
from types import MappingProxyType
from typing import Final

from mirror_core.decide.command_rules import explain_held_by
from mirror_core.decide.process_liveness import ConductorStatus
from mirror_core.model.names import MirrorName, get_base_name
from mirror_core.model.run import Run, RunKind, RunMode
from mirror_core.page.snapshots import ActionButton, MirrorAssessment

FAILOVER: Final = "mirror_failover"
UNPLANNED: Final = "mirror_failover_unplanned"
FAILBACK: Final = "mirror_failback"
MIRROR_BUTTON_LABELS: Final[Mapping[str, str]] = MappingProxyType(
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
FAILOVER_SET: Final = "mirror_failover_set"
FAILOVER_SET_UNPLANNED: Final = "mirror_failover_set_unplanned"
SET_BUTTON_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {FAILOVER_SET: "Plan a failover of the set", FAILOVER_SET_UNPLANNED: "Give its sources up"}
)
_RUN_DAGS: Final = frozenset({FAILOVER, UNPLANNED, FAILBACK})


def list_own_dags(name: MirrorName) -> dict[str, str]:
    """Ids of the DAGs that a mirror, or the one that it is the way home of, may have of its own; by the DAG for all."""
    return {dag: f"{dag}.{name if dag in _RUN_DAGS else get_base_name(name)}" for dag in MIRROR_BUTTON_LABELS}


def choose_deciding_dag(mirror: MirrorName, existing: Collection[str]) -> str:
    """The failover whose runs only those may read who see the mirror. A way home goes by its mirror's."""
    own = (f"{FAILOVER}.{mirror}", f"{FAILOVER}.{get_base_name(mirror)}")
    return next((dag for dag in own if dag in existing), FAILOVER)


def list_own_set_dags(name: str) -> dict[str, str]:
    return {dag: f"{dag}.{name}" for dag in SET_BUTTON_LABELS}


def list_mirror_buttons(
    denied: Mapping[str, str],
    assessment: MirrorAssessment | None,
    run: Run | None,
    conductor: ConductorStatus,
    own: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ActionButton]:
    """The user's rights first, then the core's reasons. `assessment`: None when outdated; `own`: DAGs of this mirror,
    by the DAG for all."""
    for dag, label in MIRROR_BUTTON_LABELS.items():
        dag_id = own.get(dag, dag)
        refusals = _format_refusals(_list_refusals(dag, assessment, run, conductor))
        yield ActionButton(dag, label, denied.get(dag_id, "") or refusals, dag_id)


def list_set_buttons(
    denied: Mapping[str, str], unknown: Sequence[str], active_runs: Sequence[Run], own: Mapping[str, str]
) -> Iterator[ActionButton]:
    """`unknown`: mirrors that no cluster knows; `active_runs`: of mirrors of the set."""
    unknown_mirrors = [f"no cluster that answers knows mirror {name}" for name in unknown]
    for dag, label in SET_BUTTON_LABELS.items():
        runs = [run for run in active_runs if not (dag == FAILOVER_SET_UNPLANNED and _is_planned(run))]
        reasons = [*unknown_mirrors, *(f"{run.plan.mirror}: {run.plan.kind} {run.id} is under way" for run in runs)]
        dag_id = own.get(dag, dag)
        yield ActionButton(dag, label, denied.get(dag_id, "") or "; ".join(reasons), dag_id)


MAX_REFUSAL_LENGTH: Final = 160


def _format_refusals(reasons: Sequence[str]) -> str:
    """The first; the first card has all of them."""
    if not reasons:
        return ""
    first = shorten(reasons[0], MAX_REFUSAL_LENGTH, placeholder=" …")
    return first if len(reasons) == 1 else f"{first} (and {len(reasons) - 1:,} more)"


def _list_refusals(
    dag: str, assessment: MirrorAssessment | None, run: Run | None, conductor: ConductorStatus
) -> Sequence[str]:
    """Unknown reasons do not disable a button: the plan refuses all the same."""
    if run is not None and dag in _RUN_DAGS and not (dag == UNPLANNED and _is_planned(run)):
        return (str(explain_held_by(run, conductor, ())),)
    if assessment is None:
        return ()
    if dag == FAILOVER and assessment.decision is not None:
        return tuple(map(str, assessment.decision.reasons))
    if dag == UNPLANNED and assessment.unplanned is not None:
        return tuple(finding.text for finding in assessment.unplanned.refused)
    return assessment.failback_refusals if dag == FAILBACK else ()


def _is_planned(run: Run) -> bool:
    """An unplanned failover can continue a planned one."""
    return run.plan.kind is RunKind.FAILOVER and run.plan.mode is RunMode.PLANNED
