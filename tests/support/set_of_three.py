"""Three mirrors of one set, the second one's own cluster beside the pair: what the set's page says, and what is so."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.config import Config, load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.runbook.failback_conductor import Failback, SetFailback
from mirror_core.runbook.set_failover import SetFailover
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair, Record, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored

SET = "shop"


@dataclass(frozen=True, slots=True)
class SetOfThree:
    members: tuple[MemberMirror, MemberMirror, MemberMirror]

    @property
    def mirror_set(self) -> MirrorSet:
        return MirrorSet(SET, tuple(one.name for one in self.members))

    def make_failover(self) -> SetFailover:
        return SetFailover(self.mirror_set, {one.name: one.mirrored.failover for one in self.members}, print_line=print)

    def make_failback(self) -> SetFailback:
        return SetFailback(self.mirror_set, {one.name: one.failback for one in self.members}, print_line=print)

    def fail_over(self) -> None:
        failover = self.make_failover()
        failover.finish(failover.begin(failover.decide().hash, approved_by="ann, ben"))


@dataclass(frozen=True, slots=True)
class MemberMirror:
    mirrored: Mirrored
    topic: str
    source: SandboxCluster
    destination: SandboxCluster

    @property
    def name(self) -> MirrorName:
        return self.mirrored.name

    @property
    def failback(self) -> Failback:
        return Failback(self.mirrored.link, self.mirrored.services, started_by="test")

    def find_writable(self, *asked: SandboxCluster) -> list[SandboxCluster]:
        """On which of these an application's write is taken."""
        return [cluster for cluster in asked or (self.source, self.destination) if not denied(cluster, self.topic)]


Ends = tuple[str, SandboxCluster, str, SandboxCluster]


def make_set_of_three(
    pair: Pair, config_path: Path, evidence: Path, second: Ends, ends: Ends | None = None
) -> SetOfThree:
    """`ends`: source and destination of the first and the third one; by default east and west. `second`: of the other
    one.
    """
    config, ours = load_config(config_path), ends or ("east", pair.east, "west", pair.west)
    first, other, third = (_make_member(pair, config, evidence, ends) for ends in (ours, second, ours))
    return SetOfThree((first, other, third))


def _make_member(pair: Pair, config: Config, evidence: Path, ends: Ends) -> MemberMirror:
    source_name, source, destination_name, destination = ends
    topic = new_topic(source)
    grant(source, "app", ResourceType.TOPIC, topic, [AclOperation.READ, AclOperation.WRITE])
    produce(source, topic, 20)
    name = MirrorName("m-" + secrets.token_hex(4))
    create_mirror(config, name, source=source_name, destination=destination_name, topics=(topic,))
    mirrored = Mirrored(pair, config, name, evidence)
    mirror_commands.start_mirror(mirrored.link)
    mirrored.copy()
    return MemberMirror(mirrored, topic, source, destination)


def read_page(page: Path) -> dict[str, str]:
    """By mirror, what the set's page says of it."""
    rows = re.findall(r"<tr><td>([^<]*)</td>(.*?)</tr>", page.read_text(encoding="utf-8"), re.DOTALL)
    return {name: unescape(re.sub(r"<[^>]*>|\s+", " ", row)) for name, row in rows}


def contents(records: Iterable[Record]) -> list[tuple[int, bytes | None]]:
    """Offsets and values, without the single writes by which tests probe who may write."""
    return [(record.offset, record.value) for record in records if record.value != b"x"]


def read_both(one: MemberMirror) -> tuple[list[Record], list[Record]]:
    return read_all(one.source, one.topic), read_all(one.destination, one.topic)
