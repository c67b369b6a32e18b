"""`mirrorbook demo`: parse, call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.model.json_documents import prints_json
from mirrorbook_tools.demo.summary import DemoDocument


@prints_json(DemoDocument)
def demo_command(
    dir: Annotated[Path, typer.Option("--dir", help="Folder for clusters, logs and evidence.")] = Path(
        ".mirrorbook-demo"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the clusters running at the end, and say what stops them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """See it work: two clusters, a failover under load, every record counted. Exit code 0: exact; 1: not.

    Starts two clusters on this machine and needs the extra `sandbox`. Ctrl-C stops all that was started.
    """
    from mirrorbook_tools.demo.scenario_runner import (
        play,  # late: `mirrorbook` without the extra `sandbox` must still start
    )

    raise typer.Exit(play(dir, keep=keep, as_json=as_json))
