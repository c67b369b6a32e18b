"""Creates a mirror: gap method, copy estimate, checks, one record."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.decide.copy_estimate import (
    estimate_copy,
    format_copy_estimate,
    warn_few_replicas,
    warn_kafka_go_compaction,
    warn_refused_settings,
    warn_unclean_elections,
    warn_unstageable_settings,
)
from mirror_core.decide.fence_limits import warn_foreign_destination, warn_foreign_source
from mirror_core.decide.filters import build_acl_filter, build_group_filter, build_setting_filter
from mirror_core.decide.mirror_topology import explain_circles
from mirror_core.decide.topic_settings import is_compacted, parse_replication_factor
from mirror_core.kafka.authorization_probe import can_write_markers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig, Config, Principal
from mirror_core.kafka.log_offsets import OffsetPoint, PartitionProducer, describe_known_producers, list_offsets
from mirror_core.kafka.log_snapshot import fetch_log_sizes
from mirror_core.kafka.topics import (
    NewTopic,
    correct_configs,
    create_topics,
    describe_available_configs,
    find_max_replicas,
    resolve_default_replicas,
    wait_for_leaders,
)
from mirror_core.mirrors.broker_checks import UNCLEAN_ELECTION_KEY, check_auto_creation, list_refused_answers
from mirror_core.mirrors.describe import GAP_TEXTS
from mirror_core.mirrors.preflight import (
    WITHOUT_HEARTBEATS,
    check_shut_out,
    format_unknown_shut_out,
    lacks_heartbeats,
)
from mirror_core.model.errors import BadRequest, MirrorError, Refused, RemoteFault
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import FILTER_NAMES, DesiredState, GapFilling, Mirror
from mirror_core.model.names import ACTIVE_TOPIC, DRILL_PREFIX, MirrorName, Partition, get_base_name, is_reverse_mirror
from mirror_core.model.timing import CLOCK_TIMEOUT_S, TIMEOUTS, now_ms
from mirror_core.state import active_cluster
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link, read_states
from mirror_core.state.run_heartbeat import find_turn_holder
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.state_topic import STATE_TOPIC_CONFIGS, read_complete_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.circle_search import search_circles
from mirror_core.sync.mirror_topics import TopicPlacement, create_missing_topics, list_mirror_topics

SLOW_ROUND_TRIP_S: Final = 0.01
"""50 transactions a second of each partition with markers."""


def find_gap_method(destination: ClusterConfig) -> GapFilling:
    """ADRs 0008, 0010."""
    with ClusterClient(destination, Principal.DATA) as client:
        return GapFilling.MARKERS if can_write_markers(client) else GapFilling.HIDDEN


def choose_gap_method(destination: ClusterConfig, choice: GapFilling | None) -> GapFilling:
    """Refused for markers that may not be written."""
    if choice is GapFilling.HIDDEN:
        return choice
    possible = find_gap_method(destination)
    if choice is GapFilling.MARKERS and possible is not choice:
        user = destination.user(Principal.DATA) or "its data principal"
        reason = f"cluster {destination.name}: {user} may not write markers: grant it CLUSTER_ACTION on the cluster"
        raise Refused("mirror with gaps filled by markers", [reason], reason_code="markers_denied")
    return possible


def choose_reverse_gap_method(mirror: Mirror, link: MirrorLink) -> GapFilling:
    """Hidden records where they were chosen: the distance is the same."""
    if mirror.gaps is GapFilling.HIDDEN and find_gap_method(link.destination) is GapFilling.MARKERS:
        return GapFilling.HIDDEN
    return find_gap_method(link.source)


def format_gap_limit(destination: ClusterConfig, gaps: GapFilling) -> str:
    """Markers take two round trips a gap."""
    if gaps is GapFilling.HIDDEN:
        return ""
    with ClusterClient(destination, Principal.DATA) as client:
        client.metadata(())
        sent_at = time.monotonic()
        client.metadata(())
        round_trip_s = time.monotonic() - sent_at
    if round_trip_s < SLOW_ROUND_TRIP_S:
        return ""
    return (
        f"an answer from {destination.name} takes {1000 * round_trip_s:.0f} ms: with markers at most"
        f" {1 / (2 * round_trip_s):.0f} transactions a second of each partition come over; with hidden records (`--gaps"
        " hidden`) as many as there are"
    )


@dataclass(frozen=True, slots=True)
class CopyPreview:
    lines: tuple[str, ...]
    topics: int | None
    """Topics that match the mirror's patterns now."""


