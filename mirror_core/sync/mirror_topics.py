"""Creates, adopts, widens and configures mirror topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from mirror_core.decide.filters import SettingFilter, build_setting_filter, build_topic_filter
from mirror_core.decide.topic_settings import (
    MIRROR_HELD_KEYS,
    NEVER_COPIED_KEYS,
    RETENTION_PROMISE_KEYS,
    UNKNOWN_SETTING,
    add_source_defaults,
    build_wanted_configs,
    choose_replication_factor,
    diff_configs,
    find_harmful_refusals,
    keep_known,
    keep_raised_limit,
    list_lower_limits,
    list_staged_settings,
    list_unknown_settings,
    parse_replication_factor,
)
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.topic_existence import describe_denied_error
from mirror_core.kafka.topics import (
    NewTopic,
    TopicConfigs,
    create_partitions,
    create_topics,
    describe_available_configs,
    describe_configs,
    fetch_default_configs,
    find_max_replicas,
    resolve_default_replicas,
    try_alter_configs,
    validate_topics,
)
from mirror_core.model.errors import MissingPermission, RemoteFault, SettingRefused
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import ACTIVE_TOPIC
from mirror_core.model.sync_state import ConfigSync, DriftRow, SyncAction, SyncCategory, TopicSettings
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.sync.circle_search import refuse_topics_in_circles
from mirror_core.sync.topic_compaction import choose_compaction, find_lagging_topics
from mirror_core.sync.topic_errors import (
    TopicConflicts,
    check_narrowed_topics,
    check_recreated,
    check_width,
    count_copied_partitions,
    describe_visible_configs,
    find_accepted_topics,
    find_unstageable,
    list_copied_source_ids,
    raise_if_all_denied,
    run_for_each_topic,
    to_failure_kind,
    to_setting_error,
)

_CATCH_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TopicPlacement:
    ready: Mapping[str, TopicMetadata]
    """May be copied into."""
    rows: tuple[DriftRow, ...]
    refused: Mapping[str, str]
    """With reason and remedy. Of a topic that is also ready: why it has fewer partitions than the source's."""
    failure_kinds: Mapping[str, FailureKind] = field(default_factory=dict)
    refused_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Topic -> setting -> reason."""
    unstageable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Promotion's settings. Empty unless in a dry run."""


def list_mirror_topics(link: MirrorLink, source: ClusterClient) -> dict[str, TopicMetadata]:
    wanted = build_topic_filter(link.mirror)
    return {name: view for name, view in source.metadata().topics.items() if name in wanted and not view.internal}


def list_stopped_topics(link: MirrorLink, state: State) -> frozenset[str]:
    """Given to the applications."""
    statuses = state.partitions.get(link.mirror.name, {}).values()
    return frozenset(s.partition.topic for s in statuses if s.state is PartitionState.STOPPED)


