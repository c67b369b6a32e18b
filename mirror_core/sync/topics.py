"""Creates, adopts, widens and configures mirror topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from mirror_core.decide.filters import topic_filter
from mirror_core.decide.topics import (
    HELD,
    NEVER,
    PROMISES,
    AcceptedSettings,
    cleans,
    config_changes,
    harmful_without,
    lower_limit,
    mirror_replication_factor,
    promotion_configs,
    search_accepted,
    wanted_configs,
    with_limit,
)
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.existing import hidden_among, undescribed
from mirror_core.kafka.topics import (
    NewTopic,
    TopicConfigs,
    create_partitions,
    create_topics,
    describe_configs,
    told_configs,
    try_alter_configs,
    validate_topics,
)
from mirror_core.model.drift import Action, DriftRow, Part, TopicSettings
from mirror_core.model.errors import MissingPermission, RemoteFault, SettingRefused
from mirror_core.model.mirror import FailureKind, Gaps, PartitionState
from mirror_core.state.link import Link
from mirror_core.state.records import TOPIC as STATE_TOPIC
from mirror_core.state.records import State
from mirror_core.sync.compaction import behind
from mirror_core.sync.mirror_circles import refuse_topics_in_circles
from mirror_core.sync.refusals import each, kind, raise_if_all_denied, told
from mirror_core.sync.strange import Strange, made_anew, recorded_source_ids, wider_than

UNKNOWN_SETTING: Final = "the destination's brokers do not know this setting"
_CATCH_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Placement:
    ready: Mapping[str, TopicView]
    """May be copied into."""
    rows: tuple[DriftRow, ...]
    refused: Mapping[str, str]
    """With reason and remedy."""
    kinds: Mapping[str, FailureKind] = field(default_factory=dict)
    refused_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Topic -> setting -> reason."""


def mirror_topics(link: Link, source: ClusterClient) -> dict[str, TopicView]:
    chosen = topic_filter(link.mirror)
    return {name: view for name, view in source.metadata().topics.items() if name in chosen and not view.internal}


def stopped_topics(link: Link, state: State) -> frozenset[str]:
    """Given to the applications."""
    statuses = state.partitions.get(link.mirror.name, {}).values()
    return frozenset(s.partition.topic for s in statuses if s.state is PartitionState.STOPPED)


def hidden_rows(link: Link, state: State, source: ClusterClient, listed: Collection[str]) -> list[DriftRow]:
    """DESCRIBE is denied: they are not gone."""
    mine = {p.topic for p in state.partitions.get(link.mirror.name, {})} - stopped_topics(link, state)
    unlisted = mine.difference(listed)
    denied = sorted(hidden_among(source, unlisted))
    return [_row(name, "", "", Action.REFUSE, str(undescribed(source, [name]))) for name in denied]


def left_out_rows(placement: Placement) -> list[DriftRow]:
    return [
        DriftRow(
            part=Part.CONFIGS,
            subject=f"{topic}: {key}",
            source="",
            destination="",
            action=Action.SKIP,
            reason=f"left out: {why}",
        )
        for topic, mine in sorted(placement.refused_settings.items())
        for key, why in sorted(mine.items())
        if topic not in placement.ready
    ]


