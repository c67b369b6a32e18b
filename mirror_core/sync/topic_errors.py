"""One topic's error or conflict must not hold up the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.topic_settings import AcceptedSettings, find_harmful_refusals, search_accepted
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offset_points
from mirror_core.kafka.topics import NewTopic, TopicConfigs, describe_available_configs, validate_topics
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault, SettingRefused, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State

EXCLUDE_ADVICE: Final = "exclude it (`--exclude-topics` of `mirror create` or `mirror change`)"


def run_for_each_topic(
    action: Callable[[list[str]], object], names: Iterable[str], *, total: int = 0
) -> dict[str, RemoteFault]:
    """Returns the refused topics. After a refusal the action runs for those not named, or for each half.

    Raises when the cluster is unreachable, or when all `total` topics are denied.
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
    configs, hidden = describe_available_configs(client, topics)
    raise_if_all_denied(hidden, total)
    return configs, hidden


def raise_if_all_denied(refused: Mapping[str, RemoteFault], total: int) -> None:
    if _is_denied_for_all(refused, total):
        raise next(iter(refused.values()))


def check_width(destination: ClusterClient, topic: TopicMetadata, width: int) -> tuple[str, FailureKind] | None:
    if len(topic.partitions) <= width:
        return None
    return (
        (
            f"{_format_topic(destination, topic)} has {len(topic.partitions)} partitions, the source's has {width}:"
            f" keys would go elsewhere; delete the destination's topic, or {EXCLUDE_ADVICE}"
        ),
        FailureKind.OCCUPIED,
    )


def count_copied_partitions(link: MirrorLink, state: State) -> Counter[str]:
    """By topic."""
    statuses = state.partitions.get(link.mirror.name, {}).values()
    return Counter(status.partition.topic for status in statuses if status.destination_topic_id)


def check_narrowed_topics(
    link: MirrorLink, source: ClusterClient, topics: Mapping[str, TopicMetadata], copied_counts: Mapping[str, int]
) -> tuple[dict[str, TopicMetadata], dict[str, tuple[str, FailureKind]]]:
    """(topics as another broker tells them, reasons to refuse those that have fewer partitions than were copied)

    Topics never lose partitions: the source was restored from an older copy, or a broker tells old metadata.
    """
    suspects = [name for name, view in topics.items() if len(view.partitions) < copied_counts.get(name, 0)]
    if not suspects:
        return {**topics}, {}
    source.mark_metadata_stale()
    confirmed = {name: view for name, view in source.metadata(suspects).topics.items() if view.id == topics[name].id}
    refused = {
        name: (
            f"cluster {link.source.name}: topic {name} has {len(view.partitions)} partitions, and had"
            f" {copied_counts[name]} when they were copied: it was restored from an older copy, and what it has lost is"
            f" only on cluster {link.destination.name}",
            FailureKind.DIVERGED,
        )
        for name, view in confirmed.items()
        if len(view.partitions) < copied_counts[name]
    }
    return {**topics, **confirmed}, refused


def list_copied_source_ids(link: MirrorLink, state: State) -> dict[str, set[str]]:
    """Partitions without a copy are not counted: of a topic that was created anew wider they have the new id."""
    ids_by_topic = dict[str, set[str]]()
    for status in state.partitions.get(link.mirror.name, {}).values():
        if status.destination_topic_id:
            ids_by_topic.setdefault(status.partition.topic, set()).add(status.source_topic_id)
    return ids_by_topic


def check_recreated(
    link: MirrorLink, recorded: Collection[str], source: TopicMetadata
) -> tuple[str, FailureKind] | None:
    if not recorded or source.id in recorded:
        return None
    return (
        (
            f"cluster {link.source.name}: topic {source.name} was deleted and created anew under the same name (topic"
            f" id {source.id}, was {min(recorded)}), and the copy is of the old one: `mirrorbook mirror recover"
            f" {link.mirror.name} --topics {source.name}` shows what can be done"
        ),
        FailureKind.RECREATED,
    )


def find_accepted_topics(
    destination: ClusterClient, topics: Iterable[NewTopic]
) -> tuple[list[NewTopic], dict[str, dict[str, str]], dict[str, RemoteFault]]:
    """Topics with accepted settings; settings left out; topics that need those.

    Creates nothing. Leaves out topics refused otherwise.
    """
    wanted = {topic.name: topic for topic in topics}
    searches = {name: search_accepted(topic.configs) for name, topic in wanted.items()}
    trials = {name: next(search) for name, search in searches.items()}
    accepted_settings = dict[str, AcceptedSettings]()
    while trials:
        _, faults = validate_topics(destination, [replace(wanted[n], configs=trial) for n, trial in trials.items()])
        for name in list(trials):
            fault = faults.get(name)
            try:
                trials[name] = searches[name].send(None if fault is None else str(fault))
            except StopIteration as end:
                del trials[name]
                if end.value is not None:
                    accepted_settings[name] = end.value
    effective, _ = validate_topics(
        destination, [replace(wanted[n], configs=settings.configs) for n, settings in accepted_settings.items()]
    )
    accepted, without, faults = list[NewTopic](), dict[str, dict[str, str]](), dict[str, RemoteFault]()
    for name, settings in accepted_settings.items():
        without[name] = dict(settings.refused)
        harm = find_harmful_refusals(wanted[name].configs, settings.refused, effective.get(name, {}))
        if harm:
            faults[name] = to_setting_error(destination, name, wanted[name].configs, settings.refused, harm)
        else:
            accepted.append(replace(wanted[name], configs=settings.configs))
    return accepted, without, faults


