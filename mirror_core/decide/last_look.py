"""What the last look at a source forbids before a planned promotion: what it says, and what nobody knows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What its brokers said. One that hangs, or may not be asked, hides no other."""

    silent: str = ""
    """Why no broker said anything; empty: some did."""
    elsewhere: str = ""
    """Id of another cluster, which answers at the source's address."""
    bare: tuple[str, ...] = ()
    """Brokers that do not show all denials, in words."""
    unsaid: tuple[str, ...] = ()
    """What is not known, in words."""
    shown: int = 0
    """So many brokers showed every denial."""
    fenced: bool = False
    """All brokers did."""
    ends: Mapping[Partition, Offset] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return not self.silent and not self.elsewhere

    @property
    def whole(self) -> bool:
        """Whether everything is known that was asked."""
        return self.answers and not self.unsaid

    @property
    def words(self) -> str:
        """For the step's evidence."""
        if self.elsewhere:
            return f"silent: its address leads to cluster {self.elsewhere}"
        if self.silent:
            return f"silent: {self.silent}"
        return f"seen in part: {'; '.join(self.unsaid)}" if self.unsaid else "seen"


def contradicted(said: Said, source: ClusterName, drained: Mapping[Partition, Offset]) -> Iterator[str]:
    """Why a source did not stand still since it was drained up to these offsets, by what it says."""
    if said.elsewhere:
        yield f"the address of {source} leads to cluster {said.elsewhere} now"
    yield from said.bare
    for partition, end in sorted(said.ends.items()):
        if end != drained[partition]:
            yield f"{partition} on {source}: log end {end}, drained up to {drained[partition]}"


def in_doubt(said: Said, source: ClusterName, mirror: MirrorName, *, held: bool, file: bool) -> str:
    """Why nobody knows what a source took that does not say everything; empty: that is known. What was not seen took
    nothing since the drain only if its fence stood all the time: it was `held` up then, and by its `file`, which is
    here, nobody has lifted it."""
    if said.whole or (held and file):
        return ""
    why = "the file that tells whether its fence stood is not here" if held else "could not be fenced"
    unseen = "does not answer" if said.silent else f"answers only in part ({'; '.join(said.unsaid)})"
    return (
        f"{source} {unseen} and {why}, so nobody knows what it took after it was drained. If it is lost: `mirrorbook "
        f"failover run {mirror} --mode unplanned` goes on from here, and says what may be missing"
    )
