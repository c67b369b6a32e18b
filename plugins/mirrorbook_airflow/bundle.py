"""The DAGs as they were installed with the package: as a bundle of their own, or from a file in a team's DAG folder."""

from __future__ import annotations

import runpy
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.dag_processing.bundles.local import LocalDagBundle

if TYPE_CHECKING:
    from airflow.sdk import DAG

INSTALLED: Final = "share/mirrorbook/dags/"
"""Under the environment's prefix, as the wheel puts them there."""
CHECKOUT: Final = Path(__file__).parents[2] / "dags"
"""Of an editable installation, which puts nothing anywhere."""


class MirrorbookBundle(LocalDagBundle):
    """To be named in `[dag_processor] dag_bundle_config_list`: Airflow asks no package for DAGs by itself."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(installed()), **kwargs)


def dags() -> dict[str, DAG]:
    """All of them by name, for a file of a team's own DAG folder, where bundles cannot be chosen."""
    return {file.stem: runpy.run_path(str(file))["dag"] for file in sorted(installed().glob("*.py"))}


def installed() -> Path:
    """The folder of the DAGs that belong to this code; raises PackageNotFoundError when the package brought none."""
    for file in distribution("mirrorbook").files or ():
        found = Path(str(file.locate())).resolve()
        if INSTALLED in found.as_posix() and found.suffix == ".py":
            return found.parent
    if CHECKOUT.is_dir():
        return CHECKOUT
    raise PackageNotFoundError("mirrorbook: installed without its DAGs: install its wheel")
