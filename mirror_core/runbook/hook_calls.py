"""What a hook needs, and one try of it: a program is started, or a request is sent.

It ends within its time, and nothing that it says is kept: what a program prints and what a server answers may hold
secrets, so exit code and status are all that is told.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Command, Http
from mirror_core.model.names import MirrorName
from mirror_core.runbook.switching import Answer, of_exit, of_status

_AIRFLOW: Final = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
"""Settings of Airflow, with its keys, connections and variables: nothing for a program that moves a name."""
_GONE_S: Final = 1.0
"""A program that was killed is gone by then."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How one try ended; the problem in words without secrets."""

    answer: Answer
    problem: str = ""


def hook_problems(config: Config, mirror: MirrorName) -> Iterator[str]:
    """What would make a hook fail, as far as it can be seen before it is called: for a plan."""
    for hook in config.hooks(mirror):
        match hook.call:
            case Command():
                program = hook.call.argv[0]
                where = str(config.path.parent / program) if "/" in program else program
                if shutil.which(where) is None:
                    yield f"hook {hook.name}: {program} is not found or not executable"
            case Http():
                try:
                    request_of(config, hook.name, hook.call)
                except BadRequest as error:
                    yield f"hook {hook.name}: {error}"


def request_of(config: Config, name: str, call: Http) -> tuple[str, dict[str, str], dict[str, object]]:
    """Its address, headers and body with references replaced."""

    def resolve(value: object) -> object:
        match value:
            case str():
                return config.resolved(f"hook {name}", value)
            case dict():
                return {str(key): resolve(inner) for key, inner in value.items()}
            case list():
                return [resolve(inner) for inner in value]
        return value

    headers = {key: config.resolved(f"hook {name}", value) for key, value in call.headers.items()}
    return config.resolved(f"hook {name}", call.url), headers, {key: resolve(v) for key, v in call.json.items()}


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


def send(url: str, method: str, headers: Mapping[str, str], body: object, timeout_s: float) -> Tried:
    """Send a request, wait for the answer's status. A server that answers drop by drop keeps a thread, not us."""
    found: list[Tried] = []
    data = msgspec.json.encode(body)
    arguments = (url, method, {"Content-Type": "application/json", **headers}, data, timeout_s)
    thread = threading.Thread(target=lambda: found.append(_sent(*arguments)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else Tried(Answer.AGAIN, f"no answer within {timeout_s:g} s")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another place gets neither our headers nor, by GET, an empty question that looks like success."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _sent(url: str, method: str, headers: Mapping[str, str], data: bytes, timeout_s: float) -> Tried:
    try:
        request = urllib.request.Request(url, data, dict(headers), method=method)
        with _OPENER.open(request, timeout=timeout_s) as answer:
            return _status(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return _status(error.code)
    except urllib.error.URLError as error:
        reason = error.reason
        words = getattr(reason, "strerror", None) or type(reason).__name__
        return Tried(Answer.AGAIN, f"no connection: {words}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Not its text: that of a malformed header shows the header.
        kind = Answer.NEVER if isinstance(error, ValueError) else Answer.AGAIN
        return Tried(kind, f"cannot be sent: {type(error).__name__}")


def _status(code: int) -> Tried:
    answer = of_status(code)
    return Tried(answer, "" if answer is Answer.DONE else f"answered with status {code}")
