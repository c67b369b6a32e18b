"""A topic that returns to the mirror gets a mirror's settings back before anything is copied."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.kafka.client import TopicMetadata
from mirror_core.kafka.topics import TopicConfigs
from mirror_core.mirrors import mirror_change
from mirror_core.model.errors import Refused, RemoteFault, SettingRefused
from mirror_core.model.sync_state import DriftRow
from mirror_core.state.state_records import State
from mirror_core.sync import mirror_topics, topic_compaction
from tests.support.cluster_names import LINK

TOPICS = {"orders": TopicMetadata("orders", "3" * 32, False, {}, 1, 1)}
to_change_rows = mirror_topics.to_change_rows


def restore(monkeypatch: pytest.MonkeyPatch, refused: dict[str, RemoteFault]) -> list[Any]:
    """What is recorded for promotion. Rows say in other words that a setting was refused."""
    configs = {"orders": TopicConfigs({"retention.ms": "86400000"}, {})}

    def to_reworded_rows(*told: Any, **more: Any) -> list[DriftRow]:
        return [replace_reason(row) for row in to_change_rows(*told, **more)]

    monkeypatch.setattr(mirror_change, "ClusterClient", lambda config: nullcontext(SimpleNamespace(name=config.name)))
    monkeypatch.setattr(mirror_change, "check_cluster_ids", lambda *told: None)
    monkeypatch.setattr(mirror_topics, "describe_visible_configs", lambda *told: (configs, {}))
    monkeypatch.setattr(mirror_topics, "list_known_settings", lambda *told: frozenset())
    monkeypatch.setattr(mirror_topics, "find_lagging_topics", lambda *told: frozenset())
    monkeypatch.setattr(mirror_topics, "fetch_default_configs", lambda *told: {})
    monkeypatch.setattr(topic_compaction, "read_broker_time_ms", lambda *told: 1_000)
    monkeypatch.setattr(
        mirror_topics, "apply_config_changes", lambda client, changes, *, validate_only: {"orders": refused}
    )
    monkeypatch.setattr(mirror_topics, "to_change_rows", to_reworded_rows)
    recorded, state = list[Any](), State()
    state.put(LINK.mirror)
    writer: Any = SimpleNamespace(state=state, put=lambda *records: recorded.extend(records))
    destination: Any = SimpleNamespace(name="west")
    mirror_change._restore_mirror_settings(LINK, writer, destination, TOPICS)
    return recorded


def replace_reason(row: DriftRow) -> DriftRow:
    return DriftRow(
        part=row.part,
        subject=row.subject,
        source=row.source,
        destination=row.destination,
        action=row.action,
        reason="in other words" if row.reason else "",
        done=row.done,
    )


def test_a_return_is_refused_by_the_settings_that_were_refused_and_not_by_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Refused) as raised:
        restore(monkeypatch, {"retention.ms": SettingRefused("policy: at most a day")})
    assert raised.value.reasons == ("topic orders: west refuses retention.ms: policy: at most a day",)


def test_a_topic_with_all_settings_of_a_mirror_may_return(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [record.topic for record in restore(monkeypatch, {})] == ["orders"]
