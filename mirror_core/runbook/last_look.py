"""Probes the source before promotion: all brokers, at the same time; and the fence's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.last_look import Said
from mirror_core.decide.view import some
from mirror_core.kafka.acls_of_each import acls_of_each
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.acl import Acl
from mirror_core.model.clock import Moment
from mirror_core.model.errors import MirrorError, NotLetIn, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from mirror_core.sync.fence import bare

EVIDENCE: Final = "source before promotion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Said):
    began: Moment = field(default_factory=Moment, compare=False)


def look_again(link: Link, denials: Iterable[Acl], partitions: Collection[Partition]) -> Look:
    wanted, began = frozenset(denials), Moment()
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as source:
            found = source.metadata(()).cluster_id
            if found != link.mirror.source_id:
                return Look(elsewhere=found, began=began)
            return replace(_look(source, wanted, partitions), began=began)
    except NotLetIn as error:  # up, but denies us
        return Look(unsaid=(str(error),), began=began)
    except Unreachable as error:
        return Look(silent=str(error), began=began)
    except MirrorError as error:  # up, such as with a changed password
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
