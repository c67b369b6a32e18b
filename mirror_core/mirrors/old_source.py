"""The old source's fence: observation, late writes, and denials while a run holds the mirror."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.slipped import newly_slipped, shown_slip, slipped_in, unknown_ends
from mirror_core.decide.standing import Judgement, Shown
from mirror_core.decide.view import some
from mirror_core.kafka.acls import Acls, AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.transactions import open_transactions
from mirror_core.model.acl import Acl, AclPurpose, Resource
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.ruling import Barred
from mirror_core.model.standing import Debt, Owed
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.sync.fence import STILL_S, deniable, denials_of, deny, undenied

STILL_TRIES: Final = 10


def shown(link: Link, state: State, source: ClusterClient, debt: Debt) -> Shown:
    held = describe_acls(source)
    if debt.owed is Owed.UNFENCE:
        return Shown(barred=_barred(link, held))
    # Denials first: a broker that hung may take writes until it has learned of them.
    barred = _barred(link, held)
    bare = undenied(source, denials(link, state, debt)) if barred is Barred.BY_DENIALS else []
    partitions = state.partitions.get(link.mirror.name, {})
    ends = known_offsets(source, partitions, Point.LOG_END)
    written = _written(link, source, debt, ends)
    authorizer = link.source.ruling.authorizer
    return Shown(barred=barred, authorizer=authorizer, bare=tuple(bare), ends=ends, written=written)


def _barred(link: Link, held: Acls | AuthorizerOff) -> Barred:
    return link.source.ruling.barred(denials=isinstance(held, Acls))


def _written(
    link: Link, source: ClusterClient, debt: Debt, ends: dict[Partition, Offset]
) -> dict[Partition, tuple[Offset, Offset]]:
    """Records behind the recorded ends. Transactions that end there append markers only."""
    recorded = debt.ends.by_partition()
    grown = {p: recorded[p] for p, end in ends.items() if end > recorded.get(p, end)}
    if not grown:
        return {}
    stable = known_offsets(source, grown, Point.STABLE_END)
    begins = known_offsets(source, grown, Point.START)  # retention may have passed the recorded end
    found: dict[Partition, tuple[Offset, Offset]] = {}
    with LogReader(link.source, timeout_s=LIMITS.old_source_s) as reader:
        for partition, recorded_end in grown.items():
            start = max(recorded_end, begins.get(partition, recorded_end))
            until = min(stable.get(partition, start), ends[partition])
            first = next(reader.batches(partition, start, until), None) if until > start else None
            if first is not None:
                found[partition] = (max(start, Offset(first[0].base_offset)), ends[partition])
    return found


def denials(link: Link, state: State, debt: Debt) -> set[Acl]:
    """The ledger's denials, and those that others had made before."""
    return entered_denials(link, state) | set(denials_of({p.topic for p in debt.ends.by_partition()}))


def entered_denials(link: Link, state: State) -> set[Acl]:
    """From names only: an entry of the fence has no other use."""
    ours = [
        e.acl
        for e in state.ledger_of(link.mirror.name)
        if e.cluster == link.source.name and e.purpose is AclPurpose.FENCE
    ]
    topics = {acl.name for acl in ours if acl.resource is Resource.TOPIC}
    ids = {acl.name for acl in ours if acl.resource is Resource.TRANSACTIONAL_ID}
    return set(denials_of(topics, ids))


def keep_out(
    link: Link,
    log: Log,
    source: ClusterClient,
    topics: Collection[str],
    ids: Collection[str] = (),
    *,
    before: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> frozenset[Acl] | AuthorizerOff:
    """Deny all writers of these topics, and transactions that are open on them."""
    denied = deny(link, log, source, topics, ids, before=before)
    if isinstance(denied, AuthorizerOff):
        return denied
    # Topics first: transactions that joined a partition before could still be committed by their producers.
    going = set(deniable(open_transactions(source, topics))) - set(ids)
    return deny(link, log, source, topics, going, before=before) if going else denied


def still(source: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """A super user's logs never stand still."""
    wanted = list(partitions)
    ends = known_offsets(source, wanted, Point.LOG_END)
    for _ in range(STILL_TRIES):
        time.sleep(STILL_S)
        before, ends = ends, known_offsets(source, wanted, Point.LOG_END)
        if before == ends:
            break
    return ends


def called_for(link: Link, state: State, now: Debt, before: Debt) -> Iterator[str]:
    found = newly_slipped(now, before, state.partitions.get(link.mirror.name, {}))
    if found:
        yield (
            f"cluster {now.cluster} has what {link.destination.name} never had, written before it fell silent, or "
            f"after it came back and before it was fenced: {shown_slip(found, state.sightings.get(link.mirror.name))}"
        )


def with_places(found: Judgement, debt: Debt, statuses: Mapping[Partition, PartitionStatus]) -> Judgement:
    unknown = unknown_ends(debt, statuses)
    lines = (f"{debt.cluster}: the log end of {some(unknown)} is not known yet, nor what was accepted there",)
    return replace(found, slipped=slipped_in(debt, statuses), lines=(*found.lines, *lines) if unknown else found.lines)
