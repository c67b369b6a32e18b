"""A mirror that has copied with receipts, and what they prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.mirrors.receipt_maintenance import RebuildResult, rebuild_receipts
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity.certificate_check import (
    CertificateScope,
    LocalCertificateRunner,
    RunCertificateTasks,
    check_certificates,
    read_certificate_scope,
)
from mirror_core.parity.check import LocalParity
from tests.support.kafka_clients import Pair, new_topic
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.parity_topics import Content, content, send


@dataclass(frozen=True, slots=True)
class Copied:
    """A mirror that has copied, in two rounds, with receipts."""

    mirrored: Mirrored
    topic: str
    receipts: LocalFolder

    @property
    def scope(self) -> CertificateScope:
        return read_certificate_scope(self.mirrored.link, self.mirrored.state, self.receipts)

    def proved(self, scope: CertificateScope | None = None, run: RunCertificateTasks | None = None) -> ParityResult:
        run, link = run or LocalCertificateRunner().run, self.mirrored.link
        return check_certificates(
            link.config.path, link.mirror.destination_identity, scope or self.scope, None, run=run, tasks=3
        )[0]

    def rebuilt(self) -> RebuildResult:
        check, link = LocalParity(self.mirrored.config.path), self.mirrored.link

        def compare(ranges: Sequence[ParityRange]) -> ParityResult:
            return check(link.mirror.source_identity, link.mirror.destination_identity, ranges, None)

        return rebuild_receipts(
            link, self.mirrored.state, self.receipts, LocalCertificateRunner(), compare, lambda line: None
        )


def copied(
    pair: Pair,
    folder: Path,
    *rounds: Sequence[Content],
    gaps: GapFilling | None = None,
    partitions: int = 1,
    **config: str,
) -> Copied:
    topic = new_topic(pair.east, partitions, retention_ms="-1", **config)
    mirrored = new_mirror(pair, folder, topic, gaps=gaps)
    receipts = LocalFolder(folder / "receipts")
    for records in rounds:
        for partition in range(partitions):
            send(pair.east, topic, records, partition)
        mirrored.copy(str(receipts.path))
    return Copied(mirrored, topic, receipts)


def mixed(count: int) -> list[Content]:
    """Some of it aborted: gaps on both sides."""
    return [replace(one, aborted=n % 90 == 45) for n, one in enumerate(content(count))]


def unproved(scope: CertificateScope) -> dict[Partition, list[tuple[int, int]]]:
    return {partition: [(gap.start, gap.end) for gap in mine] for partition, mine in scope.uncertified.items()}


TOMORROW = "9999-01-01"