def create_missing(
    link: Link,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Mapping[str, TopicView],
    *,
    dry_run: bool = False,
    of: int | None = None,
) -> Placement:
    """Create these topics as wide as the source's. May be repeated after a crash anywhere.

    An unrecorded existing topic is adopted when empty, else refused by name. `total`: number of all topics, if these
    are a part; a right missing for all raises.
    """
    stopped, recorded = stopped_topics(link, state), _recorded(state, link)
    source_ids = recorded_source_ids(link, state)
    topics = {name: view for name, view in topics.items() if name not in stopped}
    of = len(topics) if of is None else of
    in_circles = refuse_topics_in_circles(link, topics.keys() - _copied_names(state, link))
    topics = {name: view for name, view in topics.items() if name not in in_circles}
    view_there = destination.metadata(topics)
    denied = {name: undescribed(destination, [name]) for name in topics if name in view_there.denied}
    raise_if_all_denied(denied, of)
    topics = {name: view for name, view in topics.items() if name not in denied}
    present = view_there.topics
    unknown = [name for name in topics if name not in present or (name, present[name].id) not in recorded]
    settings, hidden = _settings(source, unknown, of=of)  # not of all topics: the data plane asks at each plan
    known = known_settings(destination, unknown) if unknown else frozenset()
    brokers = len(destination.brokers())
    strange = Strange(link, state, destination, [present[name] for name in unknown if name in present])
    refused = in_circles | {name: str(error) for name, error in denied.items()}
    kinds = dict.fromkeys(in_circles, FailureKind.OCCUPIED) | {name: kind(error) for name, error in denied.items()}
    rows = [_row(name, "", "", Action.REFUSE, why) for name, why in sorted(refused.items())]
    new, adopted, wider = list[NewTopic](), dict[str, dict[str, str | None]](), dict[str, int]()
    for name, view in sorted(topics.items()):
        there = present.get(name)
        width = len(view.partitions)
        if name in hidden:
            refused[name], kinds[name] = str(hidden[name]), kind(hidden[name])
            here = f"{len(there.partitions)} partitions" if there else ""
            rows.append(_row(name, f"{width} partitions", here, Action.REFUSE, refused[name]))
            continue
        if name in unknown and name not in settings:
            refused[name] = f"topic {name} was deleted on cluster {source.name} in this moment"
            kinds[name] = FailureKind.GONE
            rows.append(
                _row(name, "", f"{len(there.partitions)} partitions" if there else "", Action.SKIP, refused[name])
            )
            continue
        if there is None:
            factor = mirror_replication_factor(view.replication_factor, brokers)
            configs = _only(known, wanted_configs(settings[name].overrides, settings[name].effective, factor))
            new.append(NewTopic(name=name, partitions=width, replication_factor=factor, configs=configs))
            rows.append(_row(name, f"{width} partitions", "", Action.CREATE))
            continue
        ours = (name, there.id) in recorded
        # Its width may differ for the same reason: that remedy comes first.
        anew = made_anew(link, source_ids.get(name, ()), view) if ours else strange.problem(there)
        problem = anew if ours and anew else wider_than(destination, there, width) or anew
        if problem:
            refused[name], kinds[name] = problem
            words = refused[name]
            rows.append(_row(name, f"{width} partitions", f"{len(there.partitions)} partitions", Action.REFUSE, words))
            continue
        if not ours:
            wanted = wanted_configs(settings[name].overrides, settings[name].effective, there.replication_factor)
            adopted[name] = config_changes(_only(known, wanted), {})
            rows.append(_row(name, f"{width} partitions", "empty topic, not ours", Action.ADOPT))
        if len(there.partitions) < width:
            wider[name] = width
            rows.append(_row(name, f"{width} partitions", f"{len(there.partitions)} partitions", Action.WIDEN))
    if dry_run:
        without, faults = _validate(destination, new, adopted)
        refused |= {name: str(error) for name, error in faults.items()}
        kinds |= {name: kind(error) for name, error in faults.items()}
        rows = [_outcome(row, refused) if row.subject in faults else row for row in rows]
    else:
        existed, without, faults = _apply(destination, new, adopted, wider, of)
        refused |= {name: str(error) for name, error in faults.items()}
        kinds |= {name: kind(error) for name, error in faults.items()}
        rows = [_outcome(row, refused) for row in rows if row.subject not in existed]
        if existed:
            # Created just now: by the data plane, by us (a lost response), or by others.
            some = {name: topics[name] for name in existed}
            again = create_missing(link, state, source, destination, some, of=of)
            rows, refused, kinds = [*rows, *again.rows], {**refused, **again.refused}, {**kinds, **again.kinds}
        if new or adopted or wider:
            present = destination.metadata(topics).topics
    ready = {name: view for name, view in present.items() if name not in refused}
    placed = {*adopted, *(topic.name for topic in new)}
    unknown_settings = {name: _unknown_settings(known, settings[name].overrides) for name in placed}
    without = {name: {**unknown_settings.get(name, {}), **without.get(name, {})} for name in {*placed, *without}}
    return Placement(ready, tuple(rows), refused, kinds, {name: mine for name, mine in without.items() if mine})


