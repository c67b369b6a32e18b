"""Sibling mirrors, from the old source to third clusters: what a failback does to their topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from mirror_core.decide.view import some
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName


class Changed(NamedTuple):
    anew: frozenset[str]
    cut: frozenset[str]


def warnings(
    source: ClusterName, beside: Collection[tuple[Mirror, frozenset[str]]], changed: Changed | None
) -> Iterator[str]:
    """`beside`: siblings with the topics that each shares; `changed`: None while the old source is unseen."""
    for other, topics in beside:
        carries = f"mirror {other.name} carries {some(sorted(topics))} from {source} to {other.destination}"
        if changed is None:
            yield f"{carries}: what becomes of it is not known while {source} is not seen"
            continue
        failed = [
            f"{some(sorted(found))}, {how}"
            for found, how in (
                (topics & changed.anew, f"made anew on {source}: FAILED there (recreated) from then on"),
                (
                    topics & changed.cut,
                    f"cut on {source}: FAILED there (diverged) where {other.destination} has copied what is discarded",
                ),
            )
            if found
        ]
        but = f", but for {'; and '.join(failed)}. Then: `mirrorbook mirror recover {other.name}`" if failed else ""
        yield f"{carries}: what comes home reaches {other.destination}, too{but}"
