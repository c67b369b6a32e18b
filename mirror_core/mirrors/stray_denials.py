"""Denials that were lifted and exist again."""

from __future__ import annotations

from collections.abc import Mapping, Set

from mirror_core.decide.fence_limits import find_stray_denials, format_stray_denials, list_entries_on_cluster
from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.acl import Acl, AclPurpose, LiftedDenial
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunKind
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.sync.principals import list_own_principals


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
    """Confirmed by state before and after the request: a run may begin or end."""
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
