"""Compares a promoted cluster with its certificates.

Applications already write, so this never fails the run.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.decide import certificate_coverage
from mirror_core.decide.mirror_snapshot import UnseenCluster
from mirror_core.decide.parity_result import ParityRow
from mirror_core.evidence.file_store import Folder, is_url
from mirror_core.evidence.receipt_index import ReceiptHeads, find_newest_location, list_receipt_files
from mirror_core.model.errors import MirrorError
from mirror_core.model.figures import FigureKey, FigureValue
from mirror_core.model.files import Unwritable, report_write_errors
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.parity_verdict import ParityResult
from mirror_core.model.run import StepEvidence
from mirror_core.model.task_messages import ReceiptPiece
from mirror_core.model.text import format_option, format_shell_command
from mirror_core.parity.certificate_check import (
    COMPACTED_REASON,
    CertificateScope,
    CertificateTask,
    check_certificates,
    iterate_verified,
    read_certificate_scope,
    to_unread_certificate_rows,
)
from mirror_core.runbook.run_services import EVIDENCE_ADVICE
from mirror_core.runbook.snapshot_reader import Query
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State

CERTIFICATION_LIMIT_S: Final = 60.0
MAX_CERTIFICATES: Final = 200_000
"""More would take too much memory and time."""
CERTIFICATION_TASKS: Final = 4
CERTIFICATES_FOLDER: Final = "certificates"
CERTIFICATE_LIST_FILE: Final = "read.json"
"""The receipt files that were read, with their hashes."""


def certify_destination(
    link: MirrorLink,
    state: State,
    open_receipts: Callable[[str], Folder],
    output: Path,
    print_line: Callable[[str], None],
    *,
    record_differences: Callable[[ParityResult], None],
    waiting_mirror: MirrorName | None = None,
) -> StepEvidence:
    """`output`: the run's folder. `record_differences` receives a result with differences. `waiting_mirror`: a mirror
    of the set that waits for this run; then nothing is compared. Raises Unwritable on a full disk.
    """
    deadline, name = time.monotonic() + CERTIFICATION_LIMIT_S, link.mirror.name
    heads = state.receipts.get(name, {})
    if not list_receipt_files(heads):
        return certificate_coverage.build_unknown_evidence("no certificate was stored")
    location = find_newest_location(heads)
    if not location:
        retry_command: StepEvidence = {FigureKey.TO_PROVE_MORE: _format_parity_command(link, "DIR|URL")}
        reason = "the newest certificates are at a URL with a password, which is not recorded"
        return {**certificate_coverage.build_unknown_evidence(reason), **retry_command}
    further_evidence: dict[str, FigureValue] = {
        FigureKey.CERTIFICATES_READ_FROM: _format_location(location),
        FigureKey.TO_PROVE_MORE: _format_parity_command(link, location),
    }
    if waiting_mirror is not None:
        reason = f"mirror {waiting_mirror} of its set may be waiting for this run, so nothing was compared"
        return {**certificate_coverage.build_unknown_evidence(reason), **further_evidence}
    if (pieces := sum(receipt_file.pieces for receipt_file in list_receipt_files(heads).values())) > MAX_CERTIFICATES:
        return {
            **certificate_coverage.build_unknown_evidence(
                f"{pieces:,} certificates are more than can be read within a minute"
            ),
            **further_evidence,
        }
    print_line(
        f"comparing {link.destination.name} with the certificates in"
        f" {further_evidence[FigureKey.CERTIFICATES_READ_FROM]}, {CERTIFICATION_LIMIT_S:.0f} s at most"
    )
    statuses = state.partitions.get(name, {})
    last_mirrored_offsets = {p: status.lmo for p, status in statuses.items() if status.lmo is not None}
    scope_query = Query(
        lambda: read_certificate_scope(link, _drop_partitions_without_lmo(state, link), open_receipts(location))
    )
    scope = scope_query.await_result(deadline)
    if isinstance(scope, UnseenCluster):
        return {**certificate_coverage.build_unknown_evidence(scope.reason), **further_evidence}
    deadline_runner = DeadlineRunner(deadline)
    try:
        result, rows = check_certificates(
            link.config.path,
            link.mirror.destination_identity,
            scope,
            output / CERTIFICATES_FOLDER,
            run=deadline_runner,
            tasks=CERTIFICATION_TASKS,
        )
    except Unwritable:
        raise
    except MirrorError as error:  # such as a configuration changed meanwhile
        return {**certificate_coverage.build_unknown_evidence(str(error)), **further_evidence}
    if result.findings or result.damage_findings:
        record_differences(result)
    _write_certificate_list(output / CERTIFICATES_FOLDER / CERTIFICATE_LIST_FILE, location, heads, scope)
    logs = {p: (start, max(start, last_mirrored_offsets[p])) for p, (start, _) in scope.ends.items()}
    coverage = certificate_coverage.build_coverage_evidence(
        certificate_coverage.compute_coverage(logs, rows),
        result,
        altered=scope.checked.altered,
        left_out=scope.left_out,
        without_lmo=sorted(statuses.keys() - last_mirrored_offsets.keys()),
    )
    is_incomplete = any(row.error and row.error != COMPACTED_REASON and not row.damaged for row in rows)
    if not (is_incomplete or scope.checked.lost):  # lost files may be on another machine
        del further_evidence[FigureKey.TO_PROVE_MORE]
        if scope.uncertified.keys() & scope.ends.keys():
            further_evidence[FigureKey.TO_PROVE_MORE_FROM_SOURCE] = format_shell_command(
                "mirrorbook", "receipts", "rebuild", link.mirror.name, *format_option("--receipts", location)
            )
    return {**coverage, FigureKey.CERTIFICATES_REPORT: result.report, **further_evidence}


class DeadlineRunner:
    """Pieces not read by the deadline become rows that say so."""

    def __init__(
        self, deadline: float, read_rows: Callable[[CertificateTask], Iterator[ParityRow]] = iterate_verified
    ) -> None:
        """`deadline`: time.monotonic(). `read_rows` yields a row per piece."""
        self._deadline = deadline
        self._read_rows = read_rows
        self._expired = threading.Event()

    def __call__(self, tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]:
        rows_by_task: list[list[ParityRow]] = [[] for _ in tasks]
        # Abandoned if a read hangs: the run must end.
        queries = [
            Query(partial(self._collect_rows, task, rows)) for task, rows in zip(tasks, rows_by_task, strict=True)
        ]
        outcomes = [query.await_result(self._deadline) for query in queries]
        self._expired.set()
        rows = list[ParityRow]()
        for task, task_rows, outcome in zip(tasks, rows_by_task, outcomes, strict=True):
            rows_read = list(task_rows)
            rows += rows_read
            if isinstance(outcome, UnseenCluster):
                rows += to_unread_certificate_rows(
                    replace(task, pieces=_join_pieces(task.pieces[len(rows_read) :])), f"not read: {outcome.reason}"
                )
        return rows

    def _collect_rows(self, task: CertificateTask, rows: list[ParityRow]) -> None:
        for row in self._read_rows(task):
            rows.append(row)
            if self._expired.is_set():
                return


def _join_pieces(pieces: Sequence[tuple[Partition, ReceiptPiece]]) -> tuple[tuple[Partition, ReceiptPiece], ...]:
    joined: dict[Partition, ReceiptPiece] = {}
    for partition, piece in pieces:
        previous = joined.get(partition, replace(piece, records=0, digest=""))
        joined[partition] = replace(previous, next=piece.next, records=previous.records + piece.records)
    return tuple(joined.items())


def _drop_partitions_without_lmo(state: State, link: MirrorLink) -> State:
    """One offline partition must not stop the comparison of others."""
    name = link.mirror.name
    with_lmo = {p: status for p, status in state.partitions.get(name, {}).items() if status.lmo is not None}
    return replace(state, partitions={**state.partitions, name: with_lmo})


def _write_certificate_list(path: Path, location: str, heads: ReceiptHeads, scope: CertificateScope) -> None:
    hashes, checked = (
        {path: receipt_file.sha256 for path, receipt_file in list_receipt_files(heads).items()},
        scope.checked,
    )
    document = {
        "read_from": location,
        "files": {path: hashes.get(path) for path in checked.readable},
        "altered": checked.altered,
        "lost": checked.lost,
        "unknown": checked.unknown,
        "unwritten": checked.unwritten,
    }
    with report_write_errors("list of certificates", path, EVIDENCE_ADVICE):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))


def _format_location(location: str) -> str:
    return location if is_url(location) else f"{location} on {socket.gethostname()}"


def _format_parity_command(link: MirrorLink, location: str) -> str:
    arguments = ("parity", link.mirror.name, "--against", "certificates")
    return format_shell_command("mirrorbook", *arguments, *format_option("--receipts", location))