def find_unstageable(
    destination: ClusterClient, topics: Iterable[NewTopic], staged: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Creates nothing. Brokers ask the policy for changed settings, too."""
    by_name = {topic.name: topic for topic in topics if staged.get(topic.name)}

    def validate(trials: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        new = [replace(by_name[n], configs={**by_name[n].configs, **configs}) for n, configs in trials.items()]
        _, faults = validate_topics(destination, new)
        return {name: str(error) for name, error in faults.items() if isinstance(error, SettingRefused)}

    suspects, refused = validate({name: staged[name] for name in by_name}), dict[str, dict[str, str]]()
    for key in sorted({key for name in suspects for key in staged[name]}):
        for name, why in validate({n: {key: staged[n][key]} for n in suspects if key in staged[n]}).items():
            refused.setdefault(name, {})[key] = why
    return refused


def to_setting_error(
    destination: ClusterClient,
    topic: str,
    wanted: Mapping[str, str | None],
    refused: Mapping[str, str],
    harm: Mapping[str, str],
) -> RemoteFault:
    texts = "; ".join(
        f"{key}={wanted[key]} is refused ({refused[key]}), and {value} would hold" for key, value in harm.items()
    )
    return SettingRefused(
        f"cluster {destination.name}, {topic}: a copy could lose or change records without an error: {texts}; let "
        "the cluster accept this setting, or leave the topic out: `mirrorbook mirror change`"
    )


class TopicConflicts:
    """Conflicts of topics that are not recorded as the mirror's."""

    def __init__(
        self, link: MirrorLink, state: State, destination: ClusterClient, views: Collection[TopicMetadata]
    ) -> None:
        self._mirror, self._destination = link.mirror.name, destination
        names = {view.name for view in views}
        self._recorded_by_mirrors: dict[str, list[tuple[MirrorName, str]]] = {}
        for mirror, statuses in state.partitions.items() if names else ():
            # Without an id nothing was copied: the topic that is there was never the mirror's.
            ids = dict.fromkeys(
                (s.partition.topic, s.destination_topic_id) for s in statuses.values() if s.destination_topic_id
            )
            for topic, topic_id in ids:
                if topic in names:
                    self._recorded_by_mirrors.setdefault(topic, []).append((mirror, topic_id))
        self._contents = _count_records(destination, [view for view in views if self._check_record(view) is None])

    def find_conflict(self, topic: TopicMetadata) -> tuple[str, FailureKind] | None:
        return self._check_record(topic) or self._check_contents(topic)

    def _check_record(self, topic: TopicMetadata) -> tuple[str, FailureKind] | None:
        topic_text = _format_topic(self._destination, topic)
        for mirror, recorded in self._recorded_by_mirrors.get(topic.name, ()):
            if mirror == self._mirror:
                return (
                    (
                        f"{topic_text} was deleted and created anew (id {topic.id}, recorded {recorded}): "
                        f"`mirrorbook mirror recover {mirror} --topics {topic.name}` shows what can be done"
                    ),
                    FailureKind.REPLACED,
                )
            if recorded == topic.id:
                return (
                    f"{topic_text} belongs to mirror {mirror}: {EXCLUDE_ADVICE} from one of the two",
                    FailureKind.OCCUPIED,
                )
        return None

    def _check_contents(self, topic: TopicMetadata) -> tuple[str, FailureKind] | None:
        topic_text, contents = _format_topic(self._destination, topic), self._contents[topic.name]
        if isinstance(contents, MirrorError):
            text = f"{topic_text} is not this mirror's, and whether it is empty could not be seen: {contents}"
            return text, FailureKind.REFUSED  # retried: a leader may be away for a moment
        records, ends = contents
        if ends:
            return (
                (
                    f"{topic_text} already holds {records} records that this mirror did not write "
                    f"(log ends add up to {ends}): delete or rename it, or {EXCLUDE_ADVICE} from the mirror"
                ),
                FailureKind.OCCUPIED,
            )
        return None


def _format_topic(destination: ClusterClient, topic: TopicMetadata) -> str:
    return f"destination topic {topic.name} on cluster {destination.name}"


def _count_records(
    destination: ClusterClient, views: Collection[TopicMetadata]
) -> dict[str, tuple[int, int] | MirrorError]:
    """Records and summed log ends, or why unknown. Waits once for all."""
    partitions = [Partition(view.name, index) for view in views for index in view.partitions]
    try:
        ends, starts = list_offset_points(destination, partitions, [OffsetPoint.LOG_END, OffsetPoint.START]).values()
    except MirrorError as error:
        return {**dict.fromkeys((view.name for view in views), error), **_count_visible_records(destination, views)}
    contents = dict[str, tuple[int, int] | MirrorError]()
    for view in views:
        topic_partitions = [Partition(view.name, index) for index in view.partitions]
        contents[view.name] = (
            sum(ends[p] - starts[p] for p in topic_partitions),
            sum(ends[p] for p in topic_partitions),
        )
    return contents


def _count_visible_records(
    destination: ClusterClient, views: Collection[TopicMetadata]
) -> dict[str, tuple[int, int] | MirrorError]:
    partitions = [Partition(view.name, index) for view in views for index in view.partitions]
    try:
        led = list_known_offsets(destination, partitions, OffsetPoint.LOG_END).keys()
    except MirrorError:
        return {}
    visible = [view for view in views if all(Partition(view.name, index) in led for index in view.partitions)]
    return _count_records(destination, visible) if len(visible) < len(views) else {}
