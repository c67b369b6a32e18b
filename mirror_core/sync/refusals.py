"""One topic's error or conflict must not hold up the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import TopicConfigs, told_configs
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind


def each(action: Callable[[list[str]], object], names: Iterable[str], *, of: int = 0) -> dict[str, RemoteFault]:
    """Run the action for all topics; after a refusal for those not named, or for each half.

    Returns the refused topics. Raises when the cluster is unreachable, or when all `total` topics are denied.
    """
    todo = list(names)
    try:
        if todo:
            action(todo)
        return {}
    except Unreachable:
        raise
    except RemoteFault as error:
        refused = {name: error.refused[name] for name in todo if name in error.refused}
        if _all_denied(refused, of):
            raise
        if len(todo) == 1:
            return refused or {todo[0]: error}
    if refused:
        return {**refused, **each(action, [name for name in todo if name not in refused], of=of)}
    half = len(todo) // 2
    return {**each(action, todo[:half], of=of), **each(action, todo[half:], of=of)}


def _all_denied(refused: Mapping[str, RemoteFault], of: int) -> bool:
    return 0 < len(refused) == of and all(isinstance(error, MissingPermission) for error in refused.values())


def kind(error: RemoteFault) -> FailureKind:
    return FailureKind.DENIED if isinstance(error, MissingPermission) else FailureKind.REFUSED


def told(
    client: ClusterClient, topics: Collection[str], of: int
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    """Visible configurations, and the errors of the others."""
    found, hidden = told_configs(client, topics)
    raise_if_all_denied(hidden, of)
    return found, hidden


def raise_if_all_denied(refused: Mapping[str, RemoteFault], of: int) -> None:
    if _all_denied(refused, of):
        raise next(iter(refused.values()))
