"""Incremental verification: how far a mirror is verified, kept in the state topic.

Comparisons may run at the same time, for hours. A difference found by another one stays until a later comparison finds
its place equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mirror_core.model.names import Partition
from mirror_core.model.proof import Difference, Proof, Proved

_Rows: TypeAlias = dict[Partition, tuple[str, Proved]]


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Changes by others since a comparison began; each save repeats its own findings."""

    proved: frozenset[Partition] = frozenset()
    taken: frozenset[Partition] = frozenset()
    found: frozenset[Difference] = frozenset()
    cleared: frozenset[Difference] = frozenset()
    """Equal since, or copied anew."""

    def since(self, seen: Proof | None, now: Proof | None) -> Meanwhile:
        """`read_proof`: as read, or as saved last."""
        before, after = _rows(seen).keys(), _rows(now).keys()
        known, told = _differs(seen), _differs(now)
        return Meanwhile(
            proved=(self.proved | (after - before)) & after,
            taken=self.taken | (before - after),
            found=(self.found & told) | (told - known),
            cleared=self.cleared | (known - told),
        )

    def beside(self, mine: Proof, now: Proof | None) -> Proof:
        """Where both know a difference, the first place counts."""
        ours, theirs = _rows(mine), _rows(now)
        known = {one.partition: one for one in mine.differs if one not in self.cleared}
        worse = {one.partition: one for one in self.found if _is_first(one, known.get(one.partition))}
        rows = {p: row for p, row in ours.items() if p not in self.taken | worse.keys()}
        added = worse.keys() | (self.proved - ours.keys() - known.keys())
        ids = {p.topic: topic_id for p, (topic_id, _) in ours.items()}
        rows |= {p: row for p, row in theirs.items() if p in added and ids.setdefault(p.topic, row[0]) == row[0]}
        differs = sorted({**known, **worse}.values(), key=lambda one: one.partition)
        return Proof.of(mine.mirror, {p: one for p, (_, one) in rows.items()}, ids, tuple(differs))


def _is_first(one: Difference, other: Difference | None) -> bool:
    return other is None or _place(one) < _place(other)


def _place(one: Difference) -> tuple[int, int]:
    return one.offset or 0, -one.at_ms


def _rows(proof: Proof | None) -> _Rows:
    return {p: (topic_id, one) for p, topic_id, one in proof.rows()} if proof else {}


def _differs(proof: Proof | None) -> frozenset[Difference]:
    return frozenset(proof.differs) if proof else frozenset()
