"""A run without its source compares what it promoted with certificates: what it must not claim, show, or fail by."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mirror_core.decide import certificate_coverage
from mirror_core.decide.parity_result import ParityRow
from mirror_core.evidence.certificates import NO_RECEIPT, Coverage, UncoveredRange
from mirror_core.evidence.receipt_index import CheckedReceipts, add_file, find_newest_location
from mirror_core.kafka.reassignment import TopicIds
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey, FigureValue
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ALTERED_KIND, ParityResult
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from mirror_core.model.run import StepEvidence
from mirror_core.model.task_messages import ReceiptPiece
from mirror_core.parity import certificate_check
from mirror_core.parity.certificate_check import (
    COMPACTED_REASON,
    GONE_REASON,
    MAYBE_RECREATED_REASON,
    RECREATED_REASON,
    CertificateScope,
    CertificateTask,
)
from mirror_core.runbook import certification
from mirror_core.runbook.certification import DeadlineRunner
from mirror_core.state.state_records import State

NAME = MirrorName("m")
ONE, TWO = (Partition("orders", index) for index in range(2))
ID = "d" * 32
FILE = ReceiptFileEntry("e.parquet", "a" * 64, 1, stored=True)
COMMANDS = {FigureKey.TO_PROVE_MORE, FigureKey.TO_PROVE_MORE_FROM_SOURCE}
SECRET = "ftp://mirror:S3cret@store/receipts"


def certified(evidence: StepEvidence) -> tuple[FigureValue, FigureValue]:
    return evidence[FigureKey.CERTIFIED_OFFSETS], evidence[FigureKey.CERTIFIABLE_OFFSETS]


def piece(first: int, behind: int) -> ReceiptPiece:
    return ReceiptPiece(first=Offset(first), next=Offset(behind), records=behind - first, digest=f"{1:032x}")


def equal(task: CertificateTask) -> Iterator[ParityRow]:
    for partition, one in task.pieces:
        yield replace(certificate_check._to_piece_row(partition, one), dst_count=one.records, dst_digest=one.digest)


def whole(behind: int, **more: Any) -> CertificateScope:
    """Certificates for all of one partition, as the destination has it."""
    vouched = {ONE: Coverage((piece(0, behind),), None)}
    ids = {ONE.topic: ID}
    return replace(
        CertificateScope("/r", {ONE: (Offset(0), Offset(behind))}, vouched, frozenset(), {}, topic_ids=ids), **more
    )


class World:
    """A mirror, its certificates, and a destination that holds what they say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.said, self.kept = folder, list[str](), list[ParityResult]()
        self.config: Any = SimpleNamespace(path=folder / "mirrorbook.yaml", pinned_cluster=lambda identity: None)
        self.heard = TopicIds({ONE.topic: frozenset({ID})}, ())
        self._patch = monkeypatch
        monkeypatch.setattr(certificate_check, "load_config", lambda path: self.config)
        monkeypatch.setattr(certificate_check, "fetch_topic_ids", lambda client, topics: self.heard)
        monkeypatch.setattr(certificate_check, "ClusterClient", lambda cluster: nullcontext())
        monkeypatch.setattr(certification, "DeadlineRunner", lambda deadline: DeadlineRunner(deadline, equal))

    def certify(
        self,
        scope: CertificateScope,
        lmos: Mapping[Partition, int],
        *,
        where: str = "/r",
        file: ReceiptFileEntry = FILE,
    ) -> StepEvidence:
        self._patch.setattr(certification, "read_certificate_scope", lambda link, state, folder: scope)
        status: Any = {p: SimpleNamespace(lmo=Offset(lmo), state=PartitionState.STOPPED) for p, lmo in lmos.items()}
        head = ReceiptsHead(mirror=NAME, part="2026-11-24T07", files=(file,), location=where)
        state = State(receipts={NAME: {head.part: head}}, partitions={NAME: status})
        west = SimpleNamespace(name="west")
        mirror = SimpleNamespace(name=NAME, destination_identity=ClusterIdentity(ClusterName("west"), "id-of-west"))
        link: Any = SimpleNamespace(mirror=mirror, destination=west, config=self.config)
        opened: Any = lambda where: SimpleNamespace(where=where)  # noqa: E731
        return certification.certify_destination(
            link,
            state,
            opened,
            self.folder / "run",
            self.said.append,
            record_differences=lambda found: self.kept.append(found),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def test_all_is_proved_where_certificates_reach_the_last_mirrored_offset(world: World) -> None:
    seen = world.certify(whole(10), {ONE: 10})
    assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen), seen[FigureKey.NOT_PROVED]) == (
        "passed",
        (10, 10),
        (),
    )
    assert not COMMANDS & seen.keys()


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        ({"e" * 32}, RECREATED_REASON),
        ({ID, "e" * 32}, RECREATED_REASON),
        (set(), MAYBE_RECREATED_REASON),
        (None, MAYBE_RECREATED_REASON),
    ],
)
def test_nothing_is_proved_of_a_topic_that_may_have_been_made_anew_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, heard: set[str] | None, why: str
) -> None:
    def silent(*asked: object) -> TopicIds:
        raise BadRequest("the password is another one now")

    if heard is None:
        monkeypatch.setattr(certificate_check, "fetch_topic_ids", silent)
    else:
        world.heard = TopicIds({ONE.topic: frozenset(heard)}, ())
    seen = world.certify(whole(10), {ONE: 10})
    assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen)) == ("indeterminate", (0, 10))
    assert why in str(seen[FigureKey.NOT_PROVED_BECAUSE])