def preview_creation(config: Config, mirror: Mirror, warnings: Iterable[str]) -> CopyPreview:
    """With what to know before such a mirror is started. `warnings`: of `create_mirror`."""
    source, destination = config.cluster(mirror.source), config.cluster(mirror.destination)
    gap_limit = format_gap_limit(destination, mirror.gaps)
    lacking = f"{WITHOUT_HEARTBEATS}; `mirrorbook cluster check {source.name}` names the rights"
    copied = preview_copy(make_mirror_link(config, mirror))
    lines = (
        f"gaps are {GAP_TEXTS[mirror.gaps]}",
        *([gap_limit] if gap_limit else []),
        *([lacking] if lacks_heartbeats(source) else []),
        *(f"warning: {warning}" for warning in warnings),
        *map(str, warn_foreign_source(source.name, source.ruling)),
        *map(str, warn_foreign_destination(destination.name, destination.ruling)),
        *copied.lines,
    )
    return replace(copied, lines=lines)


def preview_copy(link: MirrorLink) -> CopyPreview:
    """Three requests to each broker of the source."""
    limit_s = TIMEOUTS.estimate_response_s
    try:
        with (
            ClusterClient(link.source, timeout_s=limit_s) as source,
            ClusterClient(link.destination, timeout_s=limit_s) as destination,
        ):
            topics = list_mirror_topics(link, source)
            partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
            starts = list_offsets(source, partitions, OffsetPoint.START)
            ends = list_offsets(source, partitions, OffsetPoint.STABLE_END)
            estimate = estimate_copy(starts, ends, fetch_log_sizes(source, partitions), link.mirror.gaps)
            policy = link.mirror.replication_factor
            factors = {n: parse_replication_factor(policy, view.replication_factor) for n, view in topics.items()}
            copied = destination.metadata(factors).topics
            new_factors = resolve_default_replicas(destination, {n: f for n, f in factors.items() if n not in copied})
            factors |= new_factors
            max_replicas = find_max_replicas(destination, new_factors)
            replica_warnings = warn_few_replicas(link.destination.name, factors, max_replicas)
            remarks = _format_setting_remarks(link, source, list(topics), partitions)
            auto_creation_warnings = check_auto_creation(destination, sorted(destination.brokers()))
            lines = (*format_copy_estimate(estimate), *replica_warnings, *remarks, *auto_creation_warnings)
            return CopyPreview(lines, len(topics))
    except RemoteFault as error:
        return CopyPreview((f"to copy: not known now: {error}",), None)


def _format_setting_remarks(
    link: MirrorLink, source: ClusterClient, topics: Collection[str], partitions: Collection[Partition]
) -> list[str]:
    configs, _ = describe_available_configs(source, topics)
    unclean = [
        name for name, topic_configs in configs.items() if topic_configs.effective.get(UNCLEAN_ELECTION_KEY) == "true"
    ]
    lines = warn_unclean_elections(source.name, unclean)
    compacted = {name for name, topic_configs in configs.items() if is_compacted(topic_configs.effective)}
    if link.mirror.gaps is GapFilling.MARKERS and compacted:
        producers = describe_known_producers(source, [p for p in partitions if p.topic in compacted])
        transactional = {p.topic for p, views in producers.states.items() if any(map(_is_transactional, views))}
        lines += warn_kafka_go_compaction(link.destination.name, compacted - transactional)
    return lines


def _is_transactional(producer: PartitionProducer) -> bool:
    return producer.coordinator_epoch >= 0 or producer.open_transaction_start >= 0


_log = get_logger(__name__)
_MIRROR_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
_LITERAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")


