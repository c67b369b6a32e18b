from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from mirror_core.decide.calling import Answer, pause_s
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import MirrorError
from mirror_core.model.hooks import Command, Hook
from mirror_core.model.logs import logger
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.link import Link
from mirror_core.sync.programs import Tried, start

_log = logger(__name__)


class CommandFailed(MirrorError):
    """Reported by the command, or timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closable:
    cluster: ClusterConfig
    cluster_id: str
    mirror: MirrorName
    run: str
    topics: Collection[str]
    folder: Path
    """Working directory: that of mirrorbook.yaml."""


def closable(link: Link, cluster: ClusterName, run: str, topics: Collection[str]) -> Closable:
    here = cluster == link.source.name
    return Closable(
        cluster=link.source if here else link.destination,
        cluster_id=link.mirror.source_id if here else link.mirror.destination_id,
        mirror=link.mirror.name,
        run=run,
        topics=topics,
        folder=link.config.path.parent,
    )


def shut(where: Closable, *, once: bool = False, before: Callable[[], None] = lambda: None) -> bool:
    """Close the cluster to applications; returns False when it has no fence_command.

    `once`: no retries, for callers that must not wait or that try again anyway.
    """
    hook = where.cluster.ruling.fence
    if hook is not None:
        _call(where, hook, "fence", 0 if once else hook.retries, before)
    return hook is not None


def open_again(where: Closable, *, before: Callable[[], None] = lambda: None) -> bool:
    """Open the cluster to applications; returns False when it has no unfence_command."""
    hook = where.cluster.ruling.unfence
    if hook is not None:
        _call(where, hook, "unfence", hook.retries, before)
    return hook is not None


def _call(where: Closable, hook: Hook, action: str, retries: int, before: Callable[[], None]) -> None:
    name, program = where.cluster.name, hook.call.argv if isinstance(hook.call, Command) else ()
    tries = 0
    while True:
        tries += 1
        before()
        found = _tried(where, program, action, hook.timeout_s)
        if found.answer is Answer.DONE:
            _log.info("%s is done", hook.name, cluster=name, mirror=where.mirror)
            return
        if found.answer is Answer.NEVER or tries > retries:
            break
        _log.info("%s: %s; again", hook.name, found.problem, cluster=name)
        time.sleep(pause_s(tries))
    raise CommandFailed(
        f"cluster {name}: {hook.name} ({program[0]}) failed after {tries} time(s): {found.problem}. Its own log says "
        f"more. Mend it; or {'close' if action == 'fence' else 'open'} {name} by hand, and have the command find it so"
    )


def _tried(where: Closable, program: tuple[str, ...], action: str, timeout_s: float) -> Tried:
    try:
        # A file: an environment cannot hold 50,000 names.
        with tempfile.TemporaryDirectory(prefix="mirrorbook-", ignore_cleanup_errors=True) as folder:
            listed = Path(folder) / "topics"
            listed.write_text("".join(f"{topic}\n" for topic in sorted(where.topics)), encoding="utf-8")
            given = {**_given(where, action), "MIRRORBOOK_TOPICS_FILE": str(listed)}
            return start(program, given, where.folder, timeout_s)
    except OSError as error:
        return Tried(Answer.AGAIN, f"the file with its topics cannot be written: {error.strerror}")


def _given(where: Closable, action: str) -> dict[str, str]:
    return {
        "MIRRORBOOK_ACTION": action,
        "MIRRORBOOK_CLUSTER": str(where.cluster.name),
        "MIRRORBOOK_CLUSTER_ID": where.cluster_id,
        "MIRRORBOOK_BOOTSTRAP_SERVERS": where.cluster.control["bootstrap.servers"],
        "MIRRORBOOK_MIRROR": str(where.mirror),
        "MIRRORBOOK_RUN": where.run,
    }
