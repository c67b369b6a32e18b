"""What failover and failback are given from above, because it needs Spark, or can be done with Spark or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from mirror_core.dataplane.local import Deleted, LocalCopy
from mirror_core.evidence.folders import Folder, local_folder
from mirror_core.evidence.parity_report import warm_up
from mirror_core.model.files import Unwritable, check_room, check_writable, writing
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult, Saved
from mirror_core.parity.check import LocalParity
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.parity.so_far import SoFar
from mirror_core.state.link import Link

ADVICE: Final = "make room and rights there, or give another folder (--evidence)"


class ParityCheck(Protocol):
    """Compares both clusters over ranges of offsets; tells meanwhile what it has compared, so that it need not be done
    again."""

    def __call__(
        self,
        source: ClusterName,
        destination: ClusterName,
        ranges: Sequence[ParityRange],
        output: Path | None,
        so_far: SoFar | None = None,
    ) -> ParityResult: ...


FEW: Final = 100_000
"""Offsets that are compared in this process: it is through before a Spark application has started."""


class Salvage(Protocol):
    """Saves [start, end) of partitions of one cluster to Parquet; says of each record what another one has of it."""

    def __call__(
        self, cluster: ClusterName, ranges: Sequence[ParityRange], output: Path, against: ClusterName | None = None
    ) -> dict[Partition, Saved]: ...


class Copy(Protocol):
    """Copies a mirror's partitions up to the given ends, without a data plane of its own running."""

    def __call__(
        self, ends: dict[Partition, Offset], timeout_s: float, until: Callable[[int], None], deleted: Deleted
    ) -> None:
        """Nothing is written that `until` was not told of before, as a wall-clock time in milliseconds; and nothing
        behind what the source deleted before it was copied, before `deleted` was told of that."""


def _on_this_machine(place: str) -> Folder:
    return local_folder(place, private=True)


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
    copies: Callable[[str], Folder] = _on_this_machine
    """Opens the place where bundles are written to, too. BadRequest when it is not reached from here."""
    receipts: Callable[[str], Folder] = local_folder
    """Opens the place that receipts were stored in. BadRequest likewise."""
    by_airflow: bool = False
    """Steps are taken by Airflow's tasks, which alone can emit events of its assets."""

    def run_dir(self, run_id: str) -> Path:
        """The run's evidence folder; made when it is not there."""
        folder = self.evidence_dir / f"run-{run_id}"
        with writing("evidence", folder, ADVICE):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what it holds may be read by nobody else
        return folder

    def parity_of(self, ranges: Sequence[ParityRange]) -> ParityCheck:
        """For a comparison that nobody stands still for, and that may be small."""
        return self.parity if sum(r.end - r.start for r in ranges) > FEW else self.quick_parity

    def check_evidence(self) -> None:
        """Unwritable when evidence cannot be kept: asked before a run is begun."""
        check_writable("evidence", self.evidence_dir, ADVICE)

    def ready_gate(self, run_id: str) -> None:
        """The same of a run that has begun, before applications stand still: whether there is room, too, for what its
        gate has to keep; and what takes time once in a process is done."""
        self.check_evidence()
        check_room("evidence", self.run_dir(run_id), ADVICE)
        warm_up()

    def gate(
        self, source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange], run_id: str
    ) -> ParityResult:
        """Compare while applications stand still. They don't wait for room on a disk: a report that cannot be written
        is said in place of its path. What was compared is in the journal all the same."""
        try:
            return self.quick_parity(source, destination, ranges, self.run_dir(run_id) / "parity")
        except Unwritable as error:
            return replace(self.quick_parity(source, destination, ranges, None), report=f"not written: {error}")


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
