"""What failover and failback are given from above, because it needs Spark, or can be done with Spark or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror_core.dataplane.local import LocalCopy
from mirror_core.parity.check import LocalParity
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.ports import Copy, ParityCheck, Salvage
from mirror_core.state.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Doers of the heavy work. None of them writes to the state topic."""

    parity: ParityCheck
    """Compares everything before the fence, while applications still write."""
    quick_parity: ParityCheck
    """Compares the last bit while applications stand still: the same comparison, with no start-up time."""
    salvage: Salvage
    copy: Callable[[Link], Copy]
    """Makes the in-process copier of a mirror: a failback copies with the reverse mirror, too."""
    evidence_dir: Path
    """Folder in which each run gets a folder of its own."""

    def run_dir(self, run_id: str) -> Path:
        """The run's evidence folder; made when it is not there."""
        folder = self.evidence_dir / f"run-{run_id}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def local_services(config_path: Path, *, evidence_dir: Path) -> Services:
    """Everything in this process: for the smallest deployment, and for the night when Spark is down too."""
    parity = LocalParity(config_path)
    return Services(
        parity=parity,
        quick_parity=parity,
        salvage=LocalSalvage(config_path),
        copy=LocalCopy,
        evidence_dir=evidence_dir,
    )
