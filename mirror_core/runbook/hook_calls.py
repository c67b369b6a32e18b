"""What a hook needs, and one HTTP attempt within its timeout.

Nothing but the status is recorded: a response may hold secrets.
"""

from __future__ import annotations

import http.client
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.hooks import Hook, HookCommand, HookOutcome, HookRequest, from_http_status
from mirror_core.model.names import MirrorName
from mirror_core.model.run import StepEvidence
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.subprocess_hook import SubprocessAttempt, resolve_environment, run_program

HEALTH_INTERVAL_S: Final = 1.0
_MIN_CALL_S: Final = 0.1


def warn_unusable_hooks(config: Config, mirror: MirrorName) -> Iterator[Finding]:
    health = config.health_command(mirror)
    for hook in (*config.hooks(mirror), *(() if health is None else (health,))):
        match hook.call:
            case HookCommand():
                if not _is_program_found(config, hook.call):
                    yield Finding("hook_program_absent", hook.name, program=hook.call.argv[0])
                if reason := _find_unresolved(config, hook.call):
                    yield Finding("hook_unresolved", hook.name, reason=reason)
            case HookRequest():
                try:
                    build_request(config, hook.name, hook.call)
                except BadRequest as error:
                    yield Finding("hook_unresolved", hook.name, reason=error)


def warn_unusable_fence_commands(link: MirrorLink) -> Iterator[Finding]:
    for side in (link.source, link.destination):
        for hook in (side.ruling.fence_command, side.ruling.unfence_command):
            if hook is not None and isinstance(hook.call, HookCommand):
                if not _is_program_found(link.config, hook.call):
                    program = hook.call.argv[0]
                    yield Finding("fence_command_program_absent", side.name, hook=hook.name, program=program)
                if reason := _find_unresolved(link.config, hook.call):
                    yield Finding("fence_command_unresolved", side.name, hook=hook.name, reason=reason)


def _is_program_found(config: Config, call: HookCommand) -> bool:
    program = call.argv[0]
    return shutil.which(str(config.path.parent / program) if "/" in program else program) is not None


def _find_unresolved(config: Config, call: HookCommand) -> str:
    try:
        resolve_environment(config, call)
    except BadRequest as error:
        return str(error)
    return ""


def await_health(
    config: Config, hook: Hook, variables: Mapping[str, str], *, pause: Callable[[float], None] = time.sleep
) -> StepEvidence:
    """A second apart, until it exits 0 or its time is over. Raises nothing."""
    assert isinstance(hook.call, HookCommand)
    began, calls = time.monotonic(), 1
    deadline = began + hook.timeout_s
    attempt = run_program(config, hook.call, variables, hook.timeout_s)
    while attempt.answer is HookOutcome.RETRY and time.monotonic() + HEALTH_INTERVAL_S < deadline:
        pause(HEALTH_INTERVAL_S)
        left_s = max(_MIN_CALL_S, deadline - time.monotonic())
        attempt, calls = run_program(config, hook.call, variables, left_s), calls + 1
    return {
        FigureKey.HEALTH_COMMAND: hook.call.argv[0],
        FigureKey.HEALTH_WELL: attempt.answer is HookOutcome.DONE,
        FigureKey.HEALTH_CALLS: calls,
        FigureKey.HEALTH_S: round(time.monotonic() - began, 3),
        **({FigureKey.HEALTH_PROBLEM: attempt.problem} if attempt.problem else {}),
    }


def build_request(config: Config, name: str, call: HookRequest) -> tuple[str, dict[str, str], dict[str, object]]:

    def resolve(value: object) -> object:
        match value:
            case str():
                return config.resolve_references(f"hook {name}", value)
            case dict():
                return {str(key): resolve(inner) for key, inner in value.items()}
            case list():
                return [resolve(inner) for inner in value]
        return value

    headers = {key: config.resolve_references(f"hook {name}", value) for key, value in call.headers.items()}
    return (
        config.resolve_references(f"hook {name}", call.url),
        headers,
        {key: resolve(v) for key, v in call.json.items()},
    )


def send_request(
    url: str, method: str, headers: Mapping[str, str], body: object, timeout_s: float
) -> SubprocessAttempt:
    """A server that answers drop by drop keeps a thread, not us."""
    results: list[SubprocessAttempt] = []
    data = msgspec.json.encode(body)
    arguments = (url, method, {"Content-Type": "application/json", **headers}, data, timeout_s)
    thread = threading.Thread(target=lambda: results.append(_send_now(*arguments)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return results[0] if results else SubprocessAttempt(HookOutcome.RETRY, f"no answer within {timeout_s:g} s")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would leak headers, or look like success."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _send_now(url: str, method: str, headers: Mapping[str, str], data: bytes, timeout_s: float) -> SubprocessAttempt:
    try:
        request = urllib.request.Request(url, data, dict(headers), method=method)
        with _OPENER.open(request, timeout=timeout_s) as response:
            return _to_result(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return _to_result(error.code)
    except urllib.error.URLError as error:
        reason = error.reason
        error_text = getattr(reason, "strerror", None) or type(reason).__name__
        return SubprocessAttempt(HookOutcome.RETRY, f"no connection: {error_text}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Without its text: a malformed header's would show it.
        retry_rule = HookOutcome.GIVE_UP if isinstance(error, ValueError) else HookOutcome.RETRY
        return SubprocessAttempt(retry_rule, f"cannot be sent: {type(error).__name__}")


def _to_result(code: int) -> SubprocessAttempt:
    retry_rule = from_http_status(code)
    return SubprocessAttempt(retry_rule, "" if retry_rule is HookOutcome.DONE else f"answered with status {code}")