def create_missing_topics(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Mapping[str, TopicMetadata],
    *,
    dry_run: bool = False,
    total: int | None = None,
) -> TopicPlacement:
    """As wide as the source's.

    May be repeated after a crash anywhere. An unrecorded existing topic is adopted when empty, else refused by name.
    `total`: number of all topics; a right missing for all raises.
    """
    stopped, recorded = list_stopped_topics(link, state), _list_recorded(state, link)
    source_ids, copied_counts = list_copied_source_ids(link, state), count_copied_partitions(link, state)
    topics = {name: view for name, view in topics.items() if name not in stopped}
    topics, narrowed = check_narrowed_topics(link, source, topics, copied_counts)
    total = len(topics) if total is None else total
    in_circles = refuse_topics_in_circles(link, topics.keys() - _list_copied_names(state, link))
    topics = {name: view for name, view in topics.items() if name not in in_circles}
    destination_view = destination.metadata(topics)
    denied = {name: describe_denied_error(destination, [name]) for name in topics if name in destination_view.denied}
    raise_if_all_denied(denied, total)
    topics = {name: view for name, view in topics.items() if name not in denied}
    present = destination_view.topics
    unknown = [name for name in topics if name not in present or (name, present[name].id) not in recorded]
    # Not of all topics: the data plane asks at each plan.
    setting_filter = build_setting_filter(link.mirror)
    settings, hidden = _describe_listed(source, unknown, total=total)
    settings = {name: replace(s, overrides=setting_filter.select(s.overrides)) for name, s in settings.items()}
    known_keys = list_known_settings(destination, unknown) if unknown else frozenset()
    factors = {
        n: parse_replication_factor(link.mirror.replication_factor, t.replication_factor)
        for n, t in topics.items()
        if n not in present
    }
    factors = resolve_default_replicas(destination, factors)
    max_replicas = find_max_replicas(destination, factors)
    conflicts = TopicConflicts(link, state, destination, [present[name] for name in unknown if name in present])
    refused = in_circles | {name: str(error) for name, error in denied.items()}
    kinds = dict.fromkeys(in_circles, FailureKind.CIRCLE) | {
        name: to_failure_kind(error) for name, error in denied.items()
    }
    rows = [to_topic_row(name, "", "", SyncAction.REFUSE, why) for name, why in sorted(refused.items())]
    new, adopted, wider = list[NewTopic](), dict[str, dict[str, str | None]](), dict[str, int]()
    for name, view in sorted(topics.items()):
        destination_topic = present.get(name)
        width = len(view.partitions)
        if name in hidden:
            refused[name], kinds[name] = str(hidden[name]), to_failure_kind(hidden[name])
            width_text = f"{len(destination_topic.partitions)} partitions" if destination_topic else ""
            rows.append(to_topic_row(name, f"{width} partitions", width_text, SyncAction.REFUSE, refused[name]))
            continue
        if name in unknown and name not in settings:
            refused[name] = f"topic {name} was deleted on cluster {source.name} in this moment"
            kinds[name] = FailureKind.GONE
            rows.append(
                to_topic_row(
                    name,
                    "",
                    f"{len(destination_topic.partitions)} partitions" if destination_topic else "",
                    SyncAction.SKIP,
                    refused[name],
                )
            )
            continue
        if destination_topic is None:
            factor = choose_replication_factor(factors[name], max_replicas)
            configs = keep_known(
                known_keys, build_wanted_configs(settings[name].overrides, settings[name].effective, factor)
            )
            new.append(NewTopic(name=name, partitions=width, replication_factor=factor, configs=configs))
            rows.append(to_topic_row(name, f"{width} partitions", "", SyncAction.CREATE))
            continue
        is_recorded = (name, destination_topic.id) in recorded
        # Its width may differ for the same reason: that remedy comes first.
        conflict = (
            check_recreated(link, source_ids.get(name, ()), view) or narrowed.get(name)
            if is_recorded
            else conflicts.find_conflict(destination_topic)
        )
        problem = (
            conflict if is_recorded and conflict else check_width(destination, destination_topic, width) or conflict
        )
        if problem:
            refused[name], kinds[name] = problem
            reason = refused[name]
            rows.append(
                to_topic_row(
                    name,
                    f"{width} partitions",
                    f"{len(destination_topic.partitions)} partitions",
                    SyncAction.REFUSE,
                    reason,
                )
            )
            continue
        if not is_recorded:
            wanted = build_wanted_configs(
                settings[name].overrides, settings[name].effective, destination_topic.replication_factor
            )
            adopted[name] = diff_configs(keep_known(known_keys, wanted), {})
            rows.append(to_topic_row(name, f"{width} partitions", "empty topic, not ours", SyncAction.ADOPT))
        if len(destination_topic.partitions) < width:
            wider[name] = width
            rows.append(
                to_topic_row(
                    name, f"{width} partitions", f"{len(destination_topic.partitions)} partitions", SyncAction.WIDEN
                )
            )
    narrow, unstageable = set[str](), dict[str, dict[str, str]]()
    if dry_run:
        replicas = {topic.name: topic.replication_factor for topic in new if topic.replication_factor > 0}
        replicas |= {name: present[name].replication_factor for name in adopted}
        staged = {
            n: list_staged_settings(settings[n].overrides, {}, count, known_keys) for n, count in replicas.items()
        }
        without, faults, unstageable = _validate_placement(destination, new, adopted, staged)
        refused |= {name: str(error) for name, error in faults.items()}
        kinds |= {name: to_failure_kind(error) for name, error in faults.items()}
        rows = [_to_outcome_row(row, refused) if row.subject in faults else row for row in rows]
    else:
        existed, without, faults = _apply_placement(destination, new, adopted, total)
        unwidened = run_for_each_topic(
            lambda names: create_partitions(destination, {name: wider[name] for name in names}),
            sorted(wider.keys() - faults.keys()),
        )
        narrow, faults = {*unwidened}, {**faults, **unwidened}
        refused |= {name: str(error) for name, error in faults.items()}
        kinds |= {name: to_failure_kind(error) for name, error in faults.items()}
        rows = [_to_outcome_row(row, refused) for row in rows if row.subject not in existed]
        if existed:
            # Created just now: by the data plane, by us (a lost response), or by others.
            retried = {name: topics[name] for name in existed}
            retry = create_missing_topics(link, state, source, destination, retried, total=total)
            rows, refused, kinds = [*rows, *retry.rows], {**refused, **retry.refused}, {**kinds, **retry.failure_kinds}
            narrow |= retry.ready.keys() & retry.refused.keys()
        if new or adopted or wider:
            present = destination.metadata(topics).topics
    ready = {name: view for name, view in present.items() if name not in refused or name in narrow}
    placed = {*adopted, *(topic.name for topic in new)}
    unknown_settings = {name: list_unknown_settings(known_keys, settings[name].overrides) for name in placed}
    without = {name: {**unknown_settings.get(name, {}), **without.get(name, {})} for name in {*placed, *without}}
    coded_rows = (
        msgspec.structs.replace(row, code=kinds[row.subject]) if row.action is SyncAction.REFUSE else row
        for row in rows
    )
    without = {name: reasons for name, reasons in without.items() if reasons}
    return TopicPlacement(ready, tuple(coded_rows), refused, kinds, without, unstageable)


