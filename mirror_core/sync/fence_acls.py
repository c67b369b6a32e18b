"""The fence by ACLs.

CreateAcls returns up to some hundred milliseconds before brokers enforce an entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.fence_limits import find_stray_denials, format_stray_denials, list_entries_on_cluster
from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    BrokerAcls,
    describe_acls,
    describe_acls_on_each_broker,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import (
    OffsetPoint,
    find_offline_partitions,
    list_known_offsets,
    list_offset_points,
    list_offsets,
)
from mirror_core.kafka.transactions import OpenTransaction, list_open_transactions
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, LiftedDenial, Resource
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.run import RunKind
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.rights.acl_rules import EVERYBODY, build_denial
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.sync.acl_ledger import delete_unshared_entries, list_entries, record_and_create
from mirror_core.sync.principals import list_own_principals

_log = get_logger(__name__)

STILLNESS_PAUSE_S: Final = 0.1
STILLNESS_PAUSE_WITHOUT_ACLS_S: Final = 2.0
"""Longer, since still log ends are the only evidence then."""
ANY_TRANSACTIONAL_ID: Final = "*"
MIRRORBOOK_ID_PREFIX: Final = "mirrorbook."
TRANSACTION_WAIT_S: Final = 120.0
"""Twice the default transaction timeout."""
WAIT_REPORT_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFence:
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
    """A client may still write. The denials stay until resume or abort."""


def apply_fence(
    link: MirrorLink,
    log: JournalLog,
    client: ClusterClient,
    topics: Collection[str],
    partitions: Collection[Partition],
    *,
    transaction_wait_s: float = TRANSACTION_WAIT_S,
    before_deny: Callable[[Collection[Acl]], None] = lambda acls: None,
    close_cluster: Callable[[Collection[str]], bool] = lambda topics: False,
    report_wait: Callable[[str], None] = lambda line: None,
) -> VerifiedFence:
    """Fences these topics of the source, and verifies that these partitions stand still. May be repeated.

    Also topics that the source has lost or nobody drains: what is promoted must not be written there. `close_cluster`,
    called where ACLs do not rule, returns whether it closed the topics.
    """
    transactions = list_open_transactions(client, topics)
    denials = deny_writes(link, log, client, topics, list_deniable_ids(transactions), before_deny=before_deny)
    if isinstance(denials, AuthorizerOff):
        closed_by_command = close_cluster(topics)
        ends = wait_for_stillness(
            client,
            topics,
            partitions,
            pause_s=STILLNESS_PAUSE_WITHOUT_ACLS_S,
            transaction_wait_s=transaction_wait_s,
            report_wait=report_wait,
        )
        return VerifiedFence(
            authorizer=False, command=closed_by_command, still_s=STILLNESS_PAUSE_WITHOUT_ACLS_S, ends=ends
        )
    _log.info("%d denials shown by every broker; waiting until nothing moves", len(denials), cluster=client.name)
    ends = wait_for_stillness(
        client,
        topics,
        partitions,
        pause_s=STILLNESS_PAUSE_S,
        transaction_wait_s=transaction_wait_s,
        report_wait=report_wait,
    )
    return VerifiedFence(
        authorizer=True,
        still_s=STILLNESS_PAUSE_S,
        ends=ends,
        denials=tuple(sorted(denials)),
        brokers=client.brokers(),
        transactions=tuple(t.id for t in _list_blocking_transactions(client, transactions, partitions)),
    )


def deny_writes(
    link: MirrorLink,
    log: JournalLog,
    client: ClusterClient,
    topics: Iterable[str],
    transactional_ids: Iterable[str] = (),
    *,
    before_deny: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> frozenset[Acl] | AuthorizerOff:
    """Denies everybody; seen on every broker. `before_deny` gets all entries that will be ours; if it raises, nothing
    is denied.
    """
    current_acls = describe_acls(client)
    if isinstance(current_acls, AuthorizerOff):
        return current_acls
    wanted = frozenset(build_denials(topics, transactional_ids))
    # An equal entry made by others is as good, and must stay when our fence is lifted. Another mirror's is
    # ours, too (a transactional id may write topics of both): it stays until neither needs it.
    known_denials = {
        e.acl for e in log.state.ledger.values() if e.cluster == client.name and e.purpose is AclPurpose.FENCE
    }
    foreign_denials = (wanted & current_acls.entries) - known_denials
    before_deny({e.acl for e in list_fence_entries(link.mirror, log, client)} | (wanted - foreign_denials))
    record_and_create(log, link.mirror.name, client, wanted - foreign_denials, AclPurpose.FENCE)
    wait_until_acls_present(client, wanted)
    return wanted


def list_deniable_ids(transactions: Iterable[OpenTransaction]) -> list[str]:
    """Without `*`, which would deny all ids, and ids like those of our journal, which anybody may have chosen.

    These are waited for, and cannot begin on denied topics.
    """
    return [t.id for t in transactions if is_deniable_id(t.id)]


def is_deniable_id(transactional_id: str) -> bool:
    return transactional_id != ANY_TRANSACTIONAL_ID and not transactional_id.startswith(MIRRORBOOK_ID_PREFIX)


def build_denials(topics: Iterable[str], transactional_ids: Iterable[str] = ()) -> Iterator[Acl]:
    yield from (build_denial(topic) for topic in topics)
    yield from (build_denial(id_, resource=Resource.TRANSACTIONAL_ID) for id_ in transactional_ids)


def list_unfenced_brokers(client: ClusterClient, denials: Iterable[Acl]) -> list[str]:
    """Brokers that answer and lack denials. A broker that is down takes no writes."""
    acls_by_broker = describe_acls_on_each_broker(client)
    for broker_acls in acls_by_broker.values():
        if isinstance(broker_acls, MirrorError) and not isinstance(broker_acls, Unreachable):
            raise broker_acls
    return format_missing_denials(client.name, acls_by_broker, denials)


def format_missing_denials(
    cluster: ClusterName, acls_by_broker: Mapping[int, BrokerAcls | AuthorizerOff | MirrorError], denials: Iterable[Acl]
) -> list[str]:
    wanted, problems = frozenset(denials), list[str]()
    for broker, broker_acls in sorted(acls_by_broker.items()):
        if isinstance(broker_acls, MirrorError):
            continue
        missing = wanted if isinstance(broker_acls, AuthorizerOff) else wanted - broker_acls.entries
        if missing:
            problems.append(
                f"cluster {cluster}, broker {broker}: {format_count(len(missing), 'denial')} gone,"
                f" such as {min(missing)}"
            )
    return problems


def to_fence_entries(mirror: Mirror, cluster: ClusterName, acls: Iterable[Acl]) -> list[LedgerEntry]:
    return [LedgerEntry(mirror=mirror.name, cluster=cluster, acl=acl, purpose=AclPurpose.FENCE) for acl in acls]


def list_fence_entries(mirror: Mirror, log: JournalLog, client: ClusterClient) -> tuple[LedgerEntry, ...]:
    return tuple(
        e for e in list_entries(log, mirror.name, client.name, AclPurpose.FENCE) if e.acl.principal == EVERYBODY
    )


def lift_fence(mirror: Mirror, log: JournalLog, client: ClusterClient) -> None:
    """Returns when no broker shows one. May be repeated. Denials that another mirror's fence needs, too, stay."""
    delete_unshared_entries(log, client, list_fence_entries(mirror, log, client))


