"""Sibling mirrors, from the old source to third clusters: what a failback does to their topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from mirror_core.decide.view import join_limited
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName


class ChangedTopics(NamedTuple):
    recreated: frozenset[str]
    truncated: frozenset[str]


def warn_sibling_mirrors(
    source: ClusterName, siblings: Collection[tuple[Mirror, frozenset[str]]], changed: ChangedTopics | None
) -> Iterator[str]:
    """`beside`: siblings with the topics that each shares; `changed`: None while the old source is unseen."""
    for sibling, topics in siblings:
        carries = f"mirror {sibling.name} carries {join_limited(sorted(topics))} from {source} to {sibling.destination}"
        if changed is None:
            yield f"{carries}: what becomes of it is not known while {source} is not seen"
            continue
        failed = [
            f"{join_limited(sorted(affected))}, {effect}"
            for affected, effect in (
                (topics & changed.recreated, f"made anew on {source}: FAILED there (recreated) from then on"),
                (
                    topics & changed.truncated,
                    f"cut on {source}: FAILED there (diverged) where {sibling.destination} has copied what is discarded",
                ),
            )
            if affected
        ]
        exceptions = (
            f", but for {'; and '.join(failed)}. Then: `mirrorbook mirror recover {sibling.name}`" if failed else ""
        )
        yield f"{carries}: what comes home reaches {sibling.destination}, too{exceptions}"
