"""What a hook needs, and one HTTP attempt. Programs: `sync.subprocess_hook`.

It ends within its timeout. Nothing but the status is recorded: a response may hold secrets.
"""

from __future__ import annotations

import http.client
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from mirror_core.decide.hook_retries import HookOutcome, from_http_status
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import HookCommand, HookRequest
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.subprocess_hook import SubprocessAttempt, resolve_environment


def find_hook_problems(config: Config, mirror: MirrorName) -> Iterator[str]:
    for hook in config.hooks(mirror):
        match hook.call:
            case HookCommand():
                yield from (f"hook {hook.name}: {problem}" for problem in _find_problems(config, hook.call))
            case HookRequest():
                try:
                    build_request(config, hook.name, hook.call)
                except BadRequest as error:
                    yield f"hook {hook.name}: {error}"


def find_command_problems(link: MirrorLink) -> Iterator[str]:
    for side in (link.source, link.destination):
        for hook in (side.ruling.fence_command, side.ruling.unfence_command):
            if hook is not None and isinstance(hook.call, HookCommand):
                yield from (
                    f"{hook.name} of {side.name}: {problem}" for problem in _find_problems(link.config, hook.call)
                )


def _find_problems(config: Config, call: HookCommand) -> Iterator[str]:
    program = call.argv[0]
    program_path = str(config.path.parent / program) if "/" in program else program
    if shutil.which(program_path) is None:
        yield f"{program} is not found or not executable"
    try:
        resolve_environment(config, call)
    except BadRequest as error:
        yield str(error)


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
    """A redirect would leak headers, or turn into an empty GET that looks like success."""

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