def _apply(
    destination: ClusterClient,
    new: Iterable[NewTopic],
    adopted: Mapping[str, Mapping[str, str | None]],
    wider: Mapping[str, int],
    of: int,
) -> tuple[set[str], dict[str, dict[str, str]], dict[str, RemoteFault]]:
    existed = set[str]()
    by_name = {topic.name: topic for topic in new}

    def create(names: Iterable[str]) -> dict[str, RemoteFault]:
        return each(lambda ns: existed.update(create_topics(destination, [by_name[n] for n in ns])), names, of=of)

    faults = create(by_name)
    without = dict[str, dict[str, str]]()
    if suspects := [by_name[name] for name, error in faults.items() if isinstance(error, SettingRefused)]:
        accepted, without, unaccepted = accepted_topics(destination, suspects)
        by_name |= {topic.name: topic for topic in accepted}
        faults = {**{name: error for name, error in faults.items() if name not in without}, **unaccepted}
        faults |= create(topic.name for topic in accepted)
    left_out, unadopted = _adopt(destination, adopted, validate_only=False, of=of)
    faults |= unadopted
    faults |= each(lambda ns: create_partitions(destination, {n: wider[n] for n in ns}), wider, of=of)
    return existed, {**without, **left_out}, faults


def _validate(
    destination: ClusterClient, new: Iterable[NewTopic], adopted: Mapping[str, Mapping[str, str | None]]
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault]]:
    """`cluster check` reports missing rights."""
    _, faults = validate_topics(destination, new)
    suspects = [topic for topic in new if isinstance(faults.get(topic.name), SettingRefused)]
    _, without, unaccepted = accepted_topics(destination, suspects)
    left_out, unadopted = _adopt(destination, adopted, validate_only=True, of=0)
    faults = {**{name: error for name, error in faults.items() if name not in without}, **unaccepted, **unadopted}
    return {**without, **left_out}, {n: e for n, e in faults.items() if not isinstance(e, MissingPermission)}


def accepted_topics(
    destination: ClusterClient, topics: Iterable[NewTopic]
) -> tuple[list[NewTopic], dict[str, dict[str, str]], dict[str, RemoteFault]]:
    """Topics with accepted settings; settings left out; topics that need those. Creates nothing.

    Topics refused for another reason are in none.
    """
    wanted = {topic.name: topic for topic in topics}
    searches = {name: search_accepted(topic.configs) for name, topic in wanted.items()}
    trials = {name: next(search) for name, search in searches.items()}
    found = dict[str, AcceptedSettings]()
    while trials:
        _, faults = validate_topics(destination, [replace(wanted[n], configs=trial) for n, trial in trials.items()])
        for name in list(trials):
            fault = faults.get(name)
            try:
                trials[name] = searches[name].send(None if fault is None else str(fault))
            except StopIteration as end:
                del trials[name]
                if end.value is not None:
                    found[name] = end.value
    effective, _ = validate_topics(destination, [replace(wanted[n], configs=one.configs) for n, one in found.items()])
    accepted, without, faults = list[NewTopic](), dict[str, dict[str, str]](), dict[str, RemoteFault]()
    for name, one in found.items():
        without[name] = dict(one.refused)
        harm = harmful_without(wanted[name].configs, one.refused, effective.get(name, {}))
        if harm:
            faults[name] = _cannot_do_without(destination, name, wanted[name].configs, one.refused, harm)
        else:
            accepted.append(replace(wanted[name], configs=one.configs))
    return accepted, without, faults


