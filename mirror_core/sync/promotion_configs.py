"""Topic settings at promotion: the source's, as last synced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from mirror_core.decide.filters import build_setting_filter
from mirror_core.decide.mirror_snapshot import MinIsrShortfall, join_limited
from mirror_core.decide.topic_settings import ACCEPTANCE_KEYS, UNKNOWN_SETTING, build_promotion_configs, diff_configs
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.topic_existence import describe_denied_error
from mirror_core.kafka.topics import describe_available_configs, fetch_default_configs, find_late_brokers
from mirror_core.model.errors import RemoteFault
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory, TopicSettings
from mirror_core.model.text import format_count
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.sync.mirror_topics import apply_config_changes, list_known_settings, to_change_rows

_log = get_logger(__name__)
_MIN_ISR: Final = "min.insync.replicas"
_MAX_PROBED_TOPICS: Final = 100
_RETENTION_KEYS: Final = frozenset({"retention.ms", "retention.bytes"})


def list_topics_below_min_isr(
    client: ClusterClient, mirror: Mirror, state: State, topics: Mapping[str, TopicMetadata]
) -> tuple[MinIsrShortfall, ...]:
    """They could not be written with acks=all after a promotion now."""
    min_isr_by_topic = dict[str, str | None]()
    for name in sorted({p.topic for p in state.partitions.get(mirror.name, {})} & set(topics)):
        settings, replicas = state.topic_settings.get((mirror.name, name)), topics[name].replication_factor
        if settings is not None and topics[name].in_sync < replicas:
            min_isr_by_topic[name] = build_promotion_configs(settings.overrides, replicas).get(_MIN_ISR)
    default = next((_get_default_min_isr(client, name) for name, value in min_isr_by_topic.items() if value is None), 0)
    in_sync_counts = [
        MinIsrShortfall(name, topics[name].in_sync, int(value or default)) for name, value in min_isr_by_topic.items()
    ]
    return tuple(count for count in in_sync_counts if count.in_sync < count.needed)


def _get_default_min_isr(client: ClusterClient, topic: str) -> int:
    try:
        return int(fetch_default_configs(client, [topic]).get(_MIN_ISR) or 0)
    except RemoteFault as error:  # promotion needs the same right, and reports it
        _log.warning("cluster %s: its default of %s is not known: %s", client.name, _MIN_ISR, error)
        return 0


class PromotionConfigs:
    def __init__(self, link: MirrorLink, state: State, client: ClusterClient, topics: Collection[str]) -> None:
        view = client.metadata(topics)
        views = view.topics
        current, self._undescribed = describe_available_configs(client, topics)
        self._unlisted = sorted(set(topics).difference(view.denied, self._undescribed, views.keys() & current.keys()))
        self._undescribed |= {name: describe_denied_error(client, [name]) for name in view.denied}
        known_keys = list_known_settings(client, list(current)) if current else frozenset()
        self._client = client
        self._synced = dict[str, TopicSettings | None]()
        setting_filter = build_setting_filter(link.mirror)
        self._before = {
            name: setting_filter.select(current[name].overrides) for name in sorted(set(views) & set(current))
        }
        self._changes = dict[str, Mapping[str, str | None]]()
        self._policy_refused = set[str]()
        """Topics whose final cleanup.policy was refused: by the mirror's they would delete by age."""
        self._unsupported = dict[str, dict[str, str]]()
        """Unknown to this cluster."""
        self._applied_first = dict[str, Mapping[str, str | None]]()
        """The last topic changed, and those tried one by one."""
        for name, before in self._before.items():
            settings = self._synced[name] = state.topic_settings.get((link.mirror.name, name))
            if settings is not None:
                overrides = setting_filter.select(settings.overrides)
                wanted = build_promotion_configs(overrides, views[name].replication_factor)
                unsupported = {key for key in wanted if known_keys and key not in known_keys}
                self._unsupported[name] = {key: wanted[key] for key in sorted(unsupported)}
                wanted = {key: value for key, value in wanted.items() if key not in unsupported}
                self._changes[name] = diff_configs(wanted, before)

    def apply_before_first_record(self) -> list[DriftRow]:
        return [*self._list_unknown_rows(), *self._apply_selected(lambda key: key in ACCEPTANCE_KEYS)]

    def wait_for_brokers(self) -> Iterator[DriftRow]:
        """Where no grant is made: elsewhere a grant that a broker shows implies these settings."""
        late_brokers = find_late_brokers(self._client, self._applied_first)
        if late_brokers:
            yield DriftRow(
                part=SyncCategory.CONFIGS,
                subject=f"cluster {self._client.name}",
                action=SyncAction.SKIP,
                reason=(
                    f"{format_count(len(late_brokers), 'broker')} ({join_limited(sorted(late_brokers))}) did not show"
                    " the final settings in time: until then records are taken there by those of a mirror topic"
                ),
            )

    def apply_remaining(self) -> list[DriftRow]:
        rows = [*self._keep_retention()]
        return [*rows, *self._apply_selected(lambda key: key not in ACCEPTANCE_KEYS)]

    def _keep_retention(self) -> Iterator[DriftRow]:
        for topic in sorted(self._policy_refused):
            changes = self._changes[topic]
            self._changes[topic] = {key: value for key, value in changes.items() if key not in _RETENTION_KEYS}
            for key in sorted(_RETENTION_KEYS & changes.keys()):
                yield DriftRow(
                    part=SyncCategory.CONFIGS,
                    subject=f"{topic}: {key}",
                    source=changes[key] or "",
                    destination=self._before[topic].get(key, ""),
                    action=SyncAction.SKIP,
                    reason="left out: its cleanup.policy was refused, and by the present one records would be deleted",
                )

    def _apply_selected(self, is_selected: Callable[[str], bool]) -> Iterator[DriftRow]:
        changes = {
            t: {key: value for key, value in topic_changes.items() if is_selected(key)}
            for t, topic_changes in self._changes.items()
        }
        refused = apply_config_changes(self._client, changes)
        self._policy_refused |= {topic for topic, errors in refused.items() if "cleanup.policy" in errors}
        if not self._applied_first:
            done = {
                t: {k: v for k, v in topic_changes.items() if k not in refused.get(t, {})}
                for t, topic_changes in changes.items()
            }
            # Brokers apply changes in the order in which they were made.
            last_topic = [t for t, topic_changes in done.items() if topic_changes and t not in refused][-1:]
            self._applied_first = {t: done[t] for t in (*last_topic, *list(refused)[-_MAX_PROBED_TOPICS:]) if done[t]}
        for topic, topic_changes in changes.items():
            settings = self._synced[topic]
            source = settings.overrides if settings else {}
            yield from to_change_rows(
                topic, topic_changes, source, self._before[topic], refused.get(topic, {}), dry_run=False
            )

    def _list_unknown_rows(self) -> Iterator[DriftRow]:
        for topic in self._unlisted:
            yield _to_unlisted_row(topic)
        for topic, error in sorted(self._undescribed.items()):
            yield DriftRow(
                part=SyncCategory.CONFIGS,
                subject=topic,
                action=SyncAction.SKIP,
                reason=str(error),
            )
        for topic, settings_by_key in self._unsupported.items():
            for key, value in settings_by_key.items():
                yield DriftRow(
                    part=SyncCategory.CONFIGS,
                    subject=f"{topic}: {key}",
                    source=value,
                    action=SyncAction.SKIP,
                    reason=f"left out: {UNKNOWN_SETTING}",
                )
        for topic, settings in self._synced.items():
            if settings is None:
                yield DriftRow(
                    part=SyncCategory.CONFIGS,
                    subject=topic,
                    source="unknown",
                    action=SyncAction.SKIP,
                    reason="its settings were never synced, so it keeps those of a mirror topic: set them by hand",
                )


def _to_unlisted_row(topic: str) -> DriftRow:
    return DriftRow(
        part=SyncCategory.CONFIGS,
        subject=topic,
        action=SyncAction.REFUSE,
        code="topic_not_listed",
        reason="not listed now; if it exists, it keeps the settings of a mirror topic until this is repeated",
    )


def is_unlisted_row(row: DriftRow) -> bool:
    return row.part is SyncCategory.CONFIGS and row.action is SyncAction.REFUSE
