"""The driver's heartbeats and observations of its source, for an unplanned failover."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mirror_core.dataplane.heart import Heart
from mirror_core.dataplane.lookout import Lookout
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import RemoteFault
from mirror_core.state.lease import HeldLease
from mirror_core.state.link import Link


class Watch:
    def __init__(self, link: Link, lease: HeldLease, say: Callable[[str], None]) -> None:
        self.heart = Heart(link, lease.lease.owner, say)
        self.lookout = Lookout(link, lease.state.sightings.get(link.mirror.name))
        self._link = link

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heart.close()
        self.lookout.close()

    def prepare(self, lease: HeldLease) -> None:
        self.heart.prepare()
        lease.refresh()  # after `prepare`: earlier runs are in it, later ones are read

    def planned(self, lease: HeldLease) -> None:
        self.heart.judge(lease.state)
        self.lookout.watch(lease.state.partitions.get(self._link.mirror.name, {}))

    def start(self) -> None:
        self.heart.start()
        self.lookout.start()

    def tick(self, lease: HeldLease) -> None:
        self.heart.permit(lease.lease)
        if (seen := self.lookout.news()) is not None:
            lease.put(seen)

    def look_once(self, lease: HeldLease, source: ClusterClient, destination: ClusterClient) -> None:
        """For a copy that ends here. Never fails."""
        with suppress(RemoteFault):
            self.lookout.look(source, destination)
        self.tick(lease)
