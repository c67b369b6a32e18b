"""Denials that were lifted and exist again."""

from __future__ import annotations

from collections.abc import Mapping, Set

from mirror_core.decide.reappeared import entered_there, named, reappeared
from mirror_core.kafka.acls import Acls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.acl import Acl, AclPurpose, Lifted
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunKind
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.sync.principals import own_principals


def reappeared_in_words(link: Link, state: State, silent: Mapping[ClusterName, str]) -> str:
    name, words = link.mirror.name, list[str]()
    if not any(one.entry.mirror == name for one in state.lifted.values()):
        return ""
    for side in (link.source, link.destination):
        try:
            if why := silent.get(side.name):
                raise Indeterminate(why)
            words.append(named(_on(link, state, side), link.mirror, side.name))
        except MirrorError as error:
            words.append(f"unknown on {side.name}: {error}")
    return "; ".join(filter(None, words))


def _on(link: Link, state: State, side: ClusterConfig) -> tuple[Lifted, ...]:
    """Confirmed by state before and after the request: a run may begin or end."""
    id_ = link.mirror.source_id if side.name == link.mirror.source else link.mirror.destination_id
    with ClusterClient(side, timeout_s=LIMITS.described_side_s) as client:
        if (now := client.metadata(()).cluster_id) != id_:
            raise BadRequest(f"cluster {side.name} is {now} now, and was {id_} when mirror {link.mirror.name} was made")
        seen = describe_acls(client)
    held = seen.entries if isinstance(seen, Acls) else frozenset()
    before = reappeared_on(link, state, side.name, held)
    after = reappeared_on(link, read_state(link.destination), side.name, held) if before else ()
    return tuple(one for one in before if one in after)


def reappeared_on(link: Link, state: State, cluster: ClusterName, held: Set[Acl]) -> tuple[Lifted, ...]:
    there = entered_there(link.mirror, cluster, state.ledger.values(), state.mirrors)
    found = reappeared(link.mirror, cluster, held, state.lifted.values(), there, own_principals(link))
    run = state.active_run(link.mirror.name)
    if cluster != link.mirror.destination or run is None or run.plan.kind is not RunKind.FAILBACK:
        return found
    # A failback's last step demotes here by the reverse mirror's ledger, which is not at hand.
    return tuple(one for one in found if one.entry.purpose is not AclPurpose.DEMOTED)
