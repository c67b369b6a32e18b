from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from mirror_core.decide.parity import NOTHING_COMPARED
from mirror_core.decide.proof import FURTHER, Basis, CertifiedRead, Since, advanced, basis, noted, undoubted
from mirror_core.decide.topics import cleans
from mirror_core.decide.verbs import Verb
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.epochs import epoch_ends
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.door import door
from mirror_core.mirrors.meanwhile import Meanwhile
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Indeterminate, LostOwnership, Refused, RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity import ALTERED, ParityRange, ParityResult, unreadable_on
from mirror_core.model.proof import Difference, Proof
from mirror_core.state.link import Link
from mirror_core.state.records import State

KEPT_S: Final = 30.0
"""Each save takes the control id, which ends a sync under way."""

Compare = Callable[[Sequence[ParityRange], Callable[[ParityResult], None]], ParityResult]


def known(link: Link, state: State, client: ClusterClient) -> Basis:
    """What is verified and still holds by the destination's current leaders."""
    proof = state.proofs.get(link.mirror.name)
    asked = {p: one.epoch for p, _, one in proof.rows()} if proof else {}
    found = _leaders(client, {p.topic for p in state.partitions.get(link.mirror.name, {})}, asked)
    return basis(proof, found.ends, found.epochs, found.ids)


def _still(link: Link, state: State, *, recent: Collection[Partition]) -> Basis:
    """Checks the source's leaders, too: what either side has lost since is compared again.

    Compacted topics are always in doubt, except `recent` partitions.
    """
    with ClusterClient(link.destination) as destination:
        before = known(link, state, destination)
        asked = {p: one.source_epoch for p, one in before.holding.items()}
        doubted = asked.keys() - set(recent)
        topics = {p.topic for p in doubted}
        here = known_offsets(destination, asked, Point.START, within_s=LIMITS.copied_leader_s)
        settings = describe_configs(destination, topics)
    try:
        with ClusterClient(link.source) as source:
            found = _leaders(source, {p.topic for p in before.epochs}, asked)
            there = known_offsets(source, asked, Point.START, within_s=LIMITS.copied_leader_s)
            settings_there = describe_configs(source, topics)
    except RemoteFault:
        return before
    both = (*settings.items(), *settings_there.items())
    by_key = {topic for topic, configs in both if cleans(configs.effective)}
    cleaned = frozenset(p for p in doubted if p.topic in by_key)
    copied = state.partitions.get(link.mirror.name, {})
    # Epochs prove nothing for another topic of the same name: it begins with the same ones.
    ends = {p: o for p, o in found.ends.items() if p in copied and found.ids[p.topic] == copied[p].source_topic_id}
    return replace(undoubted(before, Since(here, there, ends, cleaned)), source_epochs=found.epochs)


@dataclass(frozen=True, slots=True)
class _Led:
    ids: dict[str, str]
    epochs: dict[Partition, int]
    """Read before the ends."""
    ends: Mapping[Partition, Offset]


def _leaders(client: ClusterClient, topics: Collection[str], asked: Mapping[Partition, int]) -> _Led:
    epochs, led = dict[Partition, int](), dict[int, list[Partition]]()
    view = client.metadata(topics)
    for name, topic in view.topics.items():
        for number, leader in topic.partitions.items():
            if leader.broker >= 0:
                partition = Partition(name, number)
                epochs[partition] = leader.epoch
                if partition in asked:
                    led.setdefault(leader.broker, []).append(partition)
    ends = epoch_ends(client, asked, led).offsets if led else {}
    return _Led({name: topic.id for name, topic in view.topics.items()}, epochs, ends)


