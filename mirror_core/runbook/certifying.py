"""What the certificates of a mirror prove, after a promotion without its source: in this process, and in limited time.

Applications write already, and nobody waits for this. So nothing here fails the run: what cannot be read is said, and
so is a copy that is not what its certificates say.
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
"""All of it; what is proved by then counts."""
MOST: Final = 200_000
"""Certificates: reading them, and the report of all that were not compared, take memory and time beyond that."""
TASKS: Final = 4
FOLDER: Final = "certificates"
"""Below the run's folder."""
READ: Final = "read.json"
"""In there: which files of certificates were there, by their hashes."""


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
    """Compare what the destination holds below its last mirrored offsets with certificates. `output`: the run's folder;
    `keep` gets what was found to differ;
    `waits`: a mirror whose applications stand still until this run has ended, so nothing is compared.

    Unwritable when there is no room for the report of it.
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
    except MirrorError as error:  # such as of a configuration that was changed meanwhile
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
    """Runs tasks in threads of this process until a moment. What was not read by then becomes a row that says so."""

    def __init__(self, deadline: float, read: Callable[[CertifiedTask], Iterator[Row]] = verifying) -> None:
        """`deadline`: monotonic. `read` gives a row for each piece of a task, in their order."""
        self._deadline = deadline
        self._read = read
        self._over = threading.Event()

    def __call__(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]:
        found: list[list[Row]] = [[] for _ in tasks]
        # Left behind where a read hangs: the run's end must not wait for it.
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
    """One of each partition, from the first of its pieces to the last: of thousands nobody reads why each was not."""
    found: dict[Partition, Piece] = {}
    for partition, piece in pieces:
        before = found.get(partition, replace(piece, records=0, digest=""))
        found[partition] = replace(before, next=piece.next, records=before.records + piece.records)
    return tuple(found.items())


def _with_lmo(state: State, link: Link) -> State:
    """The same, without partitions that have no last mirrored offset: nobody knows which of their records were copied.
    One without a leader is such a partition, and would keep all others from being compared."""
    name = link.mirror.name
    mine = {p: status for p, status in state.partitions.get(name, {}).items() if status.lmo is not None}
    return replace(state, partitions={**state.partitions, name: mine})


def _note(path: Path, where: str, heads: Heads, scope: Certified) -> None:
    """The comparison's own input beside its result, so that the run's evidence holds both."""
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
