"""Airflow's side of Mirrorbook: connection type, hook, tasks and pages. The core knows nothing of it.

Discovered by every Airflow process, so nothing heavy is imported here: the building blocks when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mirrorbook_airflow.dag_factory import MirrorRunbook, mirrorbook_dags, mirrorbook_params
    from mirrorbook_airflow.operators import JudgeParity, PlanParity

__all__ = ["JudgeParity", "MirrorRunbook", "PlanParity", "mirrorbook_dags", "mirrorbook_params"]

_OPERATORS: Final = ("JudgeParity", "PlanParity")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'operators' if name in _OPERATORS else 'dag_factory'}"), name)
