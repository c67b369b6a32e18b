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

from mirror_core.decide.calling import Answer, of_status
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Command, Http
from mirror_core.model.names import MirrorName
from mirror_core.state.link import Link
from mirror_core.sync.programs import Tried


def hook_problems(config: Config, mirror: MirrorName) -> Iterator[str]:
    for hook in config.hooks(mirror):
        match hook.call:
            case Command():
                yield from (f"hook {hook.name}: {problem}" for problem in _missing(config, hook.call))
            case Http():
                try:
                    request_of(config, hook.name, hook.call)
                except BadRequest as error:
                    yield f"hook {hook.name}: {error}"


def command_problems(link: Link) -> Iterator[str]:
    for side in (link.source, link.destination):
        for hook in (side.ruling.fence, side.ruling.unfence):
            if hook is not None and isinstance(hook.call, Command):
                yield from (f"{hook.name} of {side.name}: {problem}" for problem in _missing(link.config, hook.call))


def _missing(config: Config, call: Command) -> Iterator[str]:
    program = call.argv[0]
    where = str(config.path.parent / program) if "/" in program else program
    if shutil.which(where) is None:
        yield f"{program} is not found or not executable"


def request_of(config: Config, name: str, call: Http) -> tuple[str, dict[str, str], dict[str, object]]:

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


def send(url: str, method: str, headers: Mapping[str, str], body: object, timeout_s: float) -> Tried:
    """A server that answers drop by drop keeps a thread, not us."""
    found: list[Tried] = []
    data = msgspec.json.encode(body)
    arguments = (url, method, {"Content-Type": "application/json", **headers}, data, timeout_s)
    thread = threading.Thread(target=lambda: found.append(_sent(*arguments)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else Tried(Answer.AGAIN, f"no answer within {timeout_s:g} s")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would leak headers, or turn into an empty GET that looks like success."""

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
        # Without its text: a malformed header's would show it.
        kind = Answer.NEVER if isinstance(error, ValueError) else Answer.AGAIN
        return Tried(kind, f"cannot be sent: {type(error).__name__}")


def _status(code: int) -> Tried:
    answer = of_status(code)
    return Tried(answer, "" if answer is Answer.DONE else f"answered with status {code}")
