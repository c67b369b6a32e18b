"""The commands that pyproject.toml declares, for tests and the processes they start, whatever is installed."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from mirror_core.cli.lazy_group import ENTRY_POINT_GROUP

ROOT: Final = Path(__file__).parents[2]


def provide_declared_commands() -> None:
    """Nothing to do where the installation is as new as pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared: dict[str, str] = project["entry-points"][ENTRY_POINT_GROUP]
    if {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} != declared:
        folder = Path(tempfile.mkdtemp(prefix="mirrorbook-commands-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_distribution(folder, declared)
        sys.path.append(str(folder))
        path = (str(ROOT), str(folder), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


def write_distribution(folder: Path, commands: dict[str, str]) -> None:
    """An installed distribution, as Python sees it, that adds commands."""
    info = folder / "declared-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 0\n", encoding="utf-8")
    lines = (f"{name} = {value}\n" for name, value in commands.items())
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{''.join(lines)}", encoding="utf-8")
