"""Topic settings at promotion: the source's, as last synced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from mirror_core.decide.topics import TAKES, config_changes, promotion_configs
from mirror_core.decide.view import Few, some
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.defaults import default_of
from mirror_core.kafka.existing import undescribed
from mirror_core.kafka.settings_shown import late_with
from mirror_core.kafka.topics import told_configs
from mirror_core.model.drift import Action, DriftRow, Part, TopicSettings
from mirror_core.model.errors import RemoteFault
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Mirror
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.sync.topics import UNKNOWN_SETTING, apply_changes, change_rows, known_settings

_log = logger(__name__)
_INSYNC: Final = "min.insync.replicas"
_MARKS: Final = 100


def few_in_sync(
    client: ClusterClient, mirror: Mirror, state: State, topics: Mapping[str, TopicView]
) -> tuple[Few, ...]:
    """Topics that could not be written with acks=all after a promotion now."""
    asked = dict[str, str | None]()
    for name in sorted({p.topic for p in state.partitions.get(mirror.name, {})} & set(topics)):
        settings, replicas = state.settings.get((mirror.name, name)), topics[name].replication_factor
        if settings is not None and topics[name].in_sync < replicas:
            asked[name] = promotion_configs(settings.overrides, replicas).get(_INSYNC)
    default = next((_default(client, name) for name, value in asked.items() if value is None), 0)
    few = [Few(name, topics[name].in_sync, int(value or default)) for name, value in asked.items()]
    return tuple(one for one in few if one.in_sync < one.needed)


def _default(client: ClusterClient, topic: str) -> int:
    try:
        return int(default_of(client, topic, _INSYNC) or 0)
    except RemoteFault as error:  # promotion needs the same right, and reports it
        _log.warning("cluster %s: its default of %s is not known: %s", client.name, _INSYNC, error)
        return 0


class FinalSettings:
    def __init__(self, link: Link, state: State, client: ClusterClient, topics: Collection[str]) -> None:
        view = client.metadata(topics)
        views = view.topics
        current, self._hidden = told_configs(client, topics)
        self._hidden |= {name: undescribed(client, [name]) for name in view.denied}
        known = known_settings(client, list(current)) if current else frozenset()
        self._client = client
        self._synced = dict[str, TopicSettings | None]()
        self._before = {name: current[name].overrides for name in sorted(set(views) & set(current))}
        self._changes = dict[str, Mapping[str, str | None]]()
        self._foreign = dict[str, dict[str, str]]()
        """Unknown to this cluster."""
        self._made = dict[str, Mapping[str, str | None]]()
        """The last topic changed, and those tried one by one."""
        for name, before in self._before.items():
            settings = self._synced[name] = state.settings.get((link.mirror.name, name))
            if settings is not None:
                wanted = promotion_configs(settings.overrides, views[name].replication_factor)
                foreign = {key for key in wanted if known and key not in known}
                self._foreign[name] = {key: wanted[key] for key in sorted(foreign)}
                wanted = {key: value for key, value in wanted.items() if key not in foreign}
                self._changes[name] = config_changes(wanted, before)

    def before_the_first_record(self) -> list[DriftRow]:
        return [*self._unknown(), *self._make(lambda key: key in TAKES)]

    def await_brokers(self) -> Iterator[DriftRow]:
        """Where no grant is made: elsewhere a grant that a broker shows implies these settings."""
        late = late_with(self._client, self._made)
        if late:
            yield DriftRow(
                part=Part.CONFIGS,
                subject=f"cluster {self._client.name}",
                source="",
                destination="",
                action=Action.SKIP,
                reason=f"broker(s) {some(sorted(late))} did not show the final settings in time: until they do, they "
                "take records by those of a mirror topic",
            )

    def the_others(self) -> list[DriftRow]:
        return list(self._make(lambda key: key not in TAKES))

    def _make(self, chosen: Callable[[str], bool]) -> Iterator[DriftRow]:
        changes = {t: {key: value for key, value in mine.items() if chosen(key)} for t, mine in self._changes.items()}
        refused = apply_changes(self._client, changes)
        if not self._made:
            done = {t: {k: v for k, v in mine.items() if k not in refused.get(t, {})} for t, mine in changes.items()}
            # Brokers apply changes in the order in which they were made.
            last = [t for t, mine in done.items() if mine and t not in refused][-1:]
            self._made = {t: done[t] for t in (*last, *list(refused)[-_MARKS:]) if done[t]}
        for topic, mine in changes.items():
            settings = self._synced[topic]
            source = settings.overrides if settings else {}
            yield from change_rows(topic, mine, source, self._before[topic], refused.get(topic, {}), dry_run=False)

    def _unknown(self) -> Iterator[DriftRow]:
        for topic, error in sorted(self._hidden.items()):
            yield DriftRow(
                part=Part.CONFIGS, subject=topic, source="", destination="", action=Action.SKIP, reason=str(error)
            )
        for topic, mine in self._foreign.items():
            for key, value in mine.items():
                yield DriftRow(
                    part=Part.CONFIGS,
                    subject=f"{topic}: {key}",
                    source=value,
                    destination="",
                    action=Action.SKIP,
                    reason=f"left out: {UNKNOWN_SETTING}",
                )
        for topic, settings in self._synced.items():
            if settings is None:
                yield DriftRow(
                    part=Part.CONFIGS,
                    subject=topic,
                    source="unknown",
                    destination="",
                    action=Action.SKIP,
                    reason="its settings were never synced, so it keeps those of a mirror topic: set them by hand",
                )
