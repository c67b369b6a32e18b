"""`mirrorbook log`: parse, call, print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mirror_core.cli.common import DryRunOption, JsonOption, YesOption, agree, print_json
from mirror_core.cli.telling import tell
from mirror_core.logdir import backup as backups
from mirror_core.logdir.actions import perform
from mirror_core.logdir.plan import Cut, Shorten
from mirror_core.logdir.stopped import Plan, planned, stopped
from mirror_core.logdir.targets import Targets, parse_targets, read_targets
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import BadRequest
from mirror_core.model.units import in_bytes

log_app = typer.Typer(help="Logs of a broker that is stopped.", no_args_is_help=True)


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction open at a batch's end."""

    producer_id: int
    since: int
    """First offset."""


class CutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's cut."""

    topic: str
    partition: int
    folder: str
    topic_id: str | None
    log_start: int
    log_end: int
    """Before the cut."""
    target: int
    boundary: int
    """A batch's end at or below the target."""
    offset: int
    """The new log end: below the boundary if transactions are open there."""
    open: tuple[OpenTransaction, ...]
    """At the boundary."""
    batches: int
    """Cut off, with `records` and `bytes`."""
    records: int | None
    """Null: unknown."""
    bytes: int


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the file that this broker does not have."""

    topic: str
    partition: int


class TruncateDocument(Document, frozen=True, kw_only=True):
    """What was or would be cut in a broker's log directories."""

    cluster_id: str
    node_id: str
    clean_shutdown: bool
    done: bool
    """False: dry run."""
    backup: str | None
    """Folder of the copy; null: none."""
    partitions: tuple[CutDocument, ...]
    elsewhere: tuple[Elsewhere, ...]


@log_app.callback()
def _group() -> None:
    """A group, also while it has one command only."""


@log_app.command()
@prints(TruncateDocument)
def truncate(
    log_dir: Annotated[
        list[Path], typer.Option("--log-dir", help="The broker's log directory; again for each of log.dirs.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="Where logs should end: the file of a failback's run.")
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", help="The same, said here: TOPIC-NUMBER=OFFSET. Repeat it.")
    ] = None,
    backup: Annotated[Path | None, typer.Option("--backup", help="Folder for a copy of what is cut off.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cut logs of a stopped broker at a batch's end at or below an offset, where no transaction is open."""
    targets = _targets(to, partition)
    with stopped(log_dir) as log_dirs:
        plan = planned(log_dirs, targets)
        for line in proposed(plan, backup):
            tell(line, err=as_json)
        if not dry_run and plan.due:
            agree(f"Cut {len(plan.due)} partition(s)?", yes)
            if backup is not None:
                backups.back_up(backup, plan.owner, plan.due, [found.path for found in log_dirs])
            perform(plan.due, log_dirs, lambda cut: tell(f"{cut.log.partition}: ends at {cut.offset}", err=as_json))
        if as_json:
            print_json(_document(plan, backup, done=not dry_run))


def proposed(plan: Plan, backup: Path | None) -> Iterator[str]:
    yield f"broker {plan.owner.node_id} of cluster {plan.owner.cluster_id}"
    for cut in plan.cuts:
        yield from _partition(cut)
    if plan.elsewhere:
        yield f"not on this broker: {', '.join(map(str, plan.elsewhere))}"
    if not plan.due:
        yield "nothing to do"
        return
    if not plan.clean:
        yield (
            "warning: the broker was killed, or died: when it starts it verifies what it had not flushed, and may end "
            "logs sooner; where there are other replicas it may have to follow them first. Transactions that were "
            "open get their markers behind the cut, from their coordinator: end them before, if you can"
        )
    if backup is None:
        yield "warning: no backup (--backup DIR): what is cut off is gone"
    else:
        yield f"copied to {backup} before anything is cut: {in_bytes(backups.size(plan.due))}"


def _partition(cut: Cut) -> Iterator[str]:
    if not cut.actions:
        yield f"{cut.log.partition}: ends at {cut.log_end}, target {cut.target}: nothing to do"
        return
    yield f"{cut.log.partition}: ends at {cut.log_end}, target {cut.target}, will end at {cut.offset}"
    yield f"  the last batch that is wholly below {cut.target} ends at {cut.boundary}"
    for producer, first in sorted(cut.open.items()):
        yield f"  open there: a transaction of producer id {producer}, since offset {first}"
    records = "an unknown number of" if cut.lost.records is None else f"{cut.lost.records:,}"
    yield f"  goes: {records} record(s) in {cut.lost.batches:,} batch(es), {in_bytes(cut.lost.bytes)}"
    for action in cut.actions:
        if isinstance(action, Shorten):
            yield f"  {action.path.name} ends at byte {action.to}"


def _targets(to: Path | None, partition: list[str] | None) -> Targets:
    if (to is None) == (not partition):
        raise BadRequest("where should logs end? Give --to FILE, or --partition TOPIC-NUMBER=OFFSET")
    return read_targets(to) if to is not None else parse_targets(partition or [])


def _document(plan: Plan, backup: Path | None, *, done: bool) -> TruncateDocument:
    return TruncateDocument(
        cluster_id=plan.owner.cluster_id,
        node_id=plan.owner.node_id,
        clean_shutdown=plan.clean,
        done=done,
        backup=None if backup is None or not plan.due else str(backup),
        partitions=tuple(_cut_document(cut) for cut in plan.cuts),
        elsewhere=tuple(Elsewhere(topic=partition.topic, partition=partition.index) for partition in plan.elsewhere),
    )


def _cut_document(cut: Cut) -> CutDocument:
    return CutDocument(
        topic=cut.log.partition.topic,
        partition=cut.log.partition.index,
        folder=str(cut.log.folder),
        topic_id=cut.log.topic_id,
        log_start=cut.log.start,
        log_end=cut.log_end,
        target=cut.target,
        boundary=cut.boundary,
        offset=cut.offset,
        open=tuple(OpenTransaction(producer_id=producer, since=first) for producer, first in sorted(cut.open.items())),
        batches=cut.lost.batches,
        records=cut.lost.records,
        bytes=cut.lost.bytes,
    )