def compare_rest(
    link: Link,
    state: State,
    ranges: Sequence[ParityRange],
    compare: Compare,
    *,
    whole: bool,
    keep: Callable[[Proof], None],
    recent: Collection[Partition] = (),
    further: Sequence[int] = FURTHER,
) -> tuple[ParityResult, Proof, Basis]:
    """Returns the result, the new proof, and the basis before.

    Compacted topics are compared as a whole, except `recent` partitions. `lookbacks`: offsets to go back where ranges
    hold no record.
    """
    before = _still(link, state, recent=recent)
    rest = tuple(ranges) if whole else before.rest(ranges)

    def so_far(found: ParityResult) -> None:
        seen = [one for one in rest if found.sampled[one.partition] or found.proven[one.partition] > one.start]
        keep(advanced(link.mirror.name, before, seen, found, now_ms()))

    result = compare(rest, so_far)
    for back in () if whole else further:  # a range that is all gaps has records before it
        if result.reasons != (NOTHING_COMPARED,) or rest == before.rest(ranges, back):
            break
        rest = before.rest(ranges, back)
        result = compare(rest, so_far)
    return result, advanced(link.mirror.name, before, rest, result, now_ms()), before


def with_differences(state: State, mirror: MirrorName, result: ParityResult, read: Sequence[ParityRange] = ()) -> Proof:
    ids = {p.topic: status.destination_topic_id for p, status in state.partitions.get(mirror, {}).items()}
    proof = state.proofs.get(mirror) or Proof(mirror=mirror, topics=())
    certified = CertifiedRead(read, (ALTERED, unreadable_on(state.mirrors[mirror].destination)))
    return noted(proof, result, ids, now_ms(), certified)


def note(
    link: Link, state: State, result: ParityResult, say: Callable[[str], None], read: Sequence[ParityRange] = ()
) -> None:
    """Record differences if nobody holds the mirror. `state`: read before the comparison."""
    name = link.mirror.name

    def differing(now: State) -> tuple[Difference, ...]:
        return now.proofs[name].differs if name in now.proofs else ()

    if with_differences(state, name, result, read).differs == differing(state):
        return
    try:
        with door(link, Verb.PROVE, partial(_another, link)) as writer:
            found = with_differences(writer.state, name, result, read)
            if found.differs != differing(writer.state):
                writer.put(found)
    except (Indeterminate, Refused, LostOwnership, RemoteFault) as error:
        say(f"what differs is not kept: {error}")


def compare_and_remember(
    link: Link,
    state: State,
    ranges: Sequence[ParityRange],
    compare: Compare,
    *,
    whole: bool,
    say: Callable[[str], None],
) -> ParityResult:
    """Progress is recorded if nobody holds the mirror."""
    told, memory = list[str](), Memory(link, state.proofs.get(link.mirror.name))

    def keep(proof: Proof) -> None:
        try:
            memory.keep(proof)
        except (Refused, LostOwnership, RemoteFault) as error:
            if not told:
                say(f"how far it is proved is not kept: {error}")
            told.append(str(error))

    result, proof, before = compare_rest(link, state, ranges, compare, whole=whole, keep=seldom(keep, KEPT_S))
    if not whole and (earlier := before.of(ranges)):
        say(f"{earlier} records were proved before, and not compared again")
    keep(proof)
    return result


def seldom(keep: Callable[[Proof], None], every_s: float, due_at: float = -math.inf) -> Callable[[Proof], None]:
    """First at `due_at` (monotonic clock), then `interval_s` after each save."""

    def keep_if_due(proof: Proof) -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            keep(proof)
            due_at = time.monotonic() + every_s

    return keep_if_due


@dataclass(slots=True)
class Memory:
    """What others removed meanwhile is not restored, and their differences stay."""

    link: Link
    seen: Proof | None
    meanwhile: Meanwhile = field(default_factory=Meanwhile)

    def keep(self, proof: Proof) -> None:
        """Read as owner: nobody else can write now."""
        with door(self.link, Verb.PROVE, partial(_another, self.link)) as writer:
            now = writer.state.proofs.get(self.link.mirror.name)
            self.meanwhile = self.meanwhile.since(self.seen, now)
            self.seen = self.meanwhile.beside(proof, now)
            if now != self.seen:
                writer.put(self.seen)


def _another(link: Link, state: State) -> Iterator[str]:
    mirror = state.mirrors.get(link.mirror.name)
    if mirror is not None and mirror.producer_id != link.mirror.producer_id:
        yield "applications have come home, or the mirror was made anew, since this comparison began: compare again"