@pytest.mark.parametrize(("heard", "found"), [(set(), 1), ({"e" * 32}, 0)])
def test_what_was_altered_is_told_unless_that_was_another_topic(
    world: World, monkeypatch: pytest.MonkeyPatch, heard: set[str], found: int
) -> None:
    def altered(task: CertificateTask) -> Iterator[ParityRow]:
        for row in equal(task):
            yield certificate_check._mark_altered(row)

    monkeypatch.setattr(certification, "DeadlineRunner", lambda deadline: DeadlineRunner(deadline, altered))
    world.heard = TopicIds({ONE.topic: frozenset(heard)}, (3,))
    seen = world.certify(whole(10), {ONE: 10})
    assert (len(world.kept), certified(seen)) == (found, (0, 10))


def test_what_was_altered_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on and ends; the difference is to be known afterwards, too."""

    def altered(task: CertificateTask) -> Iterator[ParityRow]:
        for row in equal(task):
            yield certificate_check._mark_altered(row)

    monkeypatch.setattr(certification, "DeadlineRunner", lambda deadline: DeadlineRunner(deadline, altered))
    world.certify(whole(10), {ONE: 10})
    assert [[(f.partition, f.offset, f.kind) for f in found.findings] for found in world.kept] == [
        [(ONE, 0, ALTERED_KIND)]
    ]


def test_a_partition_that_is_gone_from_the_destination_is_not_proved(world: World) -> None:
    seen = world.certify(whole(10, left_out={TWO: "the destination does not hold it any more"}), {ONE: 10, TWO: 1000})
    assert (seen[FigureKey.CERTIFICATES_VERDICT], seen[FigureKey.NOT_PROVED]) == (
        "indeterminate",
        ("orders-1: all of it",),
    )
    assert "does not hold it any more" in str(seen[FigureKey.NOT_PROVED_BECAUSE])
    assert not COMMANDS & seen.keys(), "nothing proves what is gone"


HOLE = {ONE: (UncoveredRange(Offset(10), Offset(12), NO_RECEIPT),)}
LOST = CheckedReceipts(readable=(), lost=("e.parquet",))
GONE = {TWO: (UncoveredRange(Offset(0), Offset(9), GONE_REASON),)}


@pytest.mark.parametrize(
    ("scope", "error", "command"),
    [
        (whole(10, uncertified=HOLE), "", FigureKey.TO_PROVE_MORE_FROM_SOURCE),
        (whole(10, uncertified=HOLE), "not read: no answer in time", FigureKey.TO_PROVE_MORE),
        (whole(10), "not read: no answer in time", FigureKey.TO_PROVE_MORE),
        (whole(10, uncertified=HOLE, checked=LOST), "", FigureKey.TO_PROVE_MORE),
        (whole(10, uncertified=GONE), "", None),
        (whole(10), COMPACTED_REASON, None),
    ],
)
def test_the_command_that_is_named_can_prove_more(
    world: World, monkeypatch: pytest.MonkeyPatch, scope: CertificateScope, error: str, command: FigureKey | None
) -> None:
    """Comparing again what was compared to the end proves nothing more: the source's records do."""

    def read(task: CertificateTask) -> Iterator[ParityRow]:
        yield from (replace(row, error=error) for row in equal(task))

    monkeypatch.setattr(certification, "DeadlineRunner", lambda deadline: DeadlineRunner(deadline, read))
    seen = world.certify(scope, {ONE: 12})
    assert seen[FigureKey.CERTIFICATES_VERDICT] == "indeterminate"
    assert COMMANDS & seen.keys() == ({command} if command else set())
    if command is FigureKey.TO_PROVE_MORE_FROM_SOURCE:
        assert seen[command] == "mirrorbook receipts rebuild m --receipts /r"


