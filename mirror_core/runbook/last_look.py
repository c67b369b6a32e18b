"""The last look at the source before promotion: what each of its brokers can still say, asked all at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.view import some
from mirror_core.kafka.acls_of_each import acls_of_each
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.acl import Acl
from mirror_core.model.clock import Moment
from mirror_core.model.errors import MirrorError, SignInFailed, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from mirror_core.sync.fence import bare

EVIDENCE: Final = "source before promotion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was said. A broker that hangs, or may not be asked, hides no other."""

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
    began: Moment = field(default_factory=Moment, compare=False)

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


def look_again(link: Link, denials: Iterable[Acl], partitions: Collection[Partition]) -> Look:
    """Ask each broker whether it shows these denials (none: it is not asked), then where these logs end."""
    wanted, began = frozenset(denials), Moment()
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as source:
            found = source.metadata(()).cluster_id
            if found != link.mirror.source_id:
                return Look(elsewhere=found, began=began)
            return replace(_look(source, wanted, partitions), began=began)
    except SignInFailed as error:  # it is there, and lets us not in
        return Look(unsaid=(str(error),), began=began)
    except Unreachable as error:
        return Look(silent=str(error), began=began)
    except MirrorError as error:  # it answers, and tells us nothing: a password that was changed
        return Look(unsaid=(str(error),), began=began)


def _look(source: ClusterClient, wanted: frozenset[Acl], partitions: Collection[Partition]) -> Look:
    unsaid, without, ends, shown = list[str](), list[str](), dict[Partition, Offset](), 0
    if wanted:
        try:
            held = acls_of_each(source)
        except MirrorError as error:
            unsaid.append(f"denials: {error}")
        else:
            unsaid += [f"broker {b}: {said}" for b, said in sorted(held.items()) if isinstance(said, MirrorError)]
            without = bare(source.name, held, wanted)
            shown = len(held) - len(unsaid) - len(without)
    fenced = shown > 0 and not unsaid and not without
    try:
        ends = known_offsets(source, partitions, Point.LOG_END, within_s=LIMITS.new_leader_s)
    except MirrorError as error:
        unsaid.append(f"log ends: {error}")
    else:
        if blind := sorted(set(partitions) - ends.keys()):
            unsaid.append(f"no log end of {some(blind)}")
    return Look(bare=tuple(without), unsaid=tuple(unsaid), shown=shown, fenced=fenced, ends=ends)


def contradicted(look: Look, name: str, drained: Mapping[Partition, Offset]) -> Iterator[str]:
    """Why a source did not stand still since it was drained up to these offsets, by what it says."""
    if look.elsewhere:
        yield f"the address of {name} leads to cluster {look.elsewhere} now"
    yield from look.bare
    for partition, end in sorted(look.ends.items()):
        if end != drained[partition]:
            yield f"{partition} on {name}: log end {end}, drained up to {drained[partition]}"
