"""Final settings of topics that are promoted where no right is given: brokers know them before applications come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from mirror_core.kafka import fan_out, topics
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.kafka.topics import TOPIC_OVERRIDE_SOURCE, TopicConfigs, find_late_brokers
from mirror_core.model.errors import MirrorError, RemoteFault, SettingRefused, Unreachable
from mirror_core.model.sync_state import SyncAction, TopicSettings
from mirror_core.sync import acl_sync, promotion_configs
from tests.support.cluster_names import LINK
from tests.support.memory_state import MemoryLog

WANTED = {"t": {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": None}}
ONE_REPLICA = SimpleNamespace(replication_factor=1)
DEFAULT = 5
Rows = Mapping[str, tuple[str, int]]
"""What a broker says of a topic's settings: the value, and where it comes from."""
FINAL: Rows = {
    "message.timestamp.type": ("LogAppendTime", TOPIC_OVERRIDE_SOURCE),
    "min.insync.replicas": ("1", DEFAULT),
}
MIRRORED: Rows = {
    "message.timestamp.type": ("CreateTime", TOPIC_OVERRIDE_SOURCE),
    "min.insync.replicas": ("2", TOPIC_OVERRIDE_SOURCE),
}


def told(monkeypatch: pytest.MonkeyPatch, by: Mapping[int, list[Rows | None]]) -> Any:
    """A cluster of these brokers: what each says, one look after the other; the last for ever. None: nothing."""
    left = {broker: list(looks) for broker, looks in by.items()}

    def connection(rows: Rows) -> Any:
        configs = [SimpleNamespace(name=n, value=value, config_source=source) for n, (value, source) in rows.items()]
        result = SimpleNamespace(resource_name="t", error_code=ErrorCode.none, configs=configs)
        return SimpleNamespace(call=lambda request, answer: SimpleNamespace(results=[result]))

    def ask(client: object, asked: Mapping[int, Callable[[Any], bool]]) -> dict[int, bool | MirrorError]:
        found: dict[int, bool | MirrorError] = {}
        for broker, shows in asked.items():
            rows = left[broker].pop(0) if len(left[broker]) > 1 else left[broker][0]
            found[broker] = Unreachable("no answer") if rows is None else shows(connection(rows))
        return found

    monkeypatch.setattr(fan_out, "call_brokers", ask)
    return SimpleNamespace(name="west", brokers=lambda: tuple(by), left=left)


@pytest.mark.parametrize(
    ("by", "late"),
    [
        ({1: [FINAL], 2: [FINAL]}, set()),
        ({1: [FINAL], 2: [MIRRORED, None, FINAL]}, set()),
        ({1: [FINAL], 2: [MIRRORED]}, {2}),
        ({1: [None], 2: [{**FINAL, "min.insync.replicas": ("2", TOPIC_OVERRIDE_SOURCE)}]}, {1, 2}),
    ],
)
def test_brokers_are_asked_until_all_of_them_show_a_change(
    monkeypatch: pytest.MonkeyPatch, by: Mapping[int, list[Rows | None]], late: Collection[int]
) -> None:
    assert find_late_brokers(told(monkeypatch, by), WANTED, within_s=10.0 if not late else 0.0) == late
    assert find_late_brokers(told(monkeypatch, by), {}, within_s=0.0) == set(), "nothing was changed"


@pytest.mark.parametrize("in_time", [False, True])
def test_applications_are_let_in_when_brokers_know_what_a_topic_takes(
    monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    """Where no right is given after the settings, whose being shown would tell. Nobody is held up for long by it."""
    log, done = MemoryLog(), list[str]()
    settings = TopicSettings(mirror=LINK.mirror.name, topic="t", overrides={"message.timestamp.type": "LogAppendTime"})
    log.put(settings)
    view = SimpleNamespace(topics={"t": ONE_REPLICA}, denied=())
    west = told(monkeypatch, {1: [MIRRORED, MIRRORED, FINAL if in_time else MIRRORED]})
    west.metadata = lambda topics: view
    now = TopicConfigs({"message.timestamp.type": "CreateTime", "min.insync.replicas": "2"}, {})
    monkeypatch.setattr(topics, "CONFIG_BARRIER_S", 60.0 if in_time else 0.1)
    monkeypatch.setattr(promotion_configs, "describe_available_configs", lambda client, topics: ({"t": now}, {}))
    monkeypatch.setattr(promotion_configs, "list_known_settings", lambda client, topics: frozenset())

    def changed(client: object, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, dict[str, str]]:
        done.extend(f"{name}={value}" for mine in changes.values() for name, value in sorted(mine.items()))
        return {}

    def open_to(topics: Collection[str]) -> bool:
        assert west.left[1] == [FINAL if in_time else MIRRORED], "brokers were asked before"
        done.append("open")
        return True

    monkeypatch.setattr(promotion_configs, "apply_config_changes", changed)
    monkeypatch.setattr(acl_sync, "describe_acls", lambda client: AuthorizerOff("west"))
    monkeypatch.setattr(acl_sync, "ClusterClient", lambda cluster: nullcontext(west))
    rows = acl_sync.apply_promotion(LINK, log, ["t"], open_cluster=open_to)
    assert done == ["message.timestamp.type=LogAppendTime", "min.insync.replicas=None", "open"]
    said = [row.reason for row in rows if row.action is SyncAction.SKIP and "1 broker (1) did not show" in row.reason]
    assert bool(said) is not in_time


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_topic_whose_policy_is_refused_keeps_the_retention_of_a_mirror_topic(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A compacted topic would delete records by age: the mirror compacts with `compact,delete`."""
    log, made = MemoryLog(), dict[str, str | None]()
    log.put(TopicSettings(mirror=LINK.mirror.name, topic="t", overrides={"cleanup.policy": "compact", "flush.ms": "7"}))
    now = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}
    west = SimpleNamespace(metadata=lambda topics: SimpleNamespace(topics={"t": ONE_REPLICA}, denied=()))
    described = {"t": TopicConfigs(now, {})}, dict[str, Any]()
    monkeypatch.setattr(promotion_configs, "describe_available_configs", lambda client, topics: described)
    monkeypatch.setattr(promotion_configs, "list_known_settings", lambda client, topics: frozenset())

    def change(client: object, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, dict[str, RemoteFault]]:
        refused = {"cleanup.policy"} & changes["t"].keys() if is_refused else set[str]()
        made.update({key: value for key, value in changes["t"].items() if key not in refused})
        return {"t": {key: SettingRefused("by a policy") for key in refused}} if refused else {}

    monkeypatch.setattr(promotion_configs, "apply_config_changes", change)
    settings = promotion_configs.PromotionConfigs(LINK, log.state, cast("Any", west), ["t"])
    rows = [*settings.apply_before_first_record(), *settings.apply_remaining()]
    left_out = {row.subject for row in rows if row.action is SyncAction.SKIP}
    if is_refused:
        assert made == {"flush.ms": "7"}
        assert left_out == {"t: cleanup.policy", "t: retention.bytes", "t: retention.ms"}
    else:
        assert made == {"cleanup.policy": "compact", "flush.ms": "7", "retention.bytes": None, "retention.ms": None}
        assert left_out == set()
