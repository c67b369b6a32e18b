"""A drill: a failover rehearsal with its own topic, group and mirror."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mirror_core.decide.drills import ReadOn, read_on
from mirror_core.kafka import group_reader
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.groups import delete_group, list_groups
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.model.drift import Part
from mirror_core.model.errors import MirrorError, MissingPermission
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link, state_on
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.cycle import sync


@dataclass(frozen=True, slots=True)
class DrillGroup:
    link: Link
    name: str
    done: Mapping[Partition, Offset]
    untried: str = ""

    def works(self, count: int) -> DrillGroup:
        if self.untried:
            return self
        until = {p: Offset(offset + count) for p, offset in self.done.items()}
        try:
            group_reader.work(self.link.source, self.name, self.done, until)
        except MissingPermission as error:
            return replace(self, untried=f"not tried: {error}")
        return replace(self, done=until)

    def reads_on(self, run_id: str) -> ReadOn:
        """Resume on the destination. Raises if records were skipped."""
        link = self.link
        run = state_on(link.config, link.destination.name).runs[run_id]
        predicted = run.plan.groups.get(self.name, "unknown")
        if self.untried:
            return ReadOn(predicted, None, None, self.untried)
        with ClusterClient(link.destination) as client:
            ends = list_offsets(client, self.done, Point.HIGH_WATERMARK)
        found = read_on(predicted, self.done, ends, group_reader.go_on(link.destination, self.name, ends))
        if found.skipped:
            raise MirrorError(
                f"drill {run_id}: group {self.name} has skipped {found.skipped} record(s) on {link.destination.name} "
                f"that it had not done on {link.source.name}: an application's would have, too"
            )
        return found


def sync_groups(link: Link) -> None:
    with StateWriter(link.destination, control_id(link.mirror.name)) as writer:
        sync(link, writer, only=frozenset({Part.GROUPS}))


def forget_group(side: ClusterConfig, group: str, say: Callable[[str], None]) -> None:
    with ClusterClient(side) as client:
        if group not in list_groups(client):
            return
        try:
            delete_group(client, group)
        except MissingPermission as error:
            say(f"group {group} stays on cluster {side.name}: {error}")
