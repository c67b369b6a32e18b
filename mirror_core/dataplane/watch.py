"""The driver's heartbeats and observations of its source, for an unplanned failover."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mirror_core.dataplane.heart import HeartbeatWriter
from mirror_core.dataplane.lookout import SourceMonitor
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import RemoteFault
from mirror_core.state.lease import HeldLease
from mirror_core.state.link import MirrorLink


class SourceWatch:
    def __init__(self, link: MirrorLink, lease: HeldLease, report_line: Callable[[str], None]) -> None:
        self.heartbeat_writer = HeartbeatWriter(link, lease.lease.owner, report_line)
        self.monitor = SourceMonitor(link, lease.state.source_observations.get(link.mirror.name))
        self._link = link

    def __enter__(self) -> SourceWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heartbeat_writer.close()
        self.monitor.close()

    def prepare(self, lease: HeldLease) -> None:
        self.heartbeat_writer.prepare()
        lease.refresh()  # after `prepare`: earlier runs are in it, later ones are read

    def apply_plan(self, lease: HeldLease) -> None:
        self.heartbeat_writer.update_runs(lease.state)
        self.monitor.set_recorded(lease.state.partitions.get(self._link.mirror.name, {}))

    def start(self) -> None:
        self.heartbeat_writer.start()
        self.monitor.start()

    def tick(self, lease: HeldLease) -> None:
        self.heartbeat_writer.allow(lease.lease)
        if (observation := self.monitor.pop_observation()) is not None:
            lease.put(observation)

    def observe_once(self, lease: HeldLease, source: ClusterClient, destination: ClusterClient) -> None:
        """For a copy that ends here. Never fails."""
        with suppress(RemoteFault):
            self.monitor.observe(source, destination)
        self.tick(lease)
