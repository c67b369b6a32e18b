"""What the last probe of the source forbids before a planned promotion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One broker that hangs, or may not be asked, hides no other."""

    silent: str = ""
    elsewhere: str = ""
    """Id of another cluster that answers at the source's address."""
    bare: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    shown: int = 0
    fenced: bool = False
    ends: Mapping[Partition, Offset] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return not self.silent and not self.elsewhere

    @property
    def whole(self) -> bool:
        return self.answers and not self.unsaid

    @property
    def words(self) -> str:
        if self.elsewhere:
            return f"silent: its address leads to cluster {self.elsewhere}"
        if self.silent:
            return f"silent: {self.silent}"
        return f"seen in part: {'; '.join(self.unsaid)}" if self.unsaid else "seen"


def contradicted(said: Said, source: ClusterName, drained: Mapping[Partition, Offset]) -> Iterator[str]:
    if said.elsewhere:
        yield f"the address of {source} leads to cluster {said.elsewhere} now"
    yield from said.bare
    for partition, end in sorted(said.ends.items()):
        if end != drained[partition]:
            yield f"{partition} on {source}: log end {end}, drained up to {drained[partition]}"


def in_doubt(said: Said, source: ClusterName, mirror: MirrorName, *, held: bool, file: bool) -> str:
    """Why it is unknown what the source accepted; empty: it is known.

    An unseen source accepted nothing since the drain only if its fence held all the time: it was `held` at the drain,
    and its `file`, which is here, was never used to lift it.
    """
    if said.whole or (held and file):
        return ""
    why = "the file that tells whether its fence stood is not here" if held else "could not be fenced"
    unseen = "does not answer" if said.silent else f"answers only in part ({'; '.join(said.unsaid)})"
    return (
        f"{source} {unseen} and {why}, so nobody knows what it took after it was drained. If it is lost: `mirrorbook "
        f"failover run {mirror} --mode unplanned` goes on from here, and says what may be missing"
    )
