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

from mirror_core.decide.hook_retries import HookOutcome, from_exit_code

_AIRFLOW_PREFIXES: Final = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
"""Hold secrets; not passed on."""
_KILL_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SubprocessAttempt:
    answer: HookOutcome
    problem: str = ""


def run_program(
    argv: tuple[str, ...], variables: Mapping[str, str], folder: Path, timeout_s: float
) -> SubprocessAttempt:
    """Run the program to its end; on timeout it is killed with its children."""
    devnull = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            argv,
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            env={name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOW_PREFIXES)}
            | {**variables},
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return SubprocessAttempt(
            HookOutcome.GIVE_UP, f"cannot be started: {getattr(error, 'strerror', None) or type(error).__name__}"
        )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        if _kill_process_group(process):
            return SubprocessAttempt(HookOutcome.RETRY, f"not ended within {timeout_s:g} s, and killed")
        return SubprocessAttempt(
            HookOutcome.GIVE_UP, f"still running after {timeout_s:g} s, and could not be killed: it may go on"
        )
    finally:
        if process.returncode is None:
            _kill_process_group(process)
    exit_text = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return SubprocessAttempt(from_exit_code(code), "" if code == 0 else exit_text)


def _kill_process_group(process: subprocess.Popen[bytes]) -> bool:
    """A process that changed its user (sudo) cannot be killed."""
    with suppress(PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
    return process.returncode is not None
