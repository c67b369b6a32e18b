from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import replace

from mirror_core.decide.promotion import STAGED
from mirror_core.kafka.acls import AuthorizerOff, absent_on_every_broker, delete_acls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import LIFTABLE, Acl, AclPurpose, LedgerEntry, Resource
from mirror_core.model.drift import DriftRow
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import both_ways
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.acls import EVERYBODY
from mirror_core.rights.provenance import forged
from mirror_core.rights.withdrawal import judged_again, locked_out
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.state.records import Forget, State
from mirror_core.state.topic import read_state
from mirror_core.sync.access_rows import silent
from mirror_core.sync.ledger import demoted_there, entered, lifted, take_away_unshared, wanted_there
from mirror_core.sync.principals import own_principals


def lift(
    link: Link, log: Log, client: ClusterClient, topics: Collection[str], *, ask_source: bool
) -> tuple[frozenset[Acl], list[DriftRow]]:
    """Remove earlier demotions; return them, and rows for what could not be read."""
    demoted = demoted_there(log.state, link.mirror.name, client.name, topics)
    elsewhere, rows = _demotions_of_the_source(link, topics) if ask_source else (set[Acl](), list[DriftRow]())
    elsewhere -= wanted_there(log.state, client.name, demoted)
    delete_acls(client, elsewhere)
    absent_on_every_broker(client, elsewhere)
    take_away_unshared(log, client, demoted)
    return frozenset(elsewhere | {e.acl for e in demoted}) - wanted_there(log.state, client.name), rows


def forget_lifted(link: Link, log: Log, there: State) -> None:
    """Take over what the reverse mirror's promotion has lifted.

    An ACL that equals a forgotten one is an administrator's, or of a withdrawn right, and is copied.
    """
    ours, source = both_ways(link.mirror.name), link.source.name
    there_too = (e for e in there.ledger.values() if e.mirror in ours and e.cluster == source)
    standing = {e.acl for e in there_too if e.purpose is AclPurpose.DEMOTED}
    gone = [e for e in entered(log, link.mirror.name, source, AclPurpose.DEMOTED) if e.acl not in standing]
    wanted = wanted_there(there, source)
    over = {one.entry: one for one in lifted(log.state, (entry for entry in gone if entry.acl not in wanted))}
    for one in there.lifted.values():
        if one.entry.mirror in ours and _turned(link, one.entry) and not forged(one.entry):
            entry = replace(one.entry, mirror=link.mirror.name)
            over[entry] = replace(one, entry=entry)
    known = set(log.state.lifted.values())
    news = [one for one in over.values() if one not in known]
    if gone or news:
        log.put(*(Forget(entry) for entry in gone), *news)


def _turned(link: Link, entry: LedgerEntry) -> bool:
    """Not transactional ids: each run may have others."""
    if entry.purpose is AclPurpose.DEMOTED:
        return entry.cluster == link.mirror.source
    of_topics = entry.acl.resource is Resource.TOPIC and entry.acl.principal == EVERYBODY
    return of_topics and entry.cluster == link.mirror.destination


def note_withdrawn(link: Link, forward: State, log: Log, source: ClusterClient) -> None:
    """Record rights withdrawn on the source since promotion granted them.

    For a mirror that begins where applications are: no sync has seen it. `forward`: the other direction's state.
    """
    held = describe_acls(source)
    if isinstance(held, AuthorizerOff):
        return
    there = [e for e in forward.ledger.values() if e.cluster == source.name]
    given = {e.acl for e in there if e.mirror in both_ways(link.mirror.name) and e.purpose in STAGED}
    theirs = held.entries - {e.acl for e in there if e.purpose in LIFTABLE}
    ours = (e for e in log.state.ledger_of(link.mirror.name) if e.cluster == link.destination.name)
    if changes := list(judged_again(ours, theirs, given - theirs)):
        log.put(*changes)


def forget_revoked(link: Link, log: Log, destination: ClusterClient) -> None:
    """For a recreated mirror: promotion must not grant rights removed since, even before a sync."""
    held = describe_acls(destination)
    if isinstance(held, AuthorizerOff):
        return
    ours = (e for e in log.state.ledger_of(link.mirror.name) if e.cluster == destination.name and e.purpose in STAGED)
    if gone := [Forget(e) for e in ours if e.purpose is AclPurpose.STAGED or e.acl not in held.entries]:
        log.put(*gone)


def stays(
    link: Link, state: State, held: Set[Acl], given: Collection[Acl], topics: Collection[str]
) -> Iterator[tuple[Acl, str]]:
    client, ours = link.destination, both_ways(link.mirror.name)
    there = [e for e in state.ledger.values() if e.cluster == client.name and e.acl in held]
    withdrawn = {e.acl for e in there if e.mirror in ours and e.purpose is AclPurpose.WITHDRAWN}
    others = {e.acl: e.mirror for e in there if e.mirror not in ours}
    wanted = {e.acl for e in there if e.mirror in ours} - withdrawn - others.keys()
    expected = wanted | set(given)
    for acl in sorted(withdrawn | set(locked_out(held - expected, given, topics))):
        if acl.principal in own_principals(link):
            continue
        if acl in withdrawn:
            why = f"{link.source.name} has withdrawn the right that it is about"
        elif acl in others:
            why = f"it is mirror {others[acl]}'s"
        else:
            why = "it is not the mirror's"
        remove = acl_command(acl, bootstrap=client.control["bootstrap.servers"], remove=True)
        yield acl, f"{acl} stays at promotion, since {why}. If it should not: {remove}"


def _demotions_of_the_source(link: Link, topics: Collection[str]) -> tuple[set[Acl], list[DriftRow]]:
    try:
        state = read_state(link.source, timeout_s=LIMITS.silent_source_s)
    except MirrorError as error:
        # Promotion must not need a living source. What is in our own ledger has been lifted already.
        reason = f"denials remembered on cluster {link.source.name} could not be looked up: {error}"
        return set(), [silent(link.source.name, reason)]
    # A forged entry would remove whatever its author likes.
    found = demoted_there(state, link.mirror.name, link.destination.name, topics)
    return {e.acl for e in found if not forged(e, own_principals(link))}, []
