"""Incremental verification: how far a mirror is verified, kept in the state topic.

Comparisons may run at the same time, for hours. A difference found by another one stays until a later comparison finds
its place equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mirror_core.model.names import Partition
from mirror_core.model.proof import KnownDifference, MirrorVerification, VerifiedEnd

_ProofRows: TypeAlias = dict[Partition, tuple[str, VerifiedEnd]]


@dataclass(frozen=True, slots=True)
class ConcurrentChanges:
    """Changes by others since a comparison began; each save repeats its own findings."""

    proved: frozenset[Partition] = frozenset()
    removed: frozenset[Partition] = frozenset()
    found: frozenset[KnownDifference] = frozenset()
    cleared: frozenset[KnownDifference] = frozenset()
    """Equal since, or copied anew."""

    def add_changes(
        self, read_proof: MirrorVerification | None, current_proof: MirrorVerification | None
    ) -> ConcurrentChanges:
        """`read_proof`: as read, or as saved last."""
        before, after = _list_rows(read_proof).keys(), _list_rows(current_proof).keys()
        read_differences, current_differences = _list_differences(read_proof), _list_differences(current_proof)
        return ConcurrentChanges(
            proved=(self.proved | (after - before)) & after,
            removed=self.removed | (before - after),
            found=(self.found & current_differences) | (current_differences - read_differences),
            cleared=self.cleared | (read_differences - current_differences),
        )

    def merge_into(self, own_proof: MirrorVerification, current_proof: MirrorVerification | None) -> MirrorVerification:
        """Where both know a difference, the first place counts."""
        own_rows, current_rows = _list_rows(own_proof), _list_rows(current_proof)
        own_differences = {proved.partition: proved for proved in own_proof.differences if proved not in self.cleared}
        earlier_differences = {
            proved.partition: proved
            for proved in self.found
            if _precedes(proved, own_differences.get(proved.partition))
        }
        rows = {p: row for p, row in own_rows.items() if p not in self.removed | earlier_differences.keys()}
        added = earlier_differences.keys() | (self.proved - own_rows.keys() - own_differences.keys())
        ids = {p.topic: topic_id for p, (topic_id, _) in own_rows.items()}
        rows |= {p: row for p, row in current_rows.items() if p in added and ids.setdefault(p.topic, row[0]) == row[0]}
        differs = sorted({**own_differences, **earlier_differences}.values(), key=lambda proved: proved.partition)
        return MirrorVerification.from_partitions(
            own_proof.mirror, {p: proved for p, (_, proved) in rows.items()}, ids, tuple(differs)
        )


def _precedes(difference: KnownDifference, other: KnownDifference | None) -> bool:
    return other is None or _to_sort_key(difference) < _to_sort_key(other)


def _to_sort_key(difference: KnownDifference) -> tuple[int, int]:
    return difference.offset or 0, -difference.at_ms


def _list_rows(proof: MirrorVerification | None) -> _ProofRows:
    return {p: (topic_id, proved) for p, topic_id, proved in proof.iterate_partitions()} if proof else {}


def _list_differences(proof: MirrorVerification | None) -> frozenset[KnownDifference]:
    return frozenset(proof.differences) if proof else frozenset()
