"""A drill: a failover rehearsal with its own topic, group and mirror."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mirror_core.decide.drills import GroupReadResult, compare_group_reads
from mirror_core.kafka import group_reader
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.groups import delete_group, list_groups
from mirror_core.kafka.offsets import OffsetPoint, list_offsets
from mirror_core.model.drift import SyncCategory
from mirror_core.model.errors import MirrorError, MissingPermission
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import MirrorLink, read_cluster_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.cycle import sync_mirror


@dataclass(frozen=True, slots=True)
class DrillGroup:
    link: MirrorLink
    name: str
    committed: Mapping[Partition, Offset]
    skip_reason: str = ""

    def consume(self, count: int) -> DrillGroup:
        if self.skip_reason:
            return self
        target_offsets = {p: Offset(offset + count) for p, offset in self.committed.items()}
        try:
            group_reader.consume_and_commit(self.link.source, self.name, self.committed, target_offsets)
        except MissingPermission as error:
            return replace(self, skip_reason=f"not tried: {error}")
        return replace(self, committed=target_offsets)

    def resume_on_destination(self, run_id: str) -> GroupReadResult:
        """Resume on the destination. Raises if records were skipped."""
        link = self.link
        run = read_cluster_state(link.config, link.destination.name).runs[run_id]
        predicted = run.plan.groups.get(self.name, "unknown")
        if self.skip_reason:
            return GroupReadResult(predicted, None, None, self.skip_reason)
        with ClusterClient(link.destination) as client:
            ends = list_offsets(client, self.committed, OffsetPoint.HIGH_WATERMARK)
        resumption = compare_group_reads(
            predicted, self.committed, ends, group_reader.consume_from_committed(link.destination, self.name, ends)
        )
        if resumption.skipped:
            raise MirrorError(
                f"drill {run_id}: group {self.name} has skipped {resumption.skipped} record(s) on {link.destination.name} "
                f"that it had not done on {link.source.name}: an application's would have, too"
            )
        return resumption


def sync_drill_groups(link: MirrorLink) -> None:
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
        sync_mirror(link, writer, only=frozenset({SyncCategory.GROUPS}))


def delete_drill_group(cluster: ClusterConfig, group: str, print_line: Callable[[str], None]) -> None:
    with ClusterClient(cluster) as client:
        if group not in list_groups(client):
            return
        try:
            delete_group(client, group)
        except MissingPermission as error:
            print_line(f"group {group} stays on cluster {cluster.name}: {error}")