def create_mirror(
    config: Config,
    name: str,
    *,
    source: str,
    destination: str,
    topics: Sequence[str],
    exclude_topics: Sequence[str] = (),
    groups: Sequence[str] = (".*",),
    exclude_groups: Sequence[str] = (),
    principals: Sequence[str] = (".*",),
    exclude_principals: Sequence[str] = (),
    exclude_rights: Sequence[str] = (),
    exclude_settings: Sequence[str] = (),
    replication_factor: str = "source",
    gaps: GapFilling | None = None,
    dry_run: bool = False,
    warn: Callable[[str], None] = lambda line: None,
) -> Mirror:
    """Records a mirror as STOPPED if it is possible; nothing is left behind when refused.

    `gaps` None: markers where the data principal may write them.
    """
    check_mirror_name(name)
    if not topics:
        raise BadRequest(f"mirror {name}: say which topics: --topics 'orders.*'")
    source_config, destination_config = config.cluster(source), config.cluster(destination)
    with ClusterClient(source_config) as source_client, ClusterClient(destination_config) as destination_client:
        source_id = source_client.metadata(()).cluster_id
        destination_id = destination_client.metadata(()).cluster_id
        if source_id == destination_id:
            reason = f"{source} and {destination} are the same cluster ({source_id}): a mirror needs two"
            raise Refused(f"mirror {name}", [reason], reason_code="same_cluster")
        for line in _check_first_acls(name, source_config, destination_config):
            warn(line)
        mirror = Mirror(
            name=MirrorName(name),
            source=source_config.name,
            destination=destination_config.name,
            source_id=source_id,
            destination_id=destination_id,
            topics=tuple(topics),
            exclude_topics=tuple(exclude_topics),
            groups=tuple(groups),
            exclude_groups=tuple(exclude_groups),
            principals=tuple(principals),
            exclude_principals=tuple(exclude_principals),
            exclude_rights=tuple(exclude_rights),
            exclude_settings=tuple(exclude_settings),
            replication_factor=replication_factor,
            producer_id=generate_producer_id(),
            gaps=choose_gap_method(destination_config, gaps),
            desired=DesiredState.STOPPED,
            created_ms=now_ms(),
        )
        build_group_filter(mirror)  # report a bad expression now
        build_acl_filter(mirror, (), ())
        build_setting_filter(mirror)
        parse_replication_factor(replication_factor, 1)
        link = make_mirror_link(config, mirror)
        circles = search_circles(link, ())
        if reasons := tuple(explain_circles(mirror, circles.circles)):
            raise Refused(f"mirror {name}", reasons)
        for doubt in circles.doubts:
            warn(str(doubt))
        placement = _check_topics(link, check_name_is_free(config, mirror), source_client, destination_client)
        for line in (
            *warn_refused_settings(destination, placement.refused_settings),
            *warn_unstageable_settings(destination, placement.unstageable),
        ):
            warn(line)
        if dry_run:
            return mirror
        ensure_state_topic(destination_client)
        _ensure_active_topic(source_client, destination_client)
    refuse_if_exists(mirror, read_complete_state(destination_config))
    with take_name(mirror, destination_config) as writer:
        mirror = replace(mirror, state_topic_id=writer.state.topic_id)
        writer.put(mirror)
    return mirror


@contextmanager
def take_name(mirror: Mirror, destination: ClusterConfig) -> Iterator[StateWriter]:
    """Others can no longer write it. Refused while another command makes it."""
    with StateWriter(destination, make_control_id(mirror.name)) as writer:
        refuse_if_exists(mirror, writer.state)
        ahead_ms = measure_clock_ahead_ms(destination, timeout_s=CLOCK_TIMEOUT_S)
        if (holder := find_turn_holder(writer.state, mirror.name, ahead_ms)) is not None:
            reason = f"{holder.by} on {holder.host}, process {holder.pid}, is making it: try again when that has ended"
            raise Refused(f"mirror {mirror.name}", [reason], reason_code="mirror_being_made")
        yield writer


def check_mirror_name(name: str) -> None:
    if not _MIRROR_NAME.fullmatch(name.removeprefix(DRILL_PREFIX)):  # a drill's prefix must not make a name too long
        raise BadRequest(f"mirror name {name!r}: use letters, digits, dot, underscore and hyphen, 63 at most")
    if is_reverse_mirror(name) and not name.startswith(DRILL_PREFIX):
        raise BadRequest(
            f"mirror name {name!r}: a failback of mirror {get_base_name(MirrorName(name))!r} makes one of this name,"
            " and they would share heartbeats, hooks and runs; choose a name that does not end in '-back'"
        )


