"""The fence by ACLs: nobody can write the mirror's topics on a cluster, and that is verified.

CreateAcls returns up to some hundred milliseconds before brokers enforce an entry, and a denial does not end
transactions that have joined a partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.acls import Acls, AuthorizerOff, describe_acls, present_on_every_broker
from mirror_core.kafka.acls_of_each import acls_of_each
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.leaderless import leaderless
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets, list_points
from mirror_core.kafka.transactions import OpenTransaction, open_transactions
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Resource
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.rights.acls import EVERYBODY, denial
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.sync.ledger import enter_and_put_up, entered, take_away_unshared

_log = logger(__name__)

STILL_S: Final = 0.1
"""Between two reads of log ends."""
STILL_UNFENCED_S: Final = 2.0
"""Longer, since still log ends are the only evidence then."""
EVERY_ID: Final = "*"
RESOLVE_S: Final = 120.0
"""Twice the default transaction timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    authorizer: bool
    still_s: float
    ends: Mapping[Partition, Offset]
    command: bool = False
    denials: tuple[Acl, ...] = ()
    """Shown by each of `brokers`."""
    brokers: tuple[int, ...] = ()
    transactions: tuple[str, ...] = ()
    """Were open, and were waited for."""


class NotFenced(MirrorError):
    """Somebody may still write. The denials stay until resume or abort."""


def raise_fence(
    link: Link,
    log: Log,
    client: ClusterClient,
    topics: Collection[str],
    partitions: Collection[Partition],
    *,
    resolve_s: float = RESOLVE_S,
    before: Callable[[Collection[Acl]], None] = lambda acls: None,
    shut: Callable[[Collection[str]], bool] = lambda topics: False,
) -> Fence:
    """Fence these topics of the source, and verify that these partitions stand still. May be repeated.

    Also topics that the source has lost or nobody drains: what is promoted must not be written there. `close_cluster`,
    called where ACLs do not rule, returns whether it closed the topics.
    """
    transactions = open_transactions(client, topics)
    denials = deny(link, log, client, topics, deniable(transactions), before=before)
    if isinstance(denials, AuthorizerOff):
        command = shut(topics)
        ends = await_stillness(client, topics, partitions, pause_s=STILL_UNFENCED_S, resolve_s=resolve_s)
        return Fence(authorizer=False, command=command, still_s=STILL_UNFENCED_S, ends=ends)
    _log.info("%d denials shown by every broker; waiting until nothing moves", len(denials), cluster=client.name)
    ends = await_stillness(client, topics, partitions, pause_s=STILL_S, resolve_s=resolve_s)
    return Fence(
        authorizer=True,
        still_s=STILL_S,
        ends=ends,
        denials=tuple(sorted(denials)),
        brokers=client.brokers(),
        transactions=tuple(t.id for t in _waited_for(client, transactions, partitions)),
    )


