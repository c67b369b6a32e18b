"""Sources that ACLs do not protect, and lifted DENYs of ours that a cluster has again.

A process paused right before it denies still denies after its run was aborted. Kafka does not record who made an entry,
and an equal one may be another's: they are only named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from mirror_core.decide.mirror_snapshot import MirrorSnapshot, join_limited
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, LiftedDenial, Resource
from mirror_core.model.config_sections import AuthorizerConfig
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import DRILL_PREFIX, ClusterName, MirrorName, get_both_directions
from mirror_core.model.run import RunMode
from mirror_core.model.text import format_count
from mirror_core.rights.acl_rules import EVERYBODY, OWN_TOPIC_PREFIX
from mirror_core.rights.ledger_rules import find_flaw


def explain_unfenceable_source(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    """Refuses a planned failover. A drill needs no fence."""
    if (
        snapshot.source_authorizer.is_foreign
        and snapshot.source_authorizer.fence_command is None
        and not snapshot.mirror.name.startswith(DRILL_PREFIX)
    ):
        is_stopped = snapshot.mirror.desired is DesiredState.STOPPED
        yield Finding("source_unfenceable", snapshot.mirror.source, stopped=is_stopped)


def explain_no_failback(mirror: Mirror, new_primary: AuthorizerConfig) -> Iterator[Finding]:
    if new_primary.is_foreign and new_primary.fence_command is None and not mirror.name.startswith(DRILL_PREFIX):
        yield Finding("new_primary_unfenceable", mirror.destination)


def warn_foreign_source(name: ClusterName, ruling: AuthorizerConfig) -> Iterator[Finding]:
    if ruling.is_foreign:
        yield Finding("foreign_source", name)
    if ruling.is_foreign and ruling.fence_command is None:
        yield Finding("foreign_source_unfenceable", name)


def warn_foreign_destination(name: ClusterName, ruling: AuthorizerConfig) -> Iterator[Finding]:
    if ruling.is_foreign:
        yield Finding("foreign_destination", name, unfence_command=ruling.unfence_command is not None)
        yield Finding("foreign_destination_copiers", name, prefix=OWN_TOPIC_PREFIX)


def warn_foreign_authorizers(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror, has_fence_command = snapshot.mirror, snapshot.source_authorizer.fence_command is not None
    if snapshot.source_authorizer.is_foreign and snapshot.mode is RunMode.UNPLANNED:
        yield Finding("foreign_source_undenied", mirror.source, fence_command=has_fence_command)
    if has_fence_command and snapshot.mode is RunMode.PLANNED:
        yield Finding("source_closed_by_command", mirror.source)
    yield from warn_foreign_destination(mirror.destination, snapshot.destination_authorizer)


def find_stray_denials(
    mirror: Mirror,
    cluster: ClusterName,
    held_acls: Set[Acl],
    lifted: Iterable[LiftedDenial],
    ledger_entries: Collection[LedgerEntry],
    own_principals: Set[str],
) -> tuple[LiftedDenial, ...]:
    """One of the mirror's clusters has them again, and no known ledger needs them.

    `ledger_entries`: see `list_entries_on_cluster`. What this mirror or its reverse promoted may be the DENY itself: a
    sync took it for a rule of the source.
    """
    promoted_entries = {
        e for e in ledger_entries if e.purpose is AclPurpose.PROMOTED and e.mirror in get_both_directions(mirror.name)
    }
    promoted_acls, needed_acls = (
        {e.acl for e in promoted_entries},
        {e.acl for e in ledger_entries if e not in promoted_entries},
    )
    stray_denials = dict[Acl, LiftedDenial]()
    for lifted_denial in lifted:
        entry, acl = lifted_denial.entry, lifted_denial.entry.acl
        is_carried = acl in promoted_acls and acl.principal == EVERYBODY
        is_applied_again = entry.cluster == cluster and not _is_reverse_fence(mirror, entry)
        is_own = entry.mirror == mirror.name and (is_applied_again or is_carried)
        if is_own and acl in held_acls and acl not in needed_acls and not find_flaw(entry, own_principals):
            stray_denials[acl] = lifted_denial
    return tuple(stray_denials[acl] for acl in sorted(stray_denials))


def _is_reverse_fence(mirror: Mirror, entry: LedgerEntry) -> bool:
    """On the destination of a stopped mirror it may be the reverse mirror's, whose ledger is not at hand."""
    fence = entry.purpose is AclPurpose.FENCE and entry.acl.principal == EVERYBODY
    return fence and entry.cluster == mirror.destination and mirror.desired is DesiredState.STOPPED


def list_entries_on_cluster(
    mirror: Mirror, cluster: ClusterName, ledger: Iterable[LedgerEntry], mirrors: Mapping[MirrorName, Mirror]
) -> list[LedgerEntry]:
    cluster_id, entries = _map_cluster_ids(mirror)[cluster], list[LedgerEntry]()
    for entry in ledger:
        ids = _map_cluster_ids(mirrors[entry.mirror]) if entry.mirror in mirrors else {}
        is_on_cluster = ids.get(entry.cluster) == cluster_id or entry.cluster == cluster
        if is_on_cluster and entry.purpose is not AclPurpose.STAGED:
            entries.append(entry)
    return entries


def _map_cluster_ids(mirror: Mirror) -> dict[ClusterName, str]:
    return {mirror.source: mirror.source_id, mirror.destination: mirror.destination_id}


def format_stray_denials(stray_denials: Iterable[LiftedDenial], mirror: Mirror, cluster: ClusterName) -> str:
    by_effect = dict[str, list[LiftedDenial]]()
    for denial in stray_denials:
        by_effect.setdefault(_format_denial_effect(denial.entry, cluster), []).append(denial)
    return "; ".join(
        f"{_format_stray_count(denials, mirror, cluster)}: {join_limited(denial.entry.acl for denial in denials)}:"
        f" {effect}"
        for effect, denials in by_effect.items()
    )


def warn_stray_denials(
    stray_denials: Collection[LiftedDenial], mirror: Mirror, cluster: ClusterName
) -> Iterator[Finding]:
    if stray_denials:
        runs = sorted({denial.run for denial in stray_denials if denial.run})
        yield Finding("stray_denials", cluster, denials=len(stray_denials), mirror=mirror.name, runs=runs)


def _format_stray_count(stray_denials: Collection[LiftedDenial], mirror: Mirror, cluster: ClusterName) -> str:
    runs = join_limited(sorted({denial.run for denial in stray_denials if denial.run})) or "by an earlier run"
    count_text = f"{format_count(len(stray_denials), 'denial')} that mirror {mirror.name} had lifted ({runs})"
    stand, are = ("stands", "is") if len(stray_denials) == 1 else ("stand", "are")
    return f"{count_text} {stand} on {cluster} again, or {are} another's"


def _format_denial_effect(entry: LedgerEntry, cluster: ClusterName) -> str:
    if entry.purpose is AclPurpose.DEMOTED:
        return "applications cannot change these topics there"
    if entry.acl.principal == EVERYBODY:
        return "nobody can write there what they name, neither applications nor a copier"
    if entry.acl.resource is Resource.GROUP:
        return f"copying of groups' offsets to {cluster} stands still because of it"
    return f"copying to {cluster} stands still because of it"
