"""One topic's error or conflict must not hold up the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import TopicConfigs, describe_available_configs
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind


def run_for_each_topic(
    action: Callable[[list[str]], object], names: Iterable[str], *, total: int = 0
) -> dict[str, RemoteFault]:
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
        if _is_denied_for_all(refused, total):
            raise
        if len(todo) == 1:
            return refused or {todo[0]: error}
    if refused:
        return {**refused, **run_for_each_topic(action, [name for name in todo if name not in refused], total=total)}
    half = len(todo) // 2
    return {
        **run_for_each_topic(action, todo[:half], total=total),
        **run_for_each_topic(action, todo[half:], total=total),
    }


def _is_denied_for_all(refused: Mapping[str, RemoteFault], total: int) -> bool:
    return 0 < len(refused) == total and all(isinstance(error, MissingPermission) for error in refused.values())


def to_failure_kind(error: RemoteFault) -> FailureKind:
    return FailureKind.DENIED if isinstance(error, MissingPermission) else FailureKind.REFUSED


def describe_visible_configs(
    client: ClusterClient, topics: Collection[str], total: int
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    """Visible configurations, and the errors of the others."""
    configs, hidden = describe_available_configs(client, topics)
    raise_if_all_denied(hidden, total)
    return configs, hidden


def raise_if_all_denied(refused: Mapping[str, RemoteFault], total: int) -> None:
    if _is_denied_for_all(refused, total):
        raise next(iter(refused.values()))
