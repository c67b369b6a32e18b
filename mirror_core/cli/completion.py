"""Shell completion: names from mirrorbook.yaml and from the clusters.

A shell shows nothing but completions, so errors give none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_core.kafka.config import Config, find_config, load_config
from mirror_core.model.config_sections import format_source_set
from mirror_core.model.errors import MirrorError
from mirror_core.model.run import list_newest_first
from mirror_core.model.timing import TIMEOUTS

if TYPE_CHECKING:
    from mirror_core.state.state_records import State

NameSource = Callable[[Config], Iterable[str]]


def complete_clusters(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(lambda config: config.clusters, ctx, incomplete)


def complete_sets(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(lambda config: [*config.sets, *map(format_source_set, config.clusters)], ctx, incomplete)


def complete_mirrors(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(_list_mirrors, ctx, incomplete)


def complete_runs(ctx: Any, incomplete: str) -> list[str]:
    """By cluster, newest first."""

    def list_run_ids(config: Config) -> list[str]:
        return [run.id for _, state in _read_states(config) for run in list_newest_first(state.runs.values())]

    return _complete_from(list_run_ids, ctx, incomplete)


def _complete_from(name_source: NameSource, ctx: Any, incomplete: str) -> list[str]:
    logging.disable(logging.CRITICAL)  # this process does nothing else
    path = ctx.params.get("config")
    try:
        candidates = name_source(load_config(find_config(Path(path) if path else None)))
    except MirrorError:
        return []
    return [name for name in candidates if name.startswith(incomplete)]


def _list_mirrors(config: Config) -> list[str]:
    return sorted(m.name for to, state in _read_states(config) for m in state.mirrors.values() if m.destination == to)


def _read_states(config: Config) -> Iterator[tuple[str, State]]:
    from mirror_core.state.mirror_link import read_states  # late: a supervisor's process imports no clients

    for cluster, state_or_error in read_states(config, TIMEOUTS.completion_s):
        if not isinstance(state_or_error, MirrorError):
            yield cluster, state_or_error