def _apply_placement(
    destination: ClusterClient,
    new: Iterable[NewTopic],
    adopted: Mapping[str, Mapping[str, str | None]],
    total: int,
) -> tuple[set[str], dict[str, dict[str, str]], dict[str, RemoteFault]]:
    existed = set[str]()
    by_name = {topic.name: topic for topic in new}

    def create(names: Iterable[str]) -> dict[str, RemoteFault]:
        return run_for_each_topic(
            lambda ns: existed.update(create_topics(destination, [by_name[n] for n in ns])), names, total=total
        )

    faults = create(by_name)
    without = dict[str, dict[str, str]]()
    if suspects := [by_name[name] for name, error in faults.items() if isinstance(error, SettingRefused)]:
        accepted, without, unaccepted = find_accepted_topics(destination, suspects)
        by_name |= {topic.name: topic for topic in accepted}
        faults = {**{name: error for name, error in faults.items() if name not in without}, **unaccepted}
        faults |= create(topic.name for topic in accepted)
    left_out, unadopted = _adopt_topics(destination, adopted, validate_only=False, total=total)
    faults |= unadopted
    return existed, {**without, **left_out}, faults


def _validate_placement(
    destination: ClusterClient,
    new: Iterable[NewTopic],
    adopted: Mapping[str, Mapping[str, str | None]],
    staged: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault], dict[str, dict[str, str]]]:
    _, faults = validate_topics(destination, new)
    suspects = [topic for topic in new if isinstance(faults.get(topic.name), SettingRefused)]
    accepted, without, unaccepted = find_accepted_topics(destination, suspects)
    accepted += [topic for topic in new if topic.name not in faults]
    left_out, unadopted = _adopt_topics(destination, adopted, validate_only=True, total=0)
    faults = {**{name: error for name, error in faults.items() if name not in without}, **unaccepted, **unadopted}
    unset = _apply_or_validate(
        destination, {name: staged[name] for name in adopted.keys() - faults.keys()}, dry_run=True
    )
    unstageable = {
        name: {key: str(error) for key, error in errors.items() if isinstance(error, SettingRefused)}
        for name, errors in unset.items()
    } | find_unstageable(destination, accepted, staged)
    faults = {n: e for n, e in faults.items() if not isinstance(e, MissingPermission)}
    return {**without, **left_out}, faults, {name: reasons for name, reasons in unstageable.items() if reasons}


