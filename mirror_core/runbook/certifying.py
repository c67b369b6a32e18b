"""Compares a promoted cluster with its certificates, without the source.

Applications already write, so this never fails the run: it reports what is unreadable or different.
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

from mirror_core.decide import vouching
from mirror_core.decide.parity import Row
from mirror_core.decide.view import Unseen
from mirror_core.evidence.folders import Folder, is_url
from mirror_core.evidence.heads import Heads, listed, place
from mirror_core.model.copying import Piece
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import Unwritable, writing
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.parity import ParityResult
from mirror_core.model.run import Evidence
from mirror_core.model.shell_command import option, shell_command
from mirror_core.parity.certified import CertifiedTask, prove, unread, verifying
from mirror_core.parity.certified_scope import Certified, certified
from mirror_core.runbook.observe import Ask
from mirror_core.runbook.services import ADVICE
from mirror_core.state.link import Link
from mirror_core.state.records import State

WITHIN_S: Final = 60.0
MOST: Final = 200_000
"""More would take too much memory and time."""
TASKS: Final = 4
FOLDER: Final = "certificates"
READ: Final = "read.json"
"""Lists the receipt files that were read, with their hashes."""


def certify(
    link: Link,
    state: State,
    open_receipts: Callable[[str], Folder],
    output: Path,
    say: Callable[[str], None],
    *,
    keep: Callable[[ParityResult], None],
    waits: MirrorName | None = None,
) -> Evidence:
    """Compare the destination below its LMOs with certificates.

    `output`: the run's folder. `record_differences` receives a result with differences. `waiting_mirror`: a mirror of
    the set that waits for this run; then nothing is compared. Raises Unwritable on a full disk.
    """
    deadline, name = time.monotonic() + WITHIN_S, link.mirror.name
    heads = state.receipts.get(name, {})
    if not listed(heads):
        return vouching.unknown("no certificate was stored")
    where = place(heads)
    if not where:
        again = {vouching.AGAIN: _command(link, "DIR|URL")}
        why = (
            "whoever stored the newest certificates did not say where: an older Mirrorbook, or at a URL with a password"
        )
        return {**vouching.unknown(why), **again}
    more = {vouching.WHERE: _where(where), vouching.AGAIN: _command(link, where)}
    if waits is not None:
        why = f"mirror {waits} of its set may be waiting for this run, so nothing was compared"
        return {**vouching.unknown(why), **more}
    if (pieces := sum(one.pieces for one in listed(heads).values())) > MOST:
        return {**vouching.unknown(f"{pieces:,} certificates are more than can be read within a minute"), **more}
    say(f"comparing {link.destination.name} with the certificates in {more[vouching.WHERE]}, {WITHIN_S:.0f} s at most")
    statuses = state.partitions.get(name, {})
    ended = {p: status.lmo for p, status in statuses.items() if status.lmo is not None}
    look = Ask(lambda: certified(link, _with_lmo(state, link), open_receipts(where)))
    scope = look.answer(deadline)
    if isinstance(scope, Unseen):
        return {**vouching.unknown(scope.reason), **more}
    reading = InTime(deadline)
    try:
        result, rows = prove(link.config.path, link.destination.name, scope, output / FOLDER, run=reading, tasks=TASKS)
    except Unwritable:
        raise
    except MirrorError as error:  # such as a configuration changed meanwhile
        return {**vouching.unknown(str(error)), **more}
    if result.findings or result.damaged:
        keep(result)
    _note(output / FOLDER / READ, where, heads, scope)
    logs = {p: (start, max(start, ended[p])) for p, (start, _) in scope.ends.items()}
    seen = vouching.compared(
        vouching.parts(logs, rows),
        result,
        altered=scope.checked.altered,
        left_out=scope.left_out,
        unmarked=sorted(statuses.keys() - ended.keys()),
    )
    if vouching.in_full(seen):
        del more[vouching.AGAIN]
    return {**seen, vouching.PAGE: result.report, **more}


class InTime:
    """Runs tasks in threads until a deadline. Pieces not read by then become rows that say so."""

    def __init__(self, deadline: float, read: Callable[[CertifiedTask], Iterator[Row]] = verifying) -> None:
        """`deadline`: time.monotonic(). `read_rows` yields a row per piece."""
        self._deadline = deadline
        self._read = read
        self._over = threading.Event()

    def __call__(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]:
        found: list[list[Row]] = [[] for _ in tasks]
        # Abandoned if a read hangs: the run must end.
        asked = [Ask(partial(self._take, task, rows)) for task, rows in zip(tasks, found, strict=True)]
        ends = [one.answer(self._deadline) for one in asked]
        self._over.set()
        rows = list[Row]()
        for task, taken, end in zip(tasks, found, ends, strict=True):
            mine = list(taken)
            rows += mine
            if isinstance(end, Unseen):
                rows += unread(replace(task, pieces=_joined(task.pieces[len(mine) :])), f"not read: {end.reason}")
        return rows

    def _take(self, task: CertifiedTask, rows: list[Row]) -> None:
        for row in self._read(task):
            rows.append(row)
            if self._over.is_set():
                return


def _joined(pieces: Sequence[tuple[Partition, Piece]]) -> tuple[tuple[Partition, Piece], ...]:
    found: dict[Partition, Piece] = {}
    for partition, piece in pieces:
        before = found.get(partition, replace(piece, records=0, digest=""))
        found[partition] = replace(before, next=piece.next, records=before.records + piece.records)
    return tuple(found.items())


def _with_lmo(state: State, link: Link) -> State:
    """Drop partitions without an LMO: one offline partition must not stop the comparison of others."""
    name = link.mirror.name
    mine = {p: status for p, status in state.partitions.get(name, {}).items() if status.lmo is not None}
    return replace(state, partitions={**state.partitions, name: mine})


def _note(path: Path, where: str, heads: Heads, scope: Certified) -> None:
    hashes, checked = {path: one.sha256 for path, one in listed(heads).items()}, scope.checked
    document = {
        "read_from": where,
        "files": {path: hashes.get(path) for path in checked.good},
        "altered": checked.altered,
        "lost": checked.lost,
        "unknown": checked.unknown,
        "unwritten": checked.unwritten,
    }
    with writing("list of certificates", path, ADVICE):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))


def _where(where: str) -> str:
    return where if is_url(where) else f"{where} on {socket.gethostname()}"


def _command(link: Link, where: str) -> str:
    compared = ("parity", link.mirror.name, "--against", "certificates")
    return shell_command("mirrorbook", *compared, *option("--receipts", where))
