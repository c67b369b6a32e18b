from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from mirror_core.decide.filters import group_filter
from mirror_core.decide.mirror_circles import circle_reasons
from mirror_core.decide.outlook import refused_settings
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.topics import BROKER_TIME, NewTopic, await_leaders, create_topics, set_broker_time
from mirror_core.mirrors.first_acl import refused_of
from mirror_core.mirrors.gaps import chosen_gaps
from mirror_core.mirrors.preflight import not_known_to_shut_out, shuts_out
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Desired, Gaps, Mirror
from mirror_core.model.names import ACTIVE_TOPIC, DRILL, MirrorName, base_name, is_way_home
from mirror_core.state import active
from mirror_core.state.link import Link, link_of, states
from mirror_core.state.records import TOPIC, State
from mirror_core.state.topic import read_whole
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.mirror_circles import search_circles
from mirror_core.sync.topics import Placement, create_missing, mirror_topics

_log = logger(__name__)

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
_LITERAL: Final = re.compile(r"[a-zA-Z0-9_-]+")


def create(
    config: Config,
    name: str,
    *,
    source: str,
    destination: str,
    topics: Sequence[str],
    exclude_topics: Sequence[str] = (),
    groups: Sequence[str] = (".*",),
    gaps: Gaps | None = None,
    dry_run: bool = False,
    warn: Callable[[str], None] = lambda line: None,
) -> Mirror:
    """Record a mirror as STOPPED if it is possible; nothing is left behind when refused.

    `gaps` None: markers where the data principal may write them.
    """
    if not _NAME.fullmatch(name.removeprefix(DRILL)):  # a drill's prefix must not make a name too long
        raise BadRequest(f"mirror name {name!r}: use letters, digits, dot, underscore and hyphen, 63 at most")
    if is_way_home(name) and not name.startswith(DRILL):
        raise BadRequest(
            f"mirror name {name!r}: a failback of mirror {base_name(MirrorName(name))!r} makes one of this name, and "
            "they would share heartbeats, hooks and runs; choose a name that does not end in '-back'"
        )
    if not topics:
        raise BadRequest(f"mirror {name}: say which topics: --topics 'orders.*'")
    there, here = config.cluster(source), config.cluster(destination)
    with ClusterClient(there) as source_client, ClusterClient(here) as destination_client:
        source_id = source_client.metadata(()).cluster_id
        destination_id = destination_client.metadata(()).cluster_id
        if source_id == destination_id:
            reason = f"{source} and {destination} are the same cluster ({source_id}): a mirror needs two"
            raise Refused(f"mirror {name}", [reason])
        for line in _check_first_acls(name, there, here):
            warn(line)
        mirror = Mirror(
            name=MirrorName(name),
            source=there.name,
            destination=here.name,
            source_id=source_id,
            destination_id=destination_id,
            topics=tuple(topics),
            exclude_topics=tuple(exclude_topics),
            groups=tuple(groups),
            producer_id=new_producer_id(),
            gaps=chosen_gaps(here, gaps),
            desired=Desired.STOPPED,
            created_ms=now_ms(),
        )
        group_filter(mirror)  # report a bad expression now
        link = link_of(config, mirror)
        circles = search_circles(link, ())
        if reasons := tuple(circle_reasons(mirror, circles.circles)):
            raise Refused(f"mirror {name}", reasons)
        for line in circles.doubts:
            warn(line)
        placement = _check_topics(link, _check_elsewhere(config, mirror), source_client, destination_client)
        for line in refused_settings(destination, placement.refused_settings):
            warn(line)
        if dry_run:
            return mirror
        ensure_state_topic(destination_client)
        _ensure_active_topic(source_client, destination_client)
    _refuse_if_known(mirror, read_whole(here))
    with StateWriter(here, control_id(mirror.name)) as writer:
        _refuse_if_known(mirror, writer.state)
        writer.put(mirror)
    return mirror


def new_producer_id() -> int:
    """2**62 or more, which the brokers' own ids never reach."""
    return (1 << 62) + secrets.randbits(61)


def ensure_state_topic(client: ClusterClient) -> None:
    if TOPIC in client.metadata([TOPIC]).topics:
        set_broker_time(client, TOPIC)
        return
    factor = min(3, len(client.brokers()))
    configs = {
        "cleanup.policy": "compact",
        "min.insync.replicas": "2" if factor == 3 else "1",
        # Leases and observations are replaced every second or two: keep what a reader has to scan small.
        "segment.bytes": str(8 << 20),
        "min.cleanable.dirty.ratio": "0.1",
        **BROKER_TIME,
    }
    create_topics(client, [NewTopic(name=TOPIC, partitions=1, replication_factor=factor, configs=configs)])
    await_leaders(client, [TOPIC])


def _check_first_acls(mirror: str, *clusters: ClusterConfig) -> list[str]:
    """Nobody may lose access by the first ACL."""
    found = {cluster.name: shuts_out(cluster) for cluster in clusters}
    refused = refused_of(MirrorName(mirror))
    if reasons := [f"cluster {name}: {one.words}" for name, one in found.items() if one.answer in refused]:
        raise Refused(f"mirror {mirror}", reasons)
    return not_known_to_shut_out(found)


def _ensure_active_topic(*clients: ClusterClient) -> None:
    for client in clients:
        try:
            active.ensure_topic(client)
            set_broker_time(client, ACTIVE_TOPIC)
        except MirrorError as error:
            _log.info("applications cannot follow a topic there: %s", error, cluster=client.name)


def _check_topics(link: Link, known: State, source: ClusterClient, destination: ClusterClient) -> Placement:
    matching = mirror_topics(link, source)
    literal = [t for t in link.mirror.topics if _LITERAL.fullmatch(t)]
    missing = [t for t in literal if t not in matching]
    if missing:
        raise BadRequest(
            f"unknown topic {missing[0]!r}: cluster {source.name} has none of this name that "
            f"{source.config.user() or 'this principal'} may DESCRIBE (or --exclude-topics takes it out)"
        )
    placement = create_missing(link, known, source, destination, matching, dry_run=True)
    if placement.refused:
        raise Refused(f"mirror {link.mirror.name}", placement.refused.values())
    return placement


def _check_elsewhere(config: Config, mirror: Mirror) -> State:
    """The name must be free on every cluster that answers. Returns the destination's state."""
    there = State()
    for cluster, answer in states(config):
        if isinstance(answer, MirrorError):
            continue  # a third cluster may be down
        _refuse_if_known(mirror, answer)
        if cluster == mirror.destination:
            there = answer
    return there


def _refuse_if_known(mirror: Mirror, state: State) -> None:
    known = state.mirrors.get(mirror.name)
    if known is not None:
        raise Refused(f"mirror {mirror.name}", [f"it exists already on cluster {known.destination}"])
