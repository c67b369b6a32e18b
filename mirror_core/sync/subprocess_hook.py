"""Runs a user's program. Its output may hold secrets: only the exit code is kept.

It inherits no secret, neither this process's nor Airflow's.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import HookCommand, HookOutcome, from_exit_code

INHERITED_VARIABLES: Final = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER",
)  # fmt: skip
"""Everything else a hook names in `environment`."""
_KILL_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SubprocessAttempt:
    answer: HookOutcome
    problem: str = ""


def resolve_environment(config: Config, call: HookCommand) -> dict[str, str]:
    """May hold secrets. BadRequest names a dangling reference."""
    return {name: config.resolve_references(f"environment.{name}", text) for name, text in call.environment.items()}


def run_program(config: Config, call: HookCommand, variables: Mapping[str, str], timeout_s: float) -> SubprocessAttempt:
    """On timeout it is killed with its children."""
    try:
        environment = resolve_environment(config, call)
    except BadRequest as error:
        return SubprocessAttempt(HookOutcome.GIVE_UP, str(error))
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    devnull = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            call.argv,
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            env={**inherited, **environment, **variables},
            cwd=config.path.parent,
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