def _adopt(
    destination: ClusterClient, adopted: Mapping[str, Mapping[str, str | None]], *, validate_only: bool, of: int
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault]]:
    try:
        refusals = apply_changes(destination, adopted, validate_only=validate_only)
    except MissingPermission as error:  # for each of these
        raise_if_all_denied(dict.fromkeys(adopted, error), of)
        return {}, dict.fromkeys(adopted, error)
    denied = {
        name: next(iter(mine.values()))
        for name, mine in refusals.items()
        if any(isinstance(error, MissingPermission) for error in mine.values())
    }
    raise_if_all_denied(denied, of)
    without = {n: {key: str(error) for key, error in mine.items()} for n, mine in refusals.items() if n not in denied}
    lower = {
        name: {key: limit for key in mine for limit in lower_limit(key, adopted[name][key])}
        for name, mine in without.items()
    }
    try_alter_configs(destination, lower, validate_only=validate_only)
    current = told_configs(destination, without)[0] if without else {}
    faults = dict[str, RemoteFault](denied)
    for name, mine in without.items():
        effective = current[name].effective if name in current else {}
        if harm := harmful_without(adopted[name], mine, effective):
            faults[name] = _cannot_do_without(destination, name, adopted[name], mine, harm)
    return without, faults


def _cannot_do_without(
    destination: ClusterClient,
    topic: str,
    wanted: Mapping[str, str | None],
    refused: Mapping[str, str],
    harm: Mapping[str, str],
) -> RemoteFault:
    each_of = "; ".join(
        f"{key}={wanted[key]} is refused ({refused[key]}), and {value} would hold" for key, value in harm.items()
    )
    return SettingRefused(
        f"cluster {destination.name}, {topic}: a copy could lose or change records without an error: {each_of}; let "
        "the cluster accept this setting, or exclude the topic"
    )


def sync_configs(
    link: Link,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Mapping[str, TopicView],
    *,
    dry_run: bool,
) -> tuple[list[DriftRow], list[TopicSettings]]:
    """Returns also settings to record for promotion."""
    (theirs, hidden), (ours, hidden_here) = (told(side, topics, len(topics)) for side in (source, destination))
    known = known_settings(destination, topics)
    cleaned = {name for name in set(theirs) & set(ours) if cleans(theirs[name].effective)}
    if link.mirror.gaps is Gaps.HIDDEN:
        cleaned.clear()
    new = {name: topics[name] for name in cleaned if not cleans(ours[name].effective)}
    cleaned -= behind(source, destination, new, 0.0 if dry_run else _CATCH_UP_S)
    remember, changes = list[TopicSettings](), dict[str, Mapping[str, str | None]]()
    rows = [
        DriftRow(part=Part.CONFIGS, subject=name, source="", destination="", action=Action.SKIP, reason=str(error))
        for name, error in sorted({**hidden_here, **hidden}.items())
    ]
    both = sorted(set(theirs) & set(ours))
    for name in both:
        factor = topics[name].replication_factor
        wanted = wanted_configs(theirs[name].overrides, theirs[name].effective, factor, cleaned=name in cleaned)
        wanted = with_limit(wanted, ours[name].effective)
        changes[name] = config_changes(_only(known, wanted), ours[name].overrides)
    outcome = _refused_settings(destination, changes, dry_run=dry_run)
    for name in both:
        overrides, before = theirs[name].overrides, ours[name].overrides
        rows += change_rows(name, changes[name], overrides, before, outcome.get(name, {}), dry_run=dry_run)
        rows += _waiting_rows(name, theirs[name], ours[name], topics[name].replication_factor, known)
        seen = state.settings.get((link.mirror.name, name))
        if seen is None or dict(seen.overrides) != dict(overrides):
            remember.append(TopicSettings(mirror=link.mirror.name, topic=name, overrides=dict(overrides)))
    return rows, remember


def apply_changes(
    destination: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, dict[str, RemoteFault]]:
    """Where a topic's changes are refused as a whole, they are made one by one."""
    refused, rest = dict[str, dict[str, RemoteFault]](), dict[str, dict[str, str | None]]()
    for topic, error in try_alter_configs(destination, changes, validate_only=validate_only).items():
        denied = isinstance(error, MissingPermission)  # for each setting of this topic
        refused[topic] = dict.fromkeys(changes[topic], error) if denied else {}
        if not denied:
            rest[topic] = dict(changes[topic])
    while rest:
        one_each = {topic: dict([mine.popitem()]) for topic, mine in rest.items()}
        for topic, error in try_alter_configs(destination, one_each, validate_only=validate_only).items():
            refused[topic] |= dict.fromkeys(one_each[topic], error)
        rest = {topic: mine for topic, mine in rest.items() if mine}
    return {topic: mine for topic, mine in refused.items() if mine}


