"""What of the old source must be discarded, how to do that for each topic, and what each way costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mirror_core.decide.view import Topic, some
from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import HEARTBEATS, Offset, Partition
from mirror_core.model.run import Strategy
from mirror_core.model.units import in_bytes

CUTTING: Final = frozenset({Strategy.OFFLINE, Strategy.REPLICA})
COSTED: Final = 20
_NO_TOPICS: Final[Mapping[str, Topic]] = MappingProxyType({})
_RISKS: Final[Mapping[Strategy, str]] = MappingProxyType(
    {
        Strategy.RECREATE: "no broker stops; until it is copied anew there is no second copy of the topic; a new topic "
        "id, and all committed offsets of the topic there are gone",
        Strategy.OFFLINE: "one broker, or a few, stopped by you (some 10 s each), hands on files, with a backup; one "
        "replica meanwhile, the others are filled again",
        Strategy.REPLICA: "one broker is stopped by you (some 5 s) and an unclean election takes place; one replica "
        "for a while",
    }
)


@dataclass(frozen=True, slots=True)
class Allowed:
    everywhere: Strategy | None = None
    """None: the cheapest that needs nobody at a broker."""
    topics: Mapping[str, Strategy] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, topic: str) -> Strategy | None:
        """Heartbeats are small and ours: the general choice does not apply to them."""
        return self.topics.get(topic, None if topic.startswith(HEARTBEATS) else self.everywhere)

    @property
    def strategies(self) -> frozenset[Strategy]:
        return frozenset({*self.topics.values(), *([self.everywhere] if self.everywhere else [])})

    @classmethod
    def parse(cls, words: tuple[str, ...]) -> Allowed:
        everywhere: Strategy | None = None
        topics: dict[str, Strategy] = {}
        for word in words:
            topic, found, name = word.rpartition("=")
            if name not in list(Strategy):
                raise BadRequest(f"{word!r}: strategies are {', '.join(Strategy)}; give STRATEGY or TOPIC=STRATEGY")
            if (found and topic in topics) or (not found and everywhere is not None):
                raise BadRequest(f"{word!r}: {topic or 'all topics'}: give one strategy only")
            if found:
                topics[topic] = Strategy(name)
            else:
                everywhere = Strategy(name)
        return cls(everywhere, topics)


@dataclass(frozen=True, slots=True)
class Log:
    start: Offset
    end: Offset
    size: int | None = None


def point(status: PartitionStatus) -> Offset:
    """First offset from which the old source may differ from the new primary."""
    if not status.destination_topic_id:  # never added on the new primary: what is there now is not the mirror's
        return Offset(0)
    lmo = Offset(0) if status.lmo is None else status.lmo
    return lmo if status.differs_at is None else min(lmo, status.differs_at)


def is_anew(status: PartitionStatus, topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(status.partition.topic)
    return topic is not None and topic.id != status.source_topic_id


def came(statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
    made = {p.topic for p, s in statuses.items() if s.destination_topic_id}
    return {p: s for p, s in statuses.items() if p.topic in made}


def tails(
    statuses: Mapping[Partition, PartitionStatus], topics: Mapping[str, Topic], log_ends: Mapping[Partition, Offset]
) -> dict[Partition, tuple[Offset, Offset]]:
    """What the old source has beyond the truncation point: nonempty [from, end) by partition.

    In a recreated topic, and in a partition that the mirror never recorded, everything is tail.
    """
    mirrored = {p.topic for p in statuses} & topics.keys()
    found = {}
    for partition, end in sorted(log_ends.items()):
        if partition.topic not in mirrored:
            continue
        status = statuses.get(partition)
        start = Offset(0) if status is None or is_anew(status, topics) else point(status)
        if end > start:
            found[partition] = (start, end)
    return found


def wider(topics: Mapping[str, Topic], new_topics: Mapping[str, Topic]) -> dict[str, tuple[int, int]]:
    """Topics with more partitions on the old source than on the new primary, and both counts.

    Kafka never removes partitions, so only a recreated topic can match; otherwise keys would map to other partitions
    after failback.
    """
    return {
        name: (topic.partitions, new_topics[name].partitions)
        for name, topic in sorted(topics.items())
        if name in new_topics and topic.partitions > new_topics[name].partitions
    }


def choose(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, Topic],
    log_ends: Mapping[Partition, Offset],
    allowed: Allowed,
    new_topics: Mapping[str, Topic] = _NO_TOPICS,
) -> dict[str, Strategy]:
    divergent = {p.topic for p in tails(statuses, topics, log_ends)} | wider(topics, new_topics).keys()
    anew = {p.topic for p, s in statuses.items() if is_anew(s, topics)}
    found = {}
    for topic in sorted({p.topic for p in statuses}):
        if topic in anew:
            found[topic] = Strategy.RECREATE
        elif topic in divergent:
            wanted = allowed.of(topic)
            found[topic] = Strategy.RECREATE if wanted in (None, Strategy.NONE) else wanted
        else:
            found[topic] = allowed.topics.get(topic, Strategy.NONE)
    return found


def objections(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, Topic],
    logs: Mapping[Partition, Log],
    allowed: Allowed,
    old: str,
    compacted: Collection[str] = (),
    new_topics: Mapping[str, Topic] = _NO_TOPICS,
) -> Iterator[str]:
    strange = sorted(set(allowed.topics) - {p.topic for p in statuses})
    if strange:
        yield f"not topics of this mirror: {some(strange)}"
    ends = {p: log.end for p, log in logs.items()}
    anew = {p.topic for p, s in statuses.items() if is_anew(s, topics)}
    divergent = {p.topic for p in tails(statuses, topics, ends)} | anew
    narrower = wider(topics, new_topics)
    yield from _objections_to_width(narrower, allowed, old, anew)
    kept = sorted(t for t in divergent if allowed.of(t) is Strategy.NONE)
    if kept:
        yield (
            f"strategy none: {old} has records beyond the last mirrored offset, or other ones below it, in "
            f"{some(kept)}; with --strategy recreate they are salvaged and these topics copied anew"
        )
    cut = {t for t in divergent | set(allowed.topics) if allowed.of(t) in CUTTING}
    if cut & anew:
        yield (
            f"{some(sorted(cut & anew))} on {old} was created anew, so nothing of it can stay: only --strategy "
            "TOPIC=recreate is possible"
        )
    cleaned = sorted(cut & set(compacted))
    if cleaned:
        yield (
            f"{some(cleaned)} on {old}: compaction may have taken records below the truncation point in favour of the "
            "tail's, and they would be missed when the tail is cut off: only --strategy TOPIC=recreate is possible"
        )
    short = [p for p in sorted(logs) if p.topic in cut - anew and p in statuses and logs[p].start >= point(statuses[p])]
    below = [p for p in short if logs[p].end > point(statuses[p])]
    added = [p for p, log in sorted(logs.items()) if p.topic in cut - anew and p not in statuses and log.end > 0]
    if added:
        yield (
            f"{some(added)} on {old} was never mirrored, so nothing of it can stay: only --strategy TOPIC=recreate is "
            "possible. It salvages all of it first"
        )
    if below:
        yield (
            f"the log of {some(below)} on {old} begins at or behind the truncation point, so nothing of it can stay: "
            "only --strategy TOPIC=recreate is possible"
        )


def _objections_to_width(
    found: Mapping[str, tuple[int, int]], allowed: Allowed, old: str, anew: Collection[str]
) -> Iterator[str]:
    for topic, (had, has) in found.items():
        wanted = allowed.of(topic)
        if wanted in CUTTING | {Strategy.NONE} and topic not in anew:
            yield (
                f"strategy {wanted}: {topic} has {had} partitions on {old} and {has} on the new primary, and no "
                f"partition can be taken away: --strategy {topic}=recreate salvages them and makes the topic anew with "
                f"{has}. Or add partitions on the new primary first, if keys may go elsewhere there"
            )


def costs(
    statuses: Mapping[Partition, PartitionStatus],
    old: Mapping[Partition, Log],
    new: Mapping[Partition, Log],
    replicas: Mapping[str, int],
    strategies: Mapping[str, Strategy],
) -> Iterator[tuple[str, str]]:
    divergent = [t for t, s in strategies.items() if s is not Strategy.NONE]
    whole = _by_topic((p.topic, log.size) for p, log in new.items())
    held = _by_topic((p.topic, log.size) for p, log in old.items())
    rest = _by_topic((p.topic, _behind(log, point(statuses[p]))) for p, log in new.items() if p in statuses)
    for topic in sorted(divergent, key=lambda t: -(whole.get(t) or 0))[:COSTED]:
        for strategy, risk in _RISKS.items():
            link = (whole if strategy is Strategy.RECREATE else rest).get(topic)
            copies = replicas.get(topic, 1)
            again = {Strategy.RECREATE: 0, Strategy.OFFLINE: copies - 1, Strategy.REPLICA: copies}[strategy]
            own = held.get(topic) if again else 0
            disk = None if link is None or own is None else link * copies + own * again
            yield (
                f"{topic} by {strategy}",
                f"about {_bytes(link)} over the link, {_bytes(disk)} written to disks there; {risk}",
            )


def _behind(log: Log, start: Offset) -> int | None:
    if log.size is None:
        return None
    return round(log.size * max(0, log.end - max(start, log.start)) / max(1, log.end - log.start))


def _by_topic(sizes: Iterable[tuple[str, int | None]]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for topic, size in sizes:
        before = found.get(topic, 0)
        found[topic] = None if size is None or before is None else before + size
    return found


def _bytes(size: int | None) -> str:
    return "an unknown number of bytes" if size is None else in_bytes(size)
