"""Clusters whose access rights Kafka's ACLs do not rule: which protections are missing there."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.decide.view import MirrorSnapshot
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import DRILL_PREFIX, ClusterName
from mirror_core.model.ruling import AuthorizerConfig, AuthorizerKind
from mirror_core.model.run import RunMode
from mirror_core.rights.acls import OWN_TOPIC_PREFIX

_FOREIGN_TEXT = "has an authorizer that is not Kafka's (`authorizer: foreign`)"


def explain_unfenceable_source(snapshot: MirrorSnapshot) -> Iterator[str]:
    """Why a planned failover is refused: nothing can fence its source. A drill needs no fence."""
    if (
        snapshot.source_authorizer.is_foreign
        and snapshot.source_authorizer.fence_command is None
        and not snapshot.mirror.name.startswith(DRILL_PREFIX)
    ):
        is_stopped = snapshot.mirror.desired is DesiredState.STOPPED
        yield _format_unfenceable(snapshot.mirror.source) + ("" if is_stopped else ". If it is lost: --mode unplanned")


def explain_no_failback(mirror: Mirror, new_primary: AuthorizerConfig) -> Iterator[str]:
    if new_primary.is_foreign and new_primary.fence_command is None and not mirror.name.startswith(DRILL_PREFIX):
        yield f"{_format_unfenceable(mirror.destination)}, and the way home ends with a planned failover away from it"


def _format_unfenceable(cluster: ClusterName) -> str:
    return (
        f"{cluster} {_FOREIGN_TEXT} and no fence_command: nobody could keep applications from writing there. Give it "
        "fence_command and unfence_command in mirrorbook.yaml"
    )


def warn_foreign_source(name: ClusterName, ruling: AuthorizerConfig) -> Iterator[str]:
    if not ruling.is_foreign:
        return
    yield f"{name} {_FOREIGN_TEXT}: access rights of its applications are not copied; see to theirs on the other side yourself"
    if ruling.fence_command is None:
        yield (
            f"{name} has no fence_command: a planned failover is refused, and behind an unplanned one people must "
            f"close {name} to applications before it comes back"
        )


def warn_foreign_destination(name: ClusterName, ruling: AuthorizerConfig) -> Iterator[str]:
    if not ruling.is_foreign:
        return
    opens_text = "its unfence_command lets them in" if ruling.unfence_command else "let them in yourself"
    yield (
        f"{name} {_FOREIGN_TEXT}: Mirrorbook gives and denies nothing there. Keep applications from writing mirror topics "
        f"until a failover has promoted it; then {opens_text}"
    )
    yield (
        f"{name}: nothing of Mirrorbook's stops copying tasks of the past there: it waits until their time is over. "
        f"Keep the data principal from writing topics that begin with {OWN_TOPIC_PREFIX}"
    )


def warn_foreign_authorizers(snapshot: MirrorSnapshot) -> Iterator[str]:
    mirror, has_fence_command = snapshot.mirror, snapshot.source_authorizer.fence_command is not None
    if snapshot.source_authorizer.is_foreign and snapshot.mode is RunMode.UNPLANNED:
        how_fenced = (
            "its fence_command closes it when it answers" if has_fence_command else "close it to applications yourself"
        )
        yield f"{mirror.source} {_FOREIGN_TEXT}: no denial can be put up there; {how_fenced}"
    if has_fence_command and snapshot.mode is RunMode.PLANNED:
        yield (
            f"{mirror.source} is closed to applications by its fence_command; no broker can show that, so the run "
            "relies on it and on stillness"
        )
    yield from warn_foreign_destination(mirror.destination, snapshot.destination_authorizer)


def explain_watched_only(authorizer: AuthorizerKind) -> str:
    if authorizer is AuthorizerKind.FOREIGN:
        return f"{authorizer.no_acl_reason}, and no fence_command: Mirrorbook cannot close it to applications"
    return f"{authorizer.no_acl_reason}: it cannot be kept from taking writes"


def format_fence_request(cluster: ClusterName) -> str:
    return (
        f"cluster {cluster} answers, and Mirrorbook cannot close it to applications, which have moved: close it by its "
        "own means, and give it fence_command and unfence_command in mirrorbook.yaml, so that this is seen to"
    )
