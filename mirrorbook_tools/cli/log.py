"""`mirrorbook log`: parse, call, print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mirror_core.cli.command_options import DryRunOption, JsonOption, YesOption, print_json, require_typed_name
from mirror_core.cli.output import print_line
from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.text import format_bytes
from mirrorbook_tools.logdir import backup as backups
from mirrorbook_tools.logdir.partition_truncation import PartitionTruncation, ShortenSegment, perform_truncations
from mirrorbook_tools.logdir.stopped_broker import (
    BrokerTruncation,
    TruncationTargets,
    hold_stopped_broker,
    parse_targets,
    plan_broker_truncation,
    read_targets,
)

log_app = typer.Typer(help="Logs of a broker that is stopped.", no_args_is_help=True)


class OpenTransactionDocument(msgspec.Struct, frozen=True, kw_only=True):
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
    open: tuple[OpenTransactionDocument, ...]
    """At the boundary."""
    batches: int
    """Cut off, with `records` and `bytes`."""
    records: int | None
    """Null: unknown."""
    bytes: int


class AbsentPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the file that this broker does not have."""

    topic: str
    partition: int


class TruncateDocument(JsonDocument, frozen=True, kw_only=True):
    """What was or would be cut in a broker's log directories."""

    cluster_id: str
    node_id: str
    clean_shutdown: bool
    done: bool
    """False: dry run."""
    backup: str | None
    """Folder of the copy; null: none."""
    partitions: tuple[CutDocument, ...]
    absent: tuple[AbsentPartition, ...]


@log_app.callback()
def _group() -> None:
    """A group, also while it has one command only."""


@log_app.command()
@prints_json(TruncateDocument)
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
    targets = _parse_targets(to, partition)
    with hold_stopped_broker(log_dir) as log_dirs:
        plan = plan_broker_truncation(log_dirs, targets)
        for line in format_cut_plan(plan, backup):
            print_line(line, err=as_json)
        if not dry_run and plan.due_truncations:
            partitions = [cut.log.partition for cut in plan.due_truncations]
            lost = Finding("log_ends_to_cut", plan.owner.node_id, partitions=partitions, backup=str(backup or ""))
            require_typed_name(str(plan.owner.node_id), yes, str(lost))
            if backup is not None:
                backups.write_backup(
                    backup, plan.owner, plan.due_truncations, [directory.path for directory in log_dirs]
                )
            perform_truncations(
                plan.due_truncations,
                log_dirs,
                lambda cut: print_line(f"{cut.log.partition}: ends at {cut.offset}", err=as_json),
            )
        if as_json:
            print_json(_to_document(plan, backup, is_done=not dry_run))


def format_cut_plan(plan: BrokerTruncation, backup: Path | None) -> Iterator[str]:
    yield f"broker {plan.owner.node_id} of cluster {plan.owner.cluster_id}"
    for cut in plan.truncations:
        yield from _format_cut(cut)
    if plan.absent:
        yield f"not on this broker: {', '.join(map(str, plan.absent))}"
    if not plan.due_truncations:
        yield "nothing to do"
        return
    if not plan.has_clean_shutdown:
        yield (
            "warning: the broker was killed, or died: when it starts it verifies what it had not flushed, and may end "
            "logs sooner; where there are other replicas it may have to follow them first. Transactions that were "
            "open get their markers behind the cut, from their coordinator: end them before, if you can"
        )
    if backup is None:
        yield "warning: no backup (--backup DIR): what is cut off is gone"
    else:
        yield (
            f"copied to {backup} before anything is cut:"
            f" {format_bytes(backups.compute_backup_size(plan.due_truncations))}"
        )


def _format_cut(cut: PartitionTruncation) -> Iterator[str]:
    if not cut.actions:
        yield f"{cut.log.partition}: ends at {cut.log_end}, target {cut.target}: nothing to do"
        return
    yield f"{cut.log.partition}: ends at {cut.log_end}, target {cut.target}, will end at {cut.offset}"
    yield f"  the last batch that is wholly below {cut.target} ends at {cut.boundary}"
    for producer, first_offset in sorted(cut.open_transactions.items()):
        yield f"  open there: a transaction of producer id {producer}, since offset {first_offset}"
    records = "an unknown number of" if cut.removed.records is None else f"{cut.removed.records:,}"
    yield f"  goes: {records} record(s) in {cut.removed.batches:,} batch(es), {format_bytes(cut.removed.bytes)}"
    for action in cut.actions:
        if isinstance(action, ShortenSegment):
            yield f"  {action.path.name} ends at byte {action.size}"


def _parse_targets(to: Path | None, partition: list[str] | None) -> TruncationTargets:
    if (to is None) == (not partition):
        raise BadRequest("where should logs end? Give --to FILE, or --partition TOPIC-NUMBER=OFFSET")
    return read_targets(to) if to is not None else parse_targets(partition or [])


def _to_document(plan: BrokerTruncation, backup: Path | None, *, is_done: bool) -> TruncateDocument:
    return TruncateDocument(
        cluster_id=plan.owner.cluster_id,
        node_id=plan.owner.node_id,
        clean_shutdown=plan.has_clean_shutdown,
        done=is_done,
        backup=None if backup is None or not plan.due_truncations else str(backup),
        partitions=tuple(_to_cut_document(cut) for cut in plan.truncations),
        absent=tuple(AbsentPartition(topic=partition.topic, partition=partition.index) for partition in plan.absent),
    )


def _to_cut_document(cut: PartitionTruncation) -> CutDocument:
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
        open=tuple(
            OpenTransactionDocument(producer_id=producer, since=first_offset)
            for producer, first_offset in sorted(cut.open_transactions.items())
        ),
        batches=cut.removed.batches,
        records=cut.removed.records,
        bytes=cut.removed.bytes,
    )