def deny(
    link: Link,
    log: Log,
    client: ClusterClient,
    topics: Iterable[str],
    transactional_ids: Iterable[str] = (),
    *,
    before: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> frozenset[Acl] | AuthorizerOff:
    """Deny everybody these topics and transactions; seen on every broker.

    `before_deny` gets all entries that will be ours; if it raises, nothing is denied.
    """
    seen = describe_acls(client)
    if isinstance(seen, AuthorizerOff):
        return seen
    wanted = frozenset(denials_of(topics, transactional_ids))
    # An equal entry made by others is as good, and must stay when our fence is lifted. Another mirror's is
    # ours, too (a transactional id may write topics of both): it stays until neither needs it.
    fences = {e.acl for e in log.state.ledger.values() if e.cluster == client.name and e.purpose is AclPurpose.FENCE}
    foreign = (wanted & seen.entries) - fences
    before({e.acl for e in standing(link.mirror, log, client)} | (wanted - foreign))
    enter_and_put_up(log, link.mirror.name, client, wanted - foreign, AclPurpose.FENCE)
    present_on_every_broker(client, wanted)
    return wanted


def deniable(transactions: Iterable[OpenTransaction]) -> list[str]:
    """Without `*`, which would deny all ids: it is waited for, and cannot begin on denied topics."""
    return [t.id for t in transactions if t.id != EVERY_ID]


def denials_of(topics: Iterable[str], transactional_ids: Iterable[str] = ()) -> Iterator[Acl]:
    yield from (denial(topic) for topic in topics)
    yield from (denial(id_, resource=Resource.TRANSACTIONAL_ID) for id_ in transactional_ids)


def undenied(client: ClusterClient, denials: Iterable[Acl]) -> list[str]:
    """Brokers that answer and lack denials. A broker that is down takes no writes."""
    found = acls_of_each(client)
    for held in found.values():
        if isinstance(held, MirrorError) and not isinstance(held, Unreachable):
            raise held
    return bare(client.name, found, denials)


def bare(
    cluster: ClusterName, found: Mapping[int, Acls | AuthorizerOff | MirrorError], denials: Iterable[Acl]
) -> list[str]:
    wanted, words = frozenset(denials), list[str]()
    for broker, held in sorted(found.items()):
        if isinstance(held, MirrorError):
            continue
        missing = wanted if isinstance(held, AuthorizerOff) else wanted - held.entries
        if missing:
            words.append(f"cluster {cluster}, broker {broker}: {len(missing)} denial(s) gone, such as {min(missing)}")
    return words


def intended(mirror: Mirror, cluster: ClusterName, acls: Iterable[Acl]) -> list[LedgerEntry]:
    return [LedgerEntry(mirror=mirror.name, cluster=cluster, acl=acl, purpose=AclPurpose.FENCE) for acl in acls]


def standing(mirror: Mirror, log: Log, client: ClusterClient) -> tuple[LedgerEntry, ...]:
    return tuple(e for e in entered(log, mirror.name, client.name, AclPurpose.FENCE) if e.acl.principal == EVERYBODY)


def lift_fence(mirror: Mirror, log: Log, client: ClusterClient) -> None:
    """Delete this mirror's denials; returns when no broker shows one. May be repeated.

    Denials that another mirror's fence needs, too, stay.
    """
    take_away_unshared(log, client, standing(mirror, log, client))


def lift_denials(mirror: Mirror, log: Log, client: ClusterClient) -> None:
    """As `lift_fence`, with the denials against old copying tasks."""
    take_away_unshared(log, client, entered(log, mirror.name, client.name, AclPurpose.FENCE))


def seen_still(client: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """Return log ends if none moves and no transaction is open, else raise NotFenced.

    Nothing else can be verified of a fence by command.
    """
    before = known_offsets(client, partitions, Point.LOG_END)
    time.sleep(STILL_UNFENCED_S)
    ends = known_offsets(client, before, Point.LOG_END)
    stable = known_offsets(client, before, Point.STABLE_END)
    if moving := sorted(p for p in before if not before[p] == ends.get(p) == stable.get(p)):
        listed = ", ".join(map(str, moving[:5])) + (f" and {len(moving) - 5} more" if len(moving) > 5 else "")
        raise NotFenced(
            f"cluster {client.name}: fence_command has ended well, and somebody writes there all the same, or a "
            f"transaction is open: {listed}. Find out who is let in"
        )
    return ends


def holds_up(
    transaction: OpenTransaction, partitions: Collection[Partition], unled: Collection[Partition] = ()
) -> bool:
    """Whether these partitions or group offsets may change when the transaction ends.

    `offline`: partitions of `__consumer_offsets` without a leader, which nobody can read. A decided transaction may
    wait for days for markers on partitions without a leader; an undecided one may still change all its group offsets.
    """
    led = not (transaction.partitions | transaction.groups) <= set(unled)
    return not transaction.decided or led or not transaction.partitions.isdisjoint(partitions)


def _waited_for(
    client: ClusterClient, found: Collection[OpenTransaction], partitions: Collection[Partition]
) -> list[OpenTransaction]:
    pending = {p for t in found if t.decided and t.partitions.isdisjoint(partitions) for p in t.partitions | t.groups}
    unled = leaderless(client, pending) if pending else frozenset()
    return [t for t in found if holds_up(t, partitions, unled)]


def _in_words(transaction: OpenTransaction) -> str:
    aborted = f"its coordinator aborts it after {transaction.timeout_s:.0f} s"
    ends = "its markers are missing" if transaction.decided else aborted
    return f"transaction {transaction.id!r} is {transaction.state} ({ends})"


def await_stillness(
    client: ClusterClient,
    topics: Collection[str],
    partitions: Collection[Partition],
    *,
    pause_s: float,
    resolve_s: float,
) -> dict[Partition, Offset]:
    """Wait until log ends do not move within `pause_s`, are replicated, and no transaction is open.

    NotFenced after `transaction_wait_s`, naming what still moves.
    """
    deadline = time.monotonic() + resolve_s
    while True:
        problems = [_in_words(t) for t in _waited_for(client, open_transactions(client, topics), partitions)]
        before = list_offsets(client, partitions, Point.LOG_END)
        time.sleep(pause_s)
        points = list_points(client, partitions, [Point.LOG_END, Point.STABLE_END, Point.HIGH_WATERMARK])
        ends, stable, high = points.values()
        for p in sorted(partitions):
            if before[p] != ends[p]:
                problems.append(f"{p} grew from {before[p]} to {ends[p]} within {pause_s} s")
            elif not stable[p] == high[p] == ends[p]:
                problems.append(f"{p}: log end {ends[p]}, high watermark {high[p]}, last stable offset {stable[p]}")
        if not problems:
            return ends
        _log.debug("does not stand still: %s", "; ".join(problems[:5]), cluster=client.name)
        if time.monotonic() > deadline:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise NotFenced(
                f"cluster {client.name} does not stand still after {resolve_s:.0f} s: {'; '.join(problems[:5])}{more}. "
                "End these writers or transactions and resume the run, or abort it"
            )