def _adopt_topics(
    destination: ClusterClient, adopted: Mapping[str, Mapping[str, str | None]], *, validate_only: bool, total: int
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault]]:
    try:
        refusals = apply_config_changes(destination, adopted, validate_only=validate_only)
    except MissingPermission as error:  # for each of these
        raise_if_all_denied(dict.fromkeys(adopted, error), total)
        return {}, dict.fromkeys(adopted, error)
    denied = {
        name: next(iter(topic_refusals.values()))
        for name, topic_refusals in refusals.items()
        if any(isinstance(error, MissingPermission) for error in topic_refusals.values())
    }
    raise_if_all_denied(denied, total)
    without = {
        n: {key: str(error) for key, error in topic_refusals.items()}
        for n, topic_refusals in refusals.items()
        if n not in denied
    }
    lower_limits = {
        name: {key: limit for key in topic_refusals for limit in list_lower_limits(key, adopted[name][key])}
        for name, topic_refusals in without.items()
    }
    unlowered = try_alter_configs(destination, lower_limits, validate_only=validate_only)
    without = {
        name: {k: why for k, why in reasons.items() if name in unlowered or k not in lower_limits[name]}
        for name, reasons in without.items()
    }
    current = describe_available_configs(destination, without)[0] if without else {}
    faults = dict[str, RemoteFault](denied)
    for name, topic_refusals in without.items():
        effective = current[name].effective if name in current else {}
        if harm := find_harmful_refusals(adopted[name], topic_refusals, effective):
            faults[name] = to_setting_error(destination, name, adopted[name], topic_refusals, harm)
    return without, faults


