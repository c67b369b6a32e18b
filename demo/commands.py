"""The same by the command line: what is left of a cockpit when Airflow is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mirror_core.model.errors import MirrorError


def run(*words: str, config: Path, evidence: Path) -> None:
    """Run one of `mirrorbook`'s runbooks to its end."""
    program = Path(sys.executable).with_name("mirrorbook")
    done = subprocess.run(
        [program, *words, "--yes", "--runner", "local", "--config", config, "--evidence", evidence],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MirrorError(f"mirrorbook {' '.join(words)}: exit code {done.returncode}:\n{done.stdout}")
