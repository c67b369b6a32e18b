"""Finds the installed DAGs: as a bundle, or for a file in a team's DAG folder."""

from __future__ import annotations

import runpy
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.dag_processing.bundles.local import LocalDagBundle

if TYPE_CHECKING:
    from airflow.sdk import DAG

INSTALLED_DAGS_PATH: Final = "share/mirrorbook/dags/"
"""Under the environment's prefix."""
CHECKOUT_DAGS_FOLDER: Final = Path(__file__).parents[2] / "dags"
"""For an editable installation."""


class MirrorbookBundle(LocalDagBundle):
    """For `[dag_processor] dag_bundle_config_list`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(find_dags_folder()), **kwargs)


def dags() -> dict[str, DAG]:
    """DAGs by name, for a file in a team's DAG folder where bundles cannot be configured."""
    return {file.stem: runpy.run_path(str(file))["dag"] for file in sorted(find_dags_folder().glob("*.py"))}


def find_dags_folder() -> Path:
    """Raises PackageNotFoundError when the package has no DAGs."""
    for file in distribution("mirrorbook").files or ():
        path = Path(str(file.locate())).resolve()
        if INSTALLED_DAGS_PATH in path.as_posix() and path.suffix == ".py":
            return path.parent
    if CHECKOUT_DAGS_FOLDER.is_dir():
        return CHECKOUT_DAGS_FOLDER
    raise PackageNotFoundError("mirrorbook: installed without its DAGs: install its wheel")