def change_rows(
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
            part=Part.CONFIGS,
            subject=f"{topic}: {key}",
            source=source.get(key, ""),
            destination=before.get(key, ""),
            action=Action.SKIP if key in refused else Action.REMOVE if value is None else Action.SET,
            reason=f"left out: {refused[key]}" if key in refused else _needed(key, value, source.get(key)),
            done=not dry_run and key not in refused,
        )
        for key, value in sorted(changes.items())
    ]


def _refused_settings(
    destination: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, dry_run: bool
) -> dict[str, dict[str, RemoteFault]]:
    try:
        return apply_changes(destination, changes, validate_only=dry_run)
    except MissingPermission:
        if not dry_run:
            raise
        return {}  # `cluster check` reports missing rights


def _needed(key: str, value: str | None, source: str | None) -> str:
    needed = key in HELD or (key in PROMISES and value is not None)
    return f"mirror needs {value}" if needed and value != source else ""


def known_settings(client: ClusterClient, topics: Iterable[str]) -> frozenset[str]:
    """Empty, meaning all, when no topic shows them."""
    described = describe_configs(client, [STATE_TOPIC]) or describe_configs(client, topics)
    return frozenset(key for configs in described.values() for key in configs.effective)


def _waiting_rows(
    topic: str, source: TopicConfigs, destination: TopicConfigs, factor: int, known: frozenset[str]
) -> list[DriftRow]:
    final = promotion_configs(source.overrides, factor)
    rows = []
    for key, value in sorted(source.overrides.items()):
        here = destination.overrides.get(key, "")
        if key in NEVER:
            action, reason = Action.KEEP, "belongs to the cluster: never copied"
        elif known and key not in known:
            action, reason = Action.SKIP, UNKNOWN_SETTING
        elif key in HELD and here != value:
            action, reason = Action.STAGE, f"set to {final[key]} at promotion"
        else:
            continue
        rows.append(
            DriftRow(
                part=Part.CONFIGS,
                subject=f"{topic}: {key}",
                source=value,
                destination=here,
                action=action,
                reason=reason,
                done=action is Action.STAGE,
            )
        )
    return rows


def _settings(
    source: ClusterClient, topics: Collection[str], *, of: int
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    """A broker that does not know a topic yet is asked again."""
    deadline = time.monotonic() + source.timeout_s
    while True:
        found, hidden = told(source, topics, of)
        missing = [name for name in topics if name not in found and name not in hidden]
        if not missing or not source.metadata(missing).topics or time.monotonic() > deadline:
            return found, hidden
        time.sleep(0.05)


def _recorded(state: State, link: Link) -> frozenset[tuple[str, str]]:
    """Name, destination id."""
    statuses = state.partitions.get(link.mirror.name, {}).values()
    return frozenset((s.partition.topic, s.destination_topic_id) for s in statuses)


def _copied_names(state: State, link: Link) -> frozenset[str]:
    return frozenset(name for name, topic_id in _recorded(state, link) if topic_id)


def _only(known: frozenset[str], configs: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in configs.items() if not known or key in known}


def _unknown_settings(known: frozenset[str], overrides: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(key for key in overrides if known and key not in known and key not in NEVER)
    return dict.fromkeys(unknown, UNKNOWN_SETTING)


def _row(name: str, source: str, destination: str, action: Action, reason: str = "") -> DriftRow:
    return DriftRow(
        part=Part.TOPICS, subject=name, source=source, destination=destination, action=action, reason=reason
    )


def _outcome(row: DriftRow, refused: Mapping[str, str]) -> DriftRow:
    if row.action is Action.SKIP:
        return row
    if row.subject in refused:
        return msgspec.structs.replace(row, action=Action.REFUSE, reason=refused[row.subject])
    return msgspec.structs.replace(row, done=True)
