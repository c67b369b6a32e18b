"""A program of the user's is started and waited for.

It ends within its time, and nothing that it says is kept: what a program prints may hold secrets, so its exit code is
all that is told.
"""

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
"""Settings of Airflow, with its keys, connections and variables: nothing for a program that moves a name."""
_GONE_S: Final = 1.0
"""A program that was killed is gone by then."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How one try ended; the problem in words without secrets."""

    answer: Answer
    problem: str = ""


def start(argv: tuple[str, ...], given: Mapping[str, str], folder: Path, timeout_s: float) -> Tried:
    """Run a program to its end, with these variables beside ours, but for what Airflow has its secrets in. Too late: it
    is killed, and its children."""
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
    """Whether it is gone. What became another user (sudo) we may not kill: nobody waits for it."""
    with suppress(PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
    return process.returncode is not None