def generate_producer_id() -> int:
    """2**62 or more, which the brokers' own ids never reach."""
    return (1 << 62) + secrets.randbits(61)


def ensure_state_topic(client: ClusterClient) -> None:
    if STATE_TOPIC in client.metadata([STATE_TOPIC]).topics:
        correct_configs(client, STATE_TOPIC, STATE_TOPIC_CONFIGS)
        return
    factor = min(3, find_max_replicas(client, {STATE_TOPIC: 3}))
    configs = {
        "min.insync.replicas": "2" if factor == 3 else "1",
        # Leases and observations are replaced every second or two: keep what a reader has to scan small.
        "segment.bytes": str(8 << 20),
        "min.cleanable.dirty.ratio": "0.1",
        **STATE_TOPIC_CONFIGS,
    }
    create_topics(client, [NewTopic(name=STATE_TOPIC, partitions=1, replication_factor=factor, configs=configs)])
    wait_for_leaders(client, [STATE_TOPIC])


def _check_first_acls(mirror: str, *clusters: ClusterConfig) -> list[str]:
    answers = {cluster.name: check_shut_out(cluster) for cluster in clusters}
    refused_answers = list_refused_answers(MirrorName(mirror))
    if reasons := [
        f"cluster {name}: {answer.text}" for name, answer in answers.items() if answer.shuts_out in refused_answers
    ]:
        raise Refused(f"mirror {mirror}", reasons, reason_code="first_acl_shuts_out")
    return format_unknown_shut_out(answers)


def _ensure_active_topic(*clients: ClusterClient) -> None:
    for client in clients:
        try:
            active_cluster.ensure_active_topic(client)
            correct_configs(client, ACTIVE_TOPIC)
        except MirrorError as error:
            _log.info("applications cannot follow a topic there: %s", error, cluster=client.name)


def _check_topics(
    link: MirrorLink, destination_state: State, source: ClusterClient, destination: ClusterClient
) -> TopicPlacement:
    matching = list_mirror_topics(link, source)
    if missing := find_missing_literals(link.mirror, matching):
        raise BadRequest(
            f"unknown topic {missing[0]!r}: cluster {source.name} has none of this name that "
            f"{source.config.user() or 'this principal'} may DESCRIBE (or --exclude-topics takes it out)"
        )
    placement = create_missing_topics(link, destination_state, source, destination, matching, dry_run=True)
    if placement.refused:
        raise Refused(f"mirror {link.mirror.name}", placement.refused.values(), reason_code="topics_refused")
    return placement


def find_missing_literals(mirror: Mirror, matching: Collection[str]) -> list[str]:
    """Expressions that are plain names and match no topic."""
    return [t for t in mirror.topics if _LITERAL_TOPIC.fullmatch(t) and t not in matching]


def check_name_is_free(config: Config, mirror: Mirror) -> State:
    """Free on every cluster that answers. Returns the destination's state."""
    destination_state = State()
    for cluster, state_or_error in read_states(config):
        if isinstance(state_or_error, MirrorError):
            continue  # a third cluster may be down
        refuse_if_exists(mirror, state_or_error)
        if cluster == mirror.destination:
            destination_state = state_or_error
    return destination_state


def refuse_if_exists(mirror: Mirror, state: State) -> None:
    known = state.mirrors.get(mirror.name)
    if known is not None:
        raise Refused(f"mirror {mirror.name}", explain_existing(known, mirror), reason_code="mirror_exists")


def explain_existing(known: Mirror, wanted: Mirror) -> Iterator[str]:
    yield f"it exists already on cluster {known.destination}"
    if (known.source, known.destination) == (wanted.source, wanted.destination) and any(
        getattr(known, name) != getattr(wanted, name) for name in FILTER_NAMES
    ):
        yield f"it has other filters: `mirrorbook mirror change {known.name}` changes them"
