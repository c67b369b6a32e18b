"""Shell completion: names from mirrorbook.yaml and from the clusters.

A shell shows nothing but completions, so errors give none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_core.kafka.config import Config, find_config, load_config
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS

if TYPE_CHECKING:
    from mirror_core.state.records import State

Names = Callable[[Config], Iterable[str]]


def clusters(ctx: Any, incomplete: str) -> list[str]:
    return _among(lambda config: config.clusters, ctx, incomplete)


def sets(ctx: Any, incomplete: str) -> list[str]:
    return _among(lambda config: config.sets, ctx, incomplete)


def mirrors(ctx: Any, incomplete: str) -> list[str]:
    return _among(_mirrors, ctx, incomplete)


def runs(ctx: Any, incomplete: str) -> list[str]:
    """Newest first."""

    def known(config: Config) -> list[str]:
        found = [run for _, state in _answers(config) for run in state.runs.values()]
        return [run.id for run in sorted(found, key=lambda run: -run.started_ms)]

    return _among(known, ctx, incomplete)


def _among(names: Names, ctx: Any, incomplete: str) -> list[str]:
    logging.disable(logging.CRITICAL)  # this process does nothing else
    path = ctx.params.get("config")
    try:
        found = names(load_config(find_config(Path(path) if path else None)))
    except MirrorError:
        return []
    return [name for name in found if name.startswith(incomplete)]


def _mirrors(config: Config) -> list[str]:
    return sorted(m.name for to, state in _answers(config) for m in state.mirrors.values() if m.destination == to)


def _answers(config: Config) -> Iterator[tuple[str, State]]:
    from mirror_core.state.link import states  # late: a supervisor's process imports no clients

    for cluster, answer in states(config, LIMITS.completed_names_s):
        if not isinstance(answer, MirrorError):
            yield cluster, answer
