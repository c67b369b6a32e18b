"""What failover and failback need, with or without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from mirror_core.dataplane.task_runner import LocalCopy, RecordTrimmed
from mirror_core.evidence.file_store import Folder, open_local_folder
from mirror_core.evidence.parity_report import warm_up
from mirror_core.model.errors import LostOwnership
from mirror_core.model.files import Unwritable, check_free_space, check_writable, report_write_errors
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import ClusterIdentity, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, SalvagedPartition
from mirror_core.model.run import StepEvidence
from mirror_core.parity.check import LocalParity, OnParityProgress
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.writer import StateWriter

EVIDENCE_ADVICE: Final = "make room and rights there, or give another folder (--evidence)"


class ParityCheck(Protocol):
    """`on_progress` gets partial results."""

    def __call__(
        self,
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult: ...


FEW_OFFSETS: Final = 100_000


class TailSalvage(Protocol):
    """Saves [start, end) to Parquet, with what another cluster has of each record."""

    def __call__(
        self,
        cluster: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path,
        against: ClusterIdentity | None = None,
    ) -> dict[Partition, SalvagedPartition]: ...


class InProcessCopy(Protocol):
    """While no data plane runs."""

    def __call__(
        self,
        ends: dict[Partition, Offset],
        timeout_s: float,
        promise_end: Callable[[float], None],
        record_trimmed: RecordTrimmed,
        /,
    ) -> None:
        """`promise_end` (by the steady clock) and `record_trimmed` are called before each write that they cover."""


def _open_private_folder(path: str) -> Folder:
    return open_local_folder(path, private=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """None of these writes to the state topic."""

    parity: ParityCheck
    quick_parity: ParityCheck
    """Without startup time, for the write block."""
    salvage: TailSalvage
    copy: Callable[[MirrorLink], InProcessCopy]
    evidence_dir: Path
    open_copy_folder: Callable[[str], Folder] = _open_private_folder
    """Opens the folder for copies of bundles. Raises BadRequest if unreachable."""
    open_receipts: Callable[[str], Folder] = open_local_folder

    def run_dir(self, run_id: str) -> Path:
        folder = self.evidence_dir / f"run-{run_id}"
        with report_write_errors("evidence", folder, EVIDENCE_ADVICE):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.is_symlink():
            raise Unwritable(f"evidence: {folder} is a link, and what it leads to would be copied: remove it")
        return folder

    def choose_parity(self, ranges: Sequence[ParityRange]) -> ParityCheck:
        return self.parity if sum(r.end - r.start for r in ranges) > FEW_OFFSETS else self.quick_parity

    def check_evidence(self) -> None:
        check_writable("evidence", self.evidence_dir, EVIDENCE_ADVICE)

    def prepare_gate(self, run_id: str) -> None:
        """Before applications are stopped: a full disk and a cold start would extend the write block."""
        self.check_evidence()
        check_free_space("evidence", self.run_dir(run_id), EVIDENCE_ADVICE)
        warm_up()

    def compare_at_gate(
        self, source: ClusterIdentity, destination: ClusterIdentity, ranges: Sequence[ParityRange], run_id: str
    ) -> ParityResult:
        """A full disk must not extend the write block: the report's path says so."""
        try:
            return self.quick_parity(source, destination, ranges, self.run_dir(run_id) / "parity")
        except Unwritable as error:
            return replace(self.quick_parity(source, destination, ranges, None), report=f"not written: {error}")


def local_services(config_path: Path, *, evidence_dir: Path) -> Services:
    parity = LocalParity(config_path)
    return Services(
        parity=parity,
        quick_parity=parity,
        salvage=LocalSalvage(config_path),
        copy=LocalCopy,
        evidence_dir=evidence_dir,
    )


@dataclass(frozen=True, slots=True)
class StepContext:
    """One run's dependencies, in the process that holds the mirror's control transactional id."""

    link: MirrorLink
    services: Services
    writer: StateWriter
    journal: Journal
    print_line: Callable[[str], None] = lambda line: None

    def get_action(self, name: str) -> Callable[[], StepEvidence]:
        method: Callable[[], StepEvidence] = getattr(self, name)
        return method

    def statuses(self) -> dict[Partition, PartitionStatus]:
        return dict(sorted(self.writer.state.partitions.get(self.link.mirror.name, {}).items()))


_LEASE_ATTEMPTS: Final = 3


def retry_on_lease_loss(context: StepContext, step: str, action: Callable[[], StepEvidence]) -> StepEvidence:
    """`action` takes the data plane's lease, and may be repeated.

    A data plane that read the state before this step began may take the lease after us; then it ends.
    """
    for _ in range(_LEASE_ATTEMPTS):
        try:
            return action()
        except LostOwnership:
            step_record = context.journal.record(step)
            if step_record is None:
                raise
            context.writer.put(step_record)  # fails here if the run itself was lost
            context.print_line(
                "a data plane that was just starting has taken the lease; it ends by itself, and this begins anew"
            )
    return action()
