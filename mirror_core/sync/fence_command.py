"""A user's programs that fence a cluster, and lift that, where ACLs do not rule it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.errors import MirrorError
from mirror_core.model.hooks import Hook, HookCommand, HookOutcome, compute_retry_pause_s
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run
from mirror_core.model.text import format_count
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.sync.subprocess_hook import SubprocessAttempt, run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClosed:
    """Recorded before and after `fence_command`: an abort then opens the cluster."""

    VERSION: ClassVar[int] = 1
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOpened:
    """Recorded before and after the destination's `unfence_command`."""

    VERSION: ClassVar[int] = 1
    cluster: str


def has_closed_source(state: State, run: Run) -> bool:
    """Or was about to."""
    return any(run_id == run.id and kind == ClusterClosed.__name__ for run_id, _, kind in state.checkpoints)


_log = get_logger(__name__)


class FenceCommandFailed(MirrorError):
    """Reported by the command, or timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceCommandTarget:
    cluster: ClusterConfig
    cluster_id: str
    mirror: MirrorName
    run: str
    topics: Collection[str]
    config: Config


def build_command_target(
    link: MirrorLink, cluster: ClusterName, run: str, topics: Collection[str]
) -> FenceCommandTarget:
    is_source = cluster == link.source.name
    return FenceCommandTarget(
        cluster=link.source if is_source else link.destination,
        cluster_id=link.mirror.source_id if is_source else link.mirror.destination_id,
        mirror=link.mirror.name,
        run=run,
        topics=topics,
        config=link.config,
    )


def run_fence_command(
    target: FenceCommandTarget, *, once: bool = False, before_try: Callable[[], None] = lambda: None
) -> bool:
    """False without a fence_command. `once`: no retries, for callers that must not wait or that try again anyway."""
    hook = target.cluster.ruling.fence_command
    if hook is not None:
        _run_with_retries(target, hook, "fence", 0 if once else hook.retries, before_try)
    return hook is not None


def run_unfence_command(target: FenceCommandTarget, *, before_try: Callable[[], None] = lambda: None) -> bool:
    """False without an unfence_command."""
    hook = target.cluster.ruling.unfence_command
    if hook is not None:
        _run_with_retries(target, hook, "unfence", hook.retries, before_try)
    return hook is not None


def _run_with_retries(
    target: FenceCommandTarget, hook: Hook, action: str, retries: int, before_try: Callable[[], None]
) -> None:
    name, call = target.cluster.name, hook.call if isinstance(hook.call, HookCommand) else HookCommand(())
    tries = 0
    while True:
        tries += 1
        before_try()
        attempt = _run_once(target, call, action, hook.timeout_s)
        if attempt.answer is HookOutcome.DONE:
            _log.info("%s is done", hook.name, cluster=name, mirror=target.mirror)
            return
        if attempt.answer is HookOutcome.GIVE_UP or tries > retries:
            break
        _log.info("%s: %s; again", hook.name, attempt.problem, cluster=name)
        time.sleep(compute_retry_pause_s(tries))
    raise FenceCommandFailed(
        f"cluster {name}: {hook.name} ({call.argv[0]}) failed after {format_count(tries, 'attempt')}:"
        f" {attempt.problem}. Its own log says more. Mend it; or {'close' if action == 'fence' else 'open'} {name} by"
        " hand, and have the command find it so"
    )


def _run_once(target: FenceCommandTarget, call: HookCommand, action: str, timeout_s: float) -> SubprocessAttempt:
    try:
        # A file: an environment cannot hold 50,000 names.
        with tempfile.TemporaryDirectory(prefix="mirrorbook-", ignore_cleanup_errors=True) as folder:
            topics_file = Path(folder) / "topics"
            topics_file.write_text("".join(f"{topic}\n" for topic in sorted(target.topics)), encoding="utf-8")
            variables = {**_build_variables(target, action), "MIRRORBOOK_TOPICS_FILE": str(topics_file)}
            return run_program(target.config, call, variables, timeout_s)
    except OSError as error:
        return SubprocessAttempt(HookOutcome.RETRY, f"the file with its topics cannot be written: {error.strerror}")


def _build_variables(target: FenceCommandTarget, action: str) -> dict[str, str]:
    return {
        "MIRRORBOOK_ACTION": action,
        "MIRRORBOOK_CLUSTER": str(target.cluster.name),
        "MIRRORBOOK_CLUSTER_ID": target.cluster_id,
        "MIRRORBOOK_BOOTSTRAP_SERVERS": target.cluster.control["bootstrap.servers"],
        "MIRRORBOOK_MIRROR": str(target.mirror),
        "MIRRORBOOK_RUN": target.run,
    }