def sync_configs(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Mapping[str, TopicMetadata],
    *,
    dry_run: bool,
) -> ConfigSync:
    (source_configs, hidden), (destination_configs, hidden_destination) = (
        describe_visible_configs(side, topics, len(topics)) for side in (source, destination)
    )
    setting_filter = build_setting_filter(link.mirror)
    defaults = fetch_default_configs(destination, [ACTIVE_TOPIC, STATE_TOPIC])
    known_keys, both = frozenset(defaults), sorted(set(source_configs) & set(destination_configs))
    promoted = {
        name: replace(source, overrides=add_source_defaults(source.overrides, source.effective, defaults))
        for name, source in source_configs.items()
    }
    wait_s, configs = 0.0 if dry_run else _CATCH_UP_S, {n: (source_configs[n], destination_configs[n]) for n in both}
    compaction = choose_compaction(
        link,
        state,
        destination,
        configs,
        lambda new: find_lagging_topics(source, destination, {name: topics[name] for name in new}, wait_s),
    )
    cleaned = compaction.cleaned
    new_settings, changes = list[TopicSettings](), dict[str, Mapping[str, str | None]]()
    rows = [
        to_topic_row(name, "", "", SyncAction.SKIP, str(error), part=SyncCategory.CONFIGS)
        for name, error in sorted({**hidden_destination, **hidden}.items())
    ]
    for name in both:
        factor = topics[name].replication_factor
        wanted = build_wanted_configs(
            setting_filter.select(source_configs[name].overrides),
            source_configs[name].effective,
            factor,
            is_cleaned=name in cleaned,
        )
        wanted = keep_raised_limit(wanted, destination_configs[name].effective)
        current = setting_filter.select(destination_configs[name].overrides)
        changes[name] = diff_configs(keep_known(known_keys, wanted), current)
    outcome = _apply_or_validate(destination, changes, dry_run=dry_run)
    staged = {
        name: list_staged_settings(
            promoted[name].overrides, destination_configs[name].overrides, topics[name].replication_factor, known_keys
        )
        for name in both
    }
    unstageable = _apply_or_validate(destination, staged, dry_run=True)
    promotion_refusals = {
        name: _list_promotion_refusals(
            setting_filter.select(promoted[name].overrides),
            known_keys,
            outcome.get(name, {}),
            unstageable.get(name, {}),
        )
        for name in both
    }
    for name in both:
        overrides, before = source_configs[name].overrides, destination_configs[name].overrides
        rows += to_change_rows(name, changes[name], overrides, before, outcome.get(name, {}), dry_run=dry_run)
        refused, held = promotion_refusals[name], compaction.held.get(name, "")
        waiting = promoted[name], destination_configs[name], staged[name]
        rows += _to_waiting_rows(name, *waiting, setting_filter, refused, held=held)
        settings = TopicSettings(
            mirror=link.mirror.name,
            topic=name,
            overrides=promoted[name].overrides,
            compacted_since_ms=compaction.since_ms[name],
            refused=promotion_refusals[name],
        )
        if settings != state.topic_settings.get((link.mirror.name, name)):
            new_settings.append(settings)
    return ConfigSync(rows=tuple(rows), new_settings=tuple(new_settings), refused=outcome)


def apply_config_changes(
    destination: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, dict[str, RemoteFault]]:
    """Made one by one where a topic's changes are refused as a whole."""
    refused, remaining = dict[str, dict[str, RemoteFault]](), dict[str, dict[str, str | None]]()
    for topic, error in try_alter_configs(destination, changes, validate_only=validate_only).items():
        denied = isinstance(error, MissingPermission)  # for each setting of this topic
        refused[topic] = dict.fromkeys(changes[topic], error) if denied else {}
        if not denied:
            remaining[topic] = dict(changes[topic])
    while remaining:
        one_each = {topic: dict([settings_left.popitem()]) for topic, settings_left in remaining.items()}
        for topic, error in try_alter_configs(destination, one_each, validate_only=validate_only).items():
            refused[topic] |= dict.fromkeys(one_each[topic], error)
        remaining = {topic: settings_left for topic, settings_left in remaining.items() if settings_left}
    return {topic: settings_left for topic, settings_left in refused.items() if settings_left}


def to_change_rows(
    topic: str,
    changes: Mapping[str, str | None],
    source: Mapping[str, str],
    before: Mapping[str, str],
    refused: Mapping[str, RemoteFault],
    *,
    dry_run: bool,
) -> list[DriftRow]:
    return [
        DriftRow(
            part=SyncCategory.CONFIGS,
            subject=f"{topic}: {key}",
            source=source.get(key, ""),
            destination=before.get(key, ""),
            action=SyncAction.SKIP if key in refused else SyncAction.REMOVE if value is None else SyncAction.SET,
            reason=f"left out: {refused[key]}" if key in refused else _format_need(key, value, source.get(key)),
            done=not dry_run and key not in refused,
        )
        for key, value in sorted(changes.items())
    ]


def _apply_or_validate(
    destination: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, dry_run: bool
) -> dict[str, dict[str, RemoteFault]]:
    try:
        return apply_config_changes(destination, changes, validate_only=dry_run)
    except MissingPermission:
        if not dry_run:
            raise
        return {}  # `cluster check` reports missing rights


