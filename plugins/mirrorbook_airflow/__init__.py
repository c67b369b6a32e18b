"""Airflow's side of Mirrorbook: connection type, hook, tasks and pages. The core knows nothing of it.

Discovered by every Airflow process, so nothing heavy is imported here: `mirrorbook_dags` when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mirrorbook_airflow.dag_factory import mirrorbook_dags

__all__ = ["mirrorbook_dags"]

_MODULES: Final = {"mirrorbook_dags": "dag_factory"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
