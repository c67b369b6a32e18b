"""What the driver does for the day on which its source is silent: heartbeats there, and looks at it, to be recorded."""

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
    """Of one driver, from when it has its lease. All methods are for the driver's thread."""

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
        """Before the first plan, which finds the heartbeats' topic then."""
        self.heart.prepare()
        lease.refresh()  # after `prepare`: a run that has begun before is in it, one that begins later is read on

    def planned(self, lease: HeldLease) -> None:
        """After each plan: what there is to look at may have changed, and runs may have begun or ended."""
        self.heart.judge(lease.state)
        self.lookout.watch(lease.state.partitions.get(self._link.mirror.name, {}))

    def start(self) -> None:
        """After the first plan."""
        self.heart.start()
        self.lookout.start()

    def tick(self, lease: HeldLease) -> None:
        """As often as the lease is beaten."""
        self.heart.permit(lease.lease)
        if (seen := self.lookout.news()) is not None:
            lease.put(seen)

    def look_once(self, lease: HeldLease, source: ClusterClient, destination: ClusterClient) -> None:
        """For a copy that ends here: what the source was like then. Not worth failing for."""
        with suppress(RemoteFault):
            self.lookout.look(source, destination)
        self.tick(lease)
