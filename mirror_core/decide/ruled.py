"""Clusters whose access rights Kafka's ACLs do not rule: which protections are missing there."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.decide.view import View
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import DRILL, ClusterName
from mirror_core.model.ruling import Authorizer, Ruling
from mirror_core.model.run import Mode
from mirror_core.rights.acls import OUR_TOPICS

_WHO = "has an authorizer that is not Kafka's (`authorizer: foreign`)"


def unclosable(view: View) -> Iterator[str]:
    """Why a planned failover is refused: nothing can fence its source. A drill needs no fence."""
    if view.here.foreign and view.here.fence is None and not view.mirror.name.startswith(DRILL):
        over = view.mirror.desired is Desired.STOPPED
        yield _unclosable(view.mirror.source) + ("" if over else ". If it is lost: --mode unplanned")


def no_way_home(mirror: Mirror, new: Ruling) -> Iterator[str]:
    if new.foreign and new.fence is None and not mirror.name.startswith(DRILL):
        yield f"{_unclosable(mirror.destination)}, and the way home ends with a planned failover away from it"


def _unclosable(cluster: ClusterName) -> str:
    return (
        f"{cluster} {_WHO} and no fence_command: nobody could keep applications from writing there. Give it "
        "fence_command and unfence_command in mirrorbook.yaml"
    )


def as_source(name: ClusterName, ruling: Ruling) -> Iterator[str]:
    if not ruling.foreign:
        return
    yield f"{name} {_WHO}: access rights of its applications are not copied; see to theirs on the other side yourself"
    if ruling.fence is None:
        yield (
            f"{name} has no fence_command: a planned failover is refused, and behind an unplanned one people must "
            f"close {name} to applications before it comes back"
        )


def as_destination(name: ClusterName, ruling: Ruling) -> Iterator[str]:
    if not ruling.foreign:
        return
    opens = "its unfence_command lets them in" if ruling.unfence else "let them in yourself"
    yield (
        f"{name} {_WHO}: Mirrorbook gives and denies nothing there. Keep applications from writing mirror topics "
        f"until a failover has promoted it; then {opens}"
    )
    yield (
        f"{name}: nothing of Mirrorbook's stops copying tasks of the past there: it waits until their time is over. "
        f"Keep the data principal from writing topics that begin with {OUR_TOPICS}"
    )


def warnings(view: View) -> Iterator[str]:
    mirror, by_command = view.mirror, view.here.fence is not None
    if view.here.foreign and view.mode is Mode.UNPLANNED:
        closes = "its fence_command closes it when it answers" if by_command else "close it to applications yourself"
        yield f"{mirror.source} {_WHO}: no denial can be put up there; {closes}"
    if by_command and view.mode is Mode.PLANNED:
        yield (
            f"{mirror.source} is closed to applications by its fence_command; no broker can show that, so the run "
            "relies on it and on stillness"
        )
    yield from as_destination(mirror.destination, view.there)


def watched_only(authorizer: Authorizer) -> str:
    if authorizer is Authorizer.FOREIGN:
        return f"{authorizer.without_acls}, and no fence_command: Mirrorbook cannot close it to applications"
    return f"{authorizer.without_acls}: it cannot be kept from taking writes"


def to_be_closed(cluster: ClusterName) -> str:
    return (
        f"cluster {cluster} answers, and Mirrorbook cannot close it to applications, which have moved: close it by its "
        "own means, and give it fence_command and unfence_command in mirrorbook.yaml, so that this is seen to"
    )