def _format_need(key: str, value: str | None, source: str | None) -> str:
    is_needed = key in MIRROR_HELD_KEYS or (key in RETENTION_PROMISE_KEYS and value is not None)
    return f"mirror needs {value}" if is_needed and value != source else ""


def list_known_settings(client: ClusterClient, topics: Iterable[str]) -> frozenset[str]:
    """Empty, meaning all, when no topic shows them."""
    described = describe_configs(client, [STATE_TOPIC]) or describe_configs(client, topics)
    return frozenset(key for configs in described.values() for key in configs.effective)


def _list_promotion_refusals(
    overrides: Mapping[str, str],
    known_keys: frozenset[str],
    unset: Mapping[str, RemoteFault],
    unstageable: Mapping[str, RemoteFault],
) -> dict[str, str]:
    copied = {key: error for key, error in unset.items() if key in overrides.keys() - MIRROR_HELD_KEYS}
    refused = {k: str(error) for k, error in {**copied, **unstageable}.items() if isinstance(error, SettingRefused)}
    return {**list_unknown_settings(known_keys, overrides), **refused}


def _to_waiting_rows(
    topic: str,
    source: TopicConfigs,
    destination: TopicConfigs,
    staged: Mapping[str, str],
    setting_filter: SettingFilter,
    refused: Mapping[str, str],
    *,
    held: str,
) -> list[DriftRow]:
    rows = []
    for key, value in sorted(source.overrides.items()):
        destination_value = destination.overrides.get(key, "")
        if key in NEVER_COPIED_KEYS:
            action, reason = SyncAction.KEEP, "belongs to the cluster: never copied"
        elif key not in setting_filter:
            action, reason = SyncAction.KEEP, "the mirror does not sync it (--exclude-settings)"
        elif refused.get(key) == UNKNOWN_SETTING:
            action, reason = SyncAction.SKIP, UNKNOWN_SETTING
        elif key in staged and key in refused:
            action, reason = SyncAction.SKIP, f"a promotion cannot set {staged[key]}: {refused[key]}"
        elif key in staged:
            action, reason = SyncAction.STAGE, f"set to {staged[key]} at promotion"
            if held and key == "cleanup.policy":
                reason = held
        else:
            continue
        rows.append(
            DriftRow(
                part=SyncCategory.CONFIGS,
                subject=f"{topic}: {key}",
                source=value,
                destination=destination_value,
                action=action,
                reason=reason,
                done=action is SyncAction.STAGE,
            )
        )
    return rows


def _describe_listed(
    source: ClusterClient, topics: Collection[str], *, total: int
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    """A broker that does not know a topic yet is queried again."""
    deadline = time.monotonic() + source.timeout_s
    while True:
        configs, hidden = describe_visible_configs(source, topics, total)
        missing = [name for name in topics if name not in configs and name not in hidden]
        if not missing or not source.metadata(missing).topics or time.monotonic() > deadline:
            return configs, hidden
        time.sleep(0.05)


def _list_recorded(state: State, link: MirrorLink) -> frozenset[tuple[str, str]]:
    statuses = state.partitions.get(link.mirror.name, {}).values()
    return frozenset((s.partition.topic, s.destination_topic_id) for s in statuses)


def _list_copied_names(state: State, link: MirrorLink) -> frozenset[str]:
    return frozenset(name for name, topic_id in _list_recorded(state, link) if topic_id)


def to_topic_row(
    name: str,
    source: str,
    destination: str,
    action: SyncAction,
    reason: str = "",
    part: SyncCategory = SyncCategory.TOPICS,
) -> DriftRow:
    return DriftRow(part=part, subject=name, source=source, destination=destination, action=action, reason=reason)


def _to_outcome_row(row: DriftRow, refused: Mapping[str, str]) -> DriftRow:
    if row.action is SyncAction.SKIP:
        return row
    if row.subject in refused:
        return msgspec.structs.replace(row, action=SyncAction.REFUSE, reason=refused[row.subject])
    return msgspec.structs.replace(row, done=True)
