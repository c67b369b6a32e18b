"""ACLs on mirror topics: staged while mirrored, granted at promotion, denied at demotion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from mirror_core.decide.access import AclPlan, Scope, plan_acls
from mirror_core.decide.filters import group_filter
from mirror_core.decide.promotion import Promotion, forgery, narrowing, promotion, warnings
from mirror_core.kafka.acls import (
    Acls,
    AuthorizerOff,
    create_acls,
    describe_acls,
    present_on_every_broker,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.rights import cluster_rights
from mirror_core.model.acl import LIFTABLE, Acl, AclPurpose, Operation, Permission, Resource
from mirror_core.model.drift import Action, DriftRow
from mirror_core.model.errors import MirrorError, MissingPermission, Refused
from mirror_core.model.names import DRILL, ClusterName, both_ways
from mirror_core.model.ruling import Authorizer
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.acls import demotions, is_wide, may_change, undemotable
from mirror_core.rights.provenance import believed
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.state.records import Forget, State
from mirror_core.state.topic import read_state
from mirror_core.sync.access_rows import forgery_there, off, row, rows_of, unknown
from mirror_core.sync.final_settings import FinalSettings
from mirror_core.sync.ledger import enter_and_put_up, entered, forget_debt, remember, take_away, take_away_unshared
from mirror_core.sync.lifting import lift, stays
from mirror_core.sync.principals import doubtful_principals, guards, own_principals
from mirror_core.sync.silencing import silence_copiers
from mirror_core.sync.thirds import thirds


def sync_acls(
    link: Link,
    state: State,
    log: Log | None,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    groups: Collection[str],
) -> list[DriftRow]:
    """Without a journal nothing is changed."""
    theirs, ours = describe_acls(source), describe_acls(destination)
    if isinstance(theirs, AuthorizerOff) or isinstance(ours, AuthorizerOff):
        return [off(side) for side in (theirs, ours) if isinstance(side, AuthorizerOff)]
    own, forgeries = _own_entries(link, state)
    scope = Scope(
        topics=topics,
        groups=groups,
        group_filter=group_filter(link.mirror),
        own_principals=own_principals(link),
        own_acls=own,
        guards=guards(link.destination),
    )
    there = [e for e in state.ledger.values() if e.cluster == link.destination.name]
    mine, others = ([e for e in there if (e.mirror == link.mirror.name) is own] for own in (True, False))
    planned = partial(plan_acls, theirs.entries, ours.entries, ledger=mine, others=others)
    plan = planned(scope)
    beside = thirds(link, theirs.entries & {*plan.create, *plan.share, *plan.stage})
    if beside.own or beside.doubtful:
        plan = planned(replace(scope, own_acls=scope.own_acls | beside.own | beside.doubtful))
    if log is not None:
        plan = _carry_out(link, log, destination, plan)
    rows = rows_of(plan, done=log is not None) + beside.rows() + forgeries
    return rows + unknown(source.name, theirs) + unknown(destination.name, ours)


def apply_promotion(
    link: Link,
    log: Log,
    topics: Collection[str],
    *,
    ask_source: bool = True,
    before: Callable[[], None] = lambda: None,
    open_to: Callable[[Collection[str]], bool] = lambda topics: False,
) -> tuple[DriftRow, ...]:
    """Grant applications these mirror topics, whose partitions must have stopped. May be repeated.

    Order: settings for the first record; grants (PROMOTED) and FENCE denials for old tasks; removal of demotions, seen
    on every broker; other settings, which keep more until then. A broker that shows a grant knows earlier settings.

    `ask_source`: False when the source is lost. `before_change` runs when grants are allowed. `open_cluster` replaces
    grants where ACLs do not rule.
    """
    with ClusterClient(link.destination) as client:
        _check_may_grant(client)
        settings = FinalSettings(link, log.state, client, topics)
        before()
        rows = settings.before_the_first_record()
        held = describe_acls(client)
        if isinstance(held, AuthorizerOff):
            rows += settings.await_brokers()
            opened = "its unfence_command has let applications write" if open_to(topics) else ""
            rows.append(off(held, opened))
        else:
            rows += _promote_access(link, log, client, held, topics, ask_source=ask_source)
        return (*rows, *settings.the_others())


def _check_may_grant(client: ClusterClient) -> None:
    if isinstance(describe_acls(client), AuthorizerOff):
        return
    rights = cluster_rights(client)
    if rights is not None and Operation.ALTER not in rights:
        user = client.config.user(client.principal) or "the control principal"
        raise MissingPermission(f"cluster {client.name}: {user} needs ALTER on the cluster to let applications write")


def demote(
    link: Link,
    log: Log,
    topics: Collection[str],
    cluster: ClusterName,
    shut: Callable[[Collection[str]], bool] = lambda topics: False,
) -> tuple[DriftRow, ...]:
    """Deny applications these topics on a cluster that is to become a destination. May be repeated.

    Denials (DEMOTED) are seen on every broker first. Then the pending fence is forgotten, so that no watcher applies it
    again, and FENCE entries go, which would stop the mirror. Refused for grants to everybody. Promotion removes the
    denials.
    """
    config = link.source if cluster == link.source.name else link.destination
    with ClusterClient(config) as client:
        held = describe_acls(client)
        if isinstance(held, AuthorizerOff):
            closed = "its fence_command keeps applications out" if shut(topics) else ""
            if held.said is not Authorizer.KAFKA:  # its fence may stem from when the file said otherwise
                take_away_unshared(log, client, entered(log, link.mirror.name, client.name, AclPurpose.FENCE))
            forget_debt(log, link.mirror.name)
            return (off(held, closed),)
        reasons = undemotable_rights(link, config, held, topics)
        if reasons:
            raise Refused(f"cluster {client.name}: applications cannot be kept from writing mirror topics", reasons)
        deny = demotions(held.entries, topics, own_principals(link))
        known = {e.acl for e in entered(log, link.mirror.name, client.name, AclPurpose.DEMOTED)}
        foreign = (deny & held.entries) - known
        enter_and_put_up(log, link.mirror.name, client, deny - foreign, AclPurpose.DEMOTED)
        present_on_every_broker(client, deny)
        fence = entered(log, link.mirror.name, client.name, AclPurpose.FENCE)
        forget_debt(log, link.mirror.name)
        take_away_unshared(log, client, fence)
        rows = [row(acl, Action.CREATE, "keeps it a mirror topic") for acl in deny - held.entries]
        rows += [row(acl, Action.KEEP, "denied already, by somebody else's hand", done=False) for acl in foreign]
        rows += [row(e.acl, Action.REMOVE, "the fence is not needed any more") for e in fence]
        return tuple(sorted(rows, key=lambda row: row.subject))


def undemotable_rights(
    link: Link, config: ClusterConfig, held: Acls | AuthorizerOff, topics: Collection[str]
) -> tuple[str, ...]:
    """Why `demote_topics` would refuse, from ACLs already read."""
    if isinstance(held, AuthorizerOff):
        return ()
    everybody = (
        f"{acl}: a denial for everybody would stop the mirror too; replace it by grants to named principals: "
        f"{acl_command(acl, bootstrap=_bootstrap(config), remove=True)}"
        for acl in sorted(undemotable(held.entries, topics, own_principals(link)))
    )
    return (*everybody, *doubtful_principals(config, held))


def promotion_remarks(link: Link, state: State, held: Acls | AuthorizerOff, there: Collection[str]) -> tuple[str, ...]:
    if isinstance(held, AuthorizerOff):
        return tuple(_not_lifted(link, state, held))
    topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    given = _given(link, state, topics, there)
    name = link.destination.name
    doubts = (
        f"cluster {name}: {why}; until then a failback is refused"
        for why in doubtful_principals(link.destination, held)
    )
    denied = (words for _, words in stays(link, state, held.entries, given.grants, topics))
    return (*warnings(given, name), *denied, *doubts)


def _not_lifted(link: Link, state: State, held: AuthorizerOff) -> Iterator[str]:
    """Denials from when ACLs ruled the cluster, which promotion does not reach."""
    ours, kinds = both_ways(link.mirror.name), {*LIFTABLE, AclPurpose.WITHDRAWN}
    there = (e for e in state.ledger.values() if e.cluster == held.cluster and e.mirror in ours)
    left = [e.acl for e in there if e.purpose in kinds]
    if left and held.said is not Authorizer.KAFKA:
        yield (
            f"{held.cluster}: {len(left)} denial(s) of Mirrorbook's, such as {min(left)}, stay at promotion and keep "
            f"applications out, since mirrorbook.yaml says `authorizer: {held.said}`: write `authorizer: kafka` there"
        )


def _given(link: Link, state: State, topics: Collection[str], there: Collection[str]) -> Promotion:
    ledger = [e for e in state.ledger_of(link.mirror.name) if e.cluster == link.destination.name]
    if link.mirror.name.startswith(DRILL):  # no application moves: no groups and transactional ids
        ledger = [e for e in ledger if e.acl.resource is Resource.TOPIC]
    return promotion(ledger, topics, there, own_principals(link))


def _promote_access(
    link: Link, log: Log, client: ClusterClient, held: Acls, topics: Collection[str], *, ask_source: bool
) -> list[DriftRow]:
    given = _given(link, log.state, topics, client.metadata().topics)
    grants = set(given.grants)
    # Grants that others had made are not ours to remove at a failback.
    ours = grants - (held.entries - _promoted(log.state, client.name))
    # A sync grants read rights on mirror topics, too: they stay after a failback.
    topical = {a for a in ours if a.resource is Resource.TOPIC and a.permission is Permission.ALLOW}
    reading = {a for a in topical if not (is_wide(a) or may_change(a))}
    enter_and_put_up(log, link.mirror.name, client, reading, AclPurpose.COPIED)
    enter_and_put_up(log, link.mirror.name, client, ours - reading, AclPurpose.PROMOTED)
    present_on_every_broker(client, grants)
    silenced = silence_copiers(link, log, client, topics)
    gone, rows = lift(link, log, client, topics, ask_source=ask_source)
    lifted = gone & held.entries
    left = stays(link, log.state, held.entries - gone, given.grants, topics)
    rows += [row(acl, Action.KEEP, words, done=False) for acl, words in left]
    rows += [row(acl, Action.REFUSE, forgery(acl, why), done=False) for acl, why in given.refused.items()]
    rows += [row(a, Action.KEEP, narrowing(a, too, client.name), done=False) for a, too in given.narrowed.items()]
    rows += [row(acl, Action.CREATE, "staged until promotion") for acl in sorted(grants - held.entries)]
    past = "copying tasks of the past"
    stops = f"may stop {past}: {silenced.doubt}" if silenced.doubt else f"stops {past}"
    rows += [row(acl, Action.CREATE, stops) for acl in sorted(silenced.denials - held.entries)]
    return rows + [row(acl, Action.REMOVE, "kept it a mirror topic") for acl in sorted(lifted)]


def _promoted(state: State, cluster: ClusterName) -> set[Acl]:
    there = (e for e in state.ledger.values() if e.cluster == cluster)
    return {e.acl for e in there if e.purpose is AclPurpose.PROMOTED}


def _carry_out(link: Link, log: Log, client: ClusterClient, plan: AclPlan) -> AclPlan:
    """Returns the plan without entries that brokers do not support."""
    remember(log, link.mirror.name, client.name, {*plan.create, *plan.share}, AclPurpose.COPIED)
    known = [acl for acl in plan.create if not _new(acl)]
    create_acls(client, known)
    present_on_every_broker(client, known)
    refused = _create_new(client, [acl for acl in plan.create if _new(acl)])
    if plan.judged_again or plan.forget:
        log.put(*plan.judged_again, *(Forget(entry) for entry in plan.forget))
    # Denials first: a promotion after a killed sync must not grant what the source denies.
    remember(log, link.mirror.name, client.name, plan.stage, AclPurpose.STAGED)
    take_away(log, client, plan.remove)
    created = tuple(acl for acl in plan.create if acl not in refused)
    return replace(plan, create=created, left_out=(*plan.left_out, *refused.items()))


def _new(acl: Acl) -> bool:
    """True where older brokers refuse the whole request: such entries must not hold up others."""
    return acl.resource is Resource.USER or acl.operation is Operation.TWO_PHASE_COMMIT


def _create_new(client: ClusterClient, acls: Collection[Acl]) -> dict[Acl, str]:
    try:
        create_acls(client, acls)
        present_on_every_broker(client, acls)
    except MirrorError as error:
        return {acl: f"the brokers of {client.name} may be too old for it: {error}" for acl in acls}
    return {}


def _own_entries(link: Link, state: State) -> tuple[frozenset[Acl], list[DriftRow]]:
    """Our mirrors' denials on the source, which are not its own rules. Forged entries hide nothing."""
    name = link.source.name
    mine, there = (
        [e for e in one.ledger.values() if e.purpose in LIFTABLE and e.cluster == name]
        for one in (state, read_state(link.source))
    )
    found, doubted = believed(there)
    return found | {e.acl for e in mine}, [forgery_there(name, acl, why) for acl, why in sorted(doubted.items())]


def _bootstrap(config: ClusterConfig) -> str:
    return config.control["bootstrap.servers"]
