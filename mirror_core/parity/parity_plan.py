"""A comparison as a file, which tasks read and the verdict follows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from mirror_core.decide.parity_result import CHUNK_OFFSETS, LEVEL_DIGEST, LEVEL_RECORDS, ParityRow
from mirror_core.decide.parity_spans import SPAN_BYTES, ParitySpan, cut_spans
from mirror_core.decide.verification import VerificationBasis
from mirror_core.evidence.file_store import Folder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.log_snapshot import fetch_log_sizes
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName, Partition
from mirror_core.model.parity_verdict import KnownDifference, MirrorVerification, ParityRange, VerifiedEnd
from mirror_core.model.timing import TIMEOUTS
from mirror_core.parity.check import compare_ends

PLAN_FORMAT: Final = 1
PLAN_NAME: Final = "plan of a comparison"
NOTHING_LEFT_OUT: Final[Mapping[Partition, str]] = MappingProxyType({})
_Value = TypeVar("_Value")


class StoredBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What was proved when the plan was made; leader epochs must be read before logs are."""

    proof: MirrorVerification | None
    valid: tuple[tuple[Partition, VerifiedEnd], ...]
    unconfirmed: tuple[tuple[Partition, VerifiedEnd], ...]
    epochs: tuple[tuple[Partition, int], ...]
    source_epochs: tuple[tuple[Partition, int], ...]
    topic_ids: dict[str, str]
    differences: tuple[KnownDifference, ...]

    @classmethod
    def from_basis(cls, basis: VerificationBasis, proof: MirrorVerification | None) -> StoredBasis:
        return cls(
            proof=proof,
            valid=_list_items(basis.valid),
            unconfirmed=_list_items(basis.unconfirmed),
            epochs=_list_items(basis.epochs),
            source_epochs=_list_items(basis.source_epochs),
            topic_ids=dict(basis.topic_ids),
            differences=basis.differences,
        )

    def to_basis(self) -> VerificationBasis:
        return VerificationBasis(
            dict(self.valid),
            dict(self.epochs),
            self.topic_ids,
            dict(self.source_epochs),
            self.differences,
            dict(self.unconfirmed),
        )


def _list_items(values: Mapping[Partition, _Value]) -> tuple[tuple[Partition, _Value], ...]:
    return tuple(sorted(values.items(), key=lambda item: item[0]))


class ParityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds no secret: tasks open `config_path` themselves."""

    format: int
    mirror: MirrorName
    producer_id: int
    """Another mirror of this name has another one."""
    source: ClusterIdentity
    destination: ClusterIdentity
    level: int
    chunk: int
    throttle: int | None
    """Bytes per second of each cluster, all tasks together."""
    config_path: str
    """Where tasks run."""
    planned_ms: int
    """By the clock of the destination's brokers."""
    ranges: tuple[ParityRange, ...]
    ends: tuple[ParityRow, ...]
    """What was known of both logs when the plan was made."""
    spans: tuple[ParitySpan, ...]
    left_out: tuple[tuple[Partition, str], ...]
    """Out of scope, and why."""
    basis: StoredBasis

    @property
    def digest(self) -> str:
        """Names the plan in tables."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class _PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    plan: ParityPlan


def make_parity_plan(
    config: Config,
    mirror: MirrorName,
    producer_id: int,
    source: ClusterIdentity,
    destination: ClusterIdentity,
    ranges: Sequence[ParityRange],
    basis: StoredBasis,
    *,
    planned_ms: int,
    level: int = LEVEL_RECORDS,
    chunk: int = CHUNK_OFFSETS,
    span_bytes: int = SPAN_BYTES,
    throttle: int | None = None,
    left_out: Mapping[Partition, str] = NOTHING_LEFT_OUT,
    opened_by_tasks: Path | None = None,
) -> ParityPlan:
    """Asks both clusters as their control principals. `opened_by_tasks`: configuration for tasks."""
    if not LEVEL_DIGEST <= level <= LEVEL_RECORDS:
        raise BadRequest(f"plan of level {level}: there are 2 (digests) and 3 (records); ends need no tasks")
    ends, shared = compare_ends(config, source, destination, ranges)
    means = _measure_bytes_per_offset(config, source.name, [r.partition for r in shared if r.start < r.end])
    return ParityPlan(
        format=PLAN_FORMAT,
        mirror=mirror,
        producer_id=producer_id,
        source=source,
        destination=destination,
        level=level,
        chunk=chunk,
        throttle=throttle,
        config_path=str((opened_by_tasks or config.path).absolute()),
        planned_ms=planned_ms,
        ranges=tuple(ranges),
        ends=tuple(ends),
        spans=cut_spans(shared, means, chunk, span_bytes),
        left_out=_list_items(left_out),
        basis=basis,
    )


def _measure_bytes_per_offset(
    config: Config, source: ClusterName, partitions: Collection[Partition]
) -> dict[Partition, float]:
    if not partitions:
        return {}
    try:
        with ClusterClient(config.cluster(source), Principal.CONTROL) as client:
            sizes = fetch_log_sizes(client, partitions)
            within_s = TIMEOUTS.copy_leader_s
            starts = list_known_offsets(client, partitions, OffsetPoint.START, within_s=within_s)
            ends = list_known_offsets(client, partitions, OffsetPoint.LOG_END, within_s=within_s)
    except RemoteFault:  # an estimate: reading will tell what cannot be read
        return {}
    known = sizes.keys() & starts.keys() & ends.keys()
    return {p: sizes[p] / (ends[p] - starts[p]) for p in known if ends[p] > starts[p]}


def encode_plan(plan: ParityPlan) -> bytes:
    return msgspec.json.encode(_PlanFile(digest=plan.digest, plan=plan))


def read_plan(folder: Folder, name: str) -> ParityPlan:
    """Raises BadRequest."""
    where = f"{folder.where}/{name}"
    try:
        content = folder.read(name)
    except OSError as error:
        raise BadRequest(f"{where}: {error.strerror or error}: `mirrorbook parity-job plan` writes it") from None
    return parse_plan(content, where)


def parse_plan(content: bytes, where: str) -> ParityPlan:
    """Raises BadRequest."""
    try:
        stored = msgspec.json.decode(content, type=_PlanFile)
    except msgspec.DecodeError as error:
        raise BadRequest(
            f"{where}: this is not the plan of a comparison: {error}. Make one: mirrorbook parity-job plan"
        ) from None
    if stored.plan.format != PLAN_FORMAT or stored.plan.digest != stored.digest:
        raise BadRequest(f"{where}: the plan is not as it was written: its digest differs. Make a new one")
    return stored.plan