def test_a_log_that_ends_before_its_last_mirrored_offset_is_not_proved_up_to_there(world: World) -> None:
    seen = world.certify(whole(900), {ONE: 1000})
    assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen)) == ("indeterminate", (900, 1000))
    assert seen[FigureKey.NOT_PROVED] == ("orders-0: 100 of 1000 offsets, [900, 1000)",)


def test_a_configuration_that_was_changed_meanwhile_fails_no_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise BadRequest("mirrorbook.yaml: unknown key")

    monkeypatch.setattr(certificate_check, "load_config", broken)
    seen = world.certify(whole(10), {ONE: 10})
    assert (seen[FigureKey.CERTIFICATES_VERDICT], seen[FigureKey.NOT_PROVED_BECAUSE]) == (
        "indeterminate",
        ("mirrorbook.yaml: unknown key",),
    )


def test_so_many_certificates_that_they_would_hold_up_the_run_are_left_to_a_person(world: World) -> None:
    seen = world.certify(whole(10), {ONE: 10}, file=FILE._replace(pieces=certification.MAX_CERTIFICATES + 1))
    assert "more than can be read within a minute" in str(seen[FigureKey.NOT_PROVED_BECAUSE])
    assert str(seen[FigureKey.TO_PROVE_MORE]).endswith("--receipts /r")


def test_a_password_in_a_url_is_neither_remembered_nor_shown(world: World) -> None:
    told = (SECRET, "s3a://KEY:se/cr3t@store/r", "s3a://store/r", "/a:b@c", "hdfs://name:8020/a@b", "s3a://KEY@store/r")
    known = [add_file(NAME, {}, "2026-11-24T07", FILE, location=where) for where in told]
    assert [head.location for head in known] == ["", "", *told[2:]]
    assert (
        find_newest_location(
            {"older": msgspec.convert({**msgspec.to_builtins(known[0]), "location": SECRET}, ReceiptsHead)}
        )
        == ""
    )
    seen = world.certify(whole(10), {ONE: 10}, where=SECRET)
    assert "S3cret" not in f"{seen}{world.said}"
    assert "a URL with a password" in str(seen[FigureKey.NOT_PROVED_BECAUSE])


@pytest.mark.parametrize(
    ("told", "newest"),
    [
        ({"2026-11-24T07": "/old", "2026-11-24-rebuilt": "/new"}, "/new"),
        ({"2026-11-20": "/laptop", "2026-11-24T07": ""}, ""),
        ({"2026-11-24T07": "/a", "2026-11-24T08": "/b"}, "/b"),
        ({}, ""),
    ],
)
def test_certificates_are_where_the_newest_were_put(told: dict[str, str], newest: str) -> None:
    heads = {part: ReceiptsHead(mirror=NAME, part=part, files=(FILE,), location=where) for part, where in told.items()}
    assert find_newest_location(heads) == newest


def test_of_what_was_not_read_in_time_each_partition_says_so_once() -> None:
    pieces = tuple((partition, piece(n, n + 1)) for partition in (ONE, TWO) for n in range(3))
    task = CertificateTask(config_path="c", destination=NAME, pieces=pieces, compacted_topics=frozenset())  # type: ignore[arg-type]

    def broken(task: CertificateTask) -> Iterator[ParityRow]:
        yield next(equal(task))
        raise BadRequest("no")

    rows = DeadlineRunner(deadline=60.0 + time.monotonic(), read_rows=broken)([task])
    assert [(row.partition, row.start, row.end, bool(row.error)) for row in rows] == [
        (ONE, 0, 1, False),
        (ONE, 1, 3, True),
        (TWO, 0, 3, True),
    ]


@pytest.mark.parametrize(
    "seen",
    [
        {FigureKey.CERTIFICATES_VERDICT: "passed"},
        {FigureKey.CERTIFICATES_VERDICT: "failed", FigureKey.NOT_AS_COPIED: "x"},
        {},
    ],
)
def test_evidence_that_somebody_has_edited_is_no_traceback(seen: StepEvidence) -> None:
    assert certificate_coverage.format_coverage(seen)
