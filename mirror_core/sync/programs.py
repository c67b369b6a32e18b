"""Runs a user's program. Its output may hold secrets: only the exit code is kept."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror_core.decide.calling import Answer, of_exit

_AIRFLOW: Final = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
"""Hold secrets; not passed on."""
_GONE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Tried:
    answer: Answer
    problem: str = ""


def start(argv: tuple[str, ...], given: Mapping[str, str], folder: Path, timeout_s: float) -> Tried:
    """Run the program to its end; on timeout it is killed with its children."""
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            argv,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            env={name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOW)} | {**given},
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Tried(Answer.NEVER, f"cannot be started: {getattr(error, 'strerror', None) or type(error).__name__}")
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        if _killed(process):
            return Tried(Answer.AGAIN, f"not ended within {timeout_s:g} s, and killed")
        return Tried(Answer.NEVER, f"still running after {timeout_s:g} s, and could not be killed: it may go on")
    finally:
        if process.returncode is None:
            _killed(process)
    ended = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return Tried(of_exit(code), "" if code == 0 else ended)


def _killed(process: subprocess.Popen[bytes]) -> bool:
    """A process that changed its user (sudo) cannot be killed."""
    with suppress(PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
    return process.returncode is not None
