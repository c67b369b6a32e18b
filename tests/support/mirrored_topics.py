"""A mirror from east to west for tests of what comes after copying: made, started, and copied in this process."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import ReplicationSummary, raise_if_failed
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.config import Config, load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.mirror import GapFilling, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import Services, local_services
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from tests.support.kafka_clients import Pair


@dataclass(frozen=True, slots=True)
class Mirrored:
    """One mirror of its own, so that tests do not meet."""

    pair: Pair
    config: Config
    name: MirrorName
    evidence: Path

    @property
    def link(self) -> MirrorLink:
        return find_mirror_link(self.config, self.name)[0]

    @property
    def services(self) -> Services:
        return local_services(self.config.path, evidence_dir=self.evidence)

    @property
    def failover(self) -> Failover:
        return Failover(self.link, self.services, started_by="test")

    @property
    def state(self) -> State:
        return read_state(self.config.cluster("west"))

    @property
    def statuses(self) -> dict[Partition, PartitionStatus]:
        return self.state.partitions.get(self.name, {})

    def copy(self, receipts: str | None = None) -> None:
        """Until caught up with what the source holds now."""
        raise_if_failed(replicate(self.link, receipts))


def replicate(link: MirrorLink, receipts: str | None = None) -> ReplicationSummary:
    options = ReplicationOptions(until_caught_up=True, receipts=receipts)
    return Replication(link, LocalRunner, options, stop=threading.Event(), report_line=lambda line: None).run()


def new_mirror(
    pair: Pair,
    evidence: Path,
    *topics: str,
    groups: tuple[str, ...] = (),
    gaps: GapFilling | None = None,
    warn: Callable[[str], None] = lambda line: None,
) -> Mirrored:
    """Create and start a mirror of these topics."""
    config = load_config(pair.config_path)
    name = MirrorName("m-" + secrets.token_hex(4))
    create_mirror(config, name, source="east", destination="west", topics=topics, groups=groups, gaps=gaps, warn=warn)
    made = Mirrored(pair, config, name, evidence)
    mirror_commands.start_mirror(made.link)
    return made