def lift_all_denials(mirror: Mirror, log: JournalLog, client: ClusterClient) -> None:
    """As `lift_fence`, with the denials against old copying tasks."""
    delete_unshared_entries(log, client, list_entries(log, mirror.name, client.name, AclPurpose.FENCE))


def check_stillness(client: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """Log ends, if none moves and no transaction is open; else NotFenced. All that can be verified of a fence by
    command.
    """
    before = list_known_offsets(client, partitions, OffsetPoint.LOG_END)
    time.sleep(STILLNESS_PAUSE_WITHOUT_ACLS_S)
    ends = list_known_offsets(client, before, OffsetPoint.LOG_END)
    stable_ends = list_known_offsets(client, before, OffsetPoint.STABLE_END)
    if moving := sorted(p for p in before if not before[p] == ends.get(p) == stable_ends.get(p)):
        listed = ", ".join(map(str, moving[:5])) + (f" and {len(moving) - 5} more" if len(moving) > 5 else "")
        raise NotFenced(
            f"cluster {client.name}: fence_command has ended well, and somebody writes there all the same, or a "
            f"transaction is open: {listed}. Find out who is let in"
        )
    return ends


def can_block_quiescence(
    transaction: OpenTransaction, partitions: Collection[Partition], offline: Collection[Partition] = ()
) -> bool:
    """Whether these partitions or group offsets may change when the transaction ends.

    `offline`: partitions of `__consumer_offsets` without a leader, which nobody can read. A decided transaction may
    wait days for markers on partitions without a leader; an undecided one may still change all its group offsets.
    """
    has_online = not (transaction.partitions | transaction.offsets_partitions) <= set(offline)
    return not transaction.is_decided or has_online or not transaction.partitions.isdisjoint(partitions)


def _list_blocking_transactions(
    client: ClusterClient, transactions: Collection[OpenTransaction], partitions: Collection[Partition]
) -> list[OpenTransaction]:
    pending = {
        p
        for t in transactions
        if t.is_decided and t.partitions.isdisjoint(partitions)
        for p in t.partitions | t.offsets_partitions
    }
    offline = find_offline_partitions(client, pending) if pending else frozenset()
    return [t for t in transactions if can_block_quiescence(t, partitions, offline)]


def _format_transaction(transaction: OpenTransaction) -> str:
    timeout_text = f"its coordinator aborts it after {transaction.timeout_s:.0f} s"
    end_text = "its markers are missing" if transaction.is_decided else timeout_text
    return f"transaction {transaction.id!r} is {transaction.state} ({end_text})"


def wait_for_stillness(
    client: ClusterClient,
    topics: Collection[str],
    partitions: Collection[Partition],
    *,
    pause_s: float,
    transaction_wait_s: float,
    report_wait: Callable[[str], None] = lambda line: None,
) -> dict[Partition, Offset]:
    """Until log ends do not move within `pause_s`, are replicated, and no transaction is open.

    NotFenced after `transaction_wait_s`, naming what still moves. `report_wait`, called every 5 s, may end the wait by
    raising.
    """
    began = time.monotonic()
    deadline, reported_at = began + transaction_wait_s, began
    while True:
        problems = [
            _format_transaction(t)
            for t in _list_blocking_transactions(client, list_open_transactions(client, topics), partitions)
        ]
        before = list_offsets(client, partitions, OffsetPoint.LOG_END)
        time.sleep(pause_s)
        points = list_offset_points(
            client, partitions, [OffsetPoint.LOG_END, OffsetPoint.STABLE_END, OffsetPoint.HIGH_WATERMARK]
        )
        ends, stable_ends, high_watermarks = points.values()
        for p in sorted(partitions):
            if before[p] != ends[p]:
                problems.append(f"{p} grew from {before[p]} to {ends[p]} within {pause_s} s")
            elif not stable_ends[p] == high_watermarks[p] == ends[p]:
                problems.append(
                    f"{p}: log end {ends[p]}, high watermark {high_watermarks[p]}, last stable offset {stable_ends[p]}"
                )
        if not problems:
            return ends
        now = time.monotonic()
        if now - reported_at >= WAIT_REPORT_INTERVAL_S:
            reported_at = now
            # A transaction is named before the partitions that it holds up.
            report_wait(f"waiting, {now - began:.0f} s of at most {transaction_wait_s:.0f} s: {problems[0]}")
        _log.debug("does not stand still: %s", "; ".join(problems[:5]), cluster=client.name)
        if now > deadline:
            unlisted = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise NotFenced(
                f"cluster {client.name} does not stand still after {transaction_wait_s:.0f} s:"
                f" {'; '.join(problems[:5])}{unlisted}. End these writers or transactions and resume the run, or"
                " abort it"
            )


def describe_stray_denials(link: MirrorLink, state: State, silent: Mapping[ClusterName, str]) -> str:
    name, texts = link.mirror.name, list[str]()
    if not any(record.entry.mirror == name for record in state.lifted_entries.values()):
        return ""
    for side in (link.source, link.destination):
        try:
            if reason := silent.get(side.name):
                raise Indeterminate(reason)
            texts.append(format_stray_denials(_find_on_cluster(link, state, side), link.mirror, side.name))
        except MirrorError as error:
            texts.append(f"unknown on {side.name}: {error}")
    return "; ".join(filter(None, texts))


def _find_on_cluster(link: MirrorLink, state: State, side: ClusterConfig) -> tuple[LiftedDenial, ...]:
    """Confirmed by state before and after: a run may begin or end."""
    recorded_id = link.mirror.source_id if side.name == link.mirror.source else link.mirror.destination_id
    with ClusterClient(side, timeout_s=TIMEOUTS.describe_response_s) as client:
        if (current_id := client.metadata(()).cluster_id) != recorded_id:
            raise BadRequest(
                f"cluster {side.name} is {current_id} now, and was {recorded_id} when mirror {link.mirror.name} was"
                " made"
            )
        current_acls = describe_acls(client)
    current_entries = current_acls.entries if isinstance(current_acls, BrokerAcls) else frozenset()
    before = find_stray_denials_on(link, state, side.name, current_entries)
    after = find_stray_denials_on(link, read_state(link.destination), side.name, current_entries) if before else ()
    return tuple(record for record in before if record in after)


def find_stray_denials_on(
    link: MirrorLink, state: State, cluster: ClusterName, current_acls: Set[Acl]
) -> tuple[LiftedDenial, ...]:
    entries = list_entries_on_cluster(link.mirror, cluster, state.ledger.values(), state.mirrors)
    strays = find_stray_denials(
        link.mirror, cluster, current_acls, state.lifted_entries.values(), entries, list_own_principals(link)
    )
    run = state.active_run(link.mirror.name)
    if cluster != link.mirror.destination or run is None or run.plan.kind is not RunKind.FAILBACK:
        return strays
    # A failback's last step demotes here by the reverse mirror's ledger, which is not at hand.
    return tuple(record for record in strays if record.entry.purpose is not AclPurpose.DEMOTED)
