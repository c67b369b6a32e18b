from __future__ import annotations

import hashlib
import io
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    SparkConfOption,
    check_plan_hash,
    check_runner,
    load_configuration,
    parse_spark_conf,
    print_json,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import print_table
from mirror_core.evidence.file_store import Folder, is_url, open_local_folder
from mirror_core.evidence.table_schemas import SALVAGE_REPLAYS
from mirror_core.mirrors.replay_check import REFUSAL, check_replay_login, find_replay_target
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Refused, RemoteFault
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.names import Offset
from mirror_core.model.parity_verdict import SalvageMatch
from mirror_core.model.text import format_bytes, format_count
from mirror_core.model.timing import now_ms
from mirror_core.parity.salvage import MANIFEST
from mirror_core.parity.salvage_replay import (
    ReplayCount,
    ReplayedPartition,
    ReplayOutcome,
    ReplayPlan,
    ReplaySelection,
    check_writable_records,
    count_selected,
    judge_replay,
    make_replay_task,
    merge_counts,
    read_selected,
    replay_batches,
)

salvage_app = typer.Typer(no_args_is_help=True, help="Records that were saved from a divergent tail.")
TABLE_NAME: Final = "report of a replay"
TABLE_ADVICE: Final = "make room and rights there, or give another folder (--table)"
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_EXIT_CODES: Final = {
    ReplayOutcome.WRITTEN: 0,
    ReplayOutcome.INCOMPLETE: MirrorError.exit_code,
    ReplayOutcome.DIFFERS: MirrorError.exit_code,
    ReplayOutcome.UNKNOWN: Indeterminate.exit_code,
}


@salvage_app.callback()
def salvage_group() -> None:
    """Records that were saved from a divergent tail."""


class ReplayCountRow(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen records of one partition and match class."""

    topic: str
    partition: int
    match: str
    """Empty: the salvage did not compare the record with the other cluster."""
    records: int
    bytes: int


class ReplayPartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the replay wrote to one partition of the target topic."""

    topic: str
    partition: int
    target_topic: str
    selected: int
    written: int | None
    """Null: no task reported it."""
    written_before: int | None
    """By earlier attempts. Null: no task reported it."""
    first_offset: int | None
    """In the target topic. Null: nothing is written, or not known."""
    last_offset: int | None
    """In the target topic. Null: nothing is written, or not known."""
    outcome: ReplayOutcome
    error: str


class ReplayDocument(JsonDocument, frozen=True, kw_only=True):
    """Saved records that a replay wrote, or in a dry run would write."""

    cluster: str
    cluster_id: str
    plan_hash: str
    """Identifies these records, topics and cluster."""
    records: int
    dry_run: bool
    chosen: tuple[ReplayCountRow, ...]
    partitions: tuple[ReplayPartitionRow, ...]
    """Empty: nothing was to be written."""
    table: str
    """Empty: nothing was to be written."""


@salvage_app.command("replay")
@prints_json(ReplayDocument)
def replay_command(
    salvage: Annotated[str, typer.Argument(metavar="DIR|URL", help="Folder with the records that a failback saved.")],
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster to write to.")],
    to: Annotated[
        list[str], typer.Option("--to", metavar="TOPIC=TARGET", help="Saved topic, and the topic to write to; repeat.")
    ],
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", help="Refuse a cluster that has another id.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", help="Only this one; repeat.")] = None,
    offsets: Annotated[
        str | None, typer.Option("--offsets", metavar="FIRST:NEXT", help="From saved offset FIRST to before NEXT.")
    ] = None,
    match: Annotated[
        list[SalvageMatch] | None, typer.Option("--match", help="Only records of this class; repeat.")
    ] = None,
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Condition over the salvage's columns, with --runner spark.")
    ] = "",
    table: Annotated[
        str, typer.Option("--table", metavar="DIR", help="Folder to which the report is added, as Parquet.")
    ] = "evidence/replays",
    plan_hash: Annotated[
        str | None,
        typer.Option(
            "--plan-hash", callback=check_plan_hash, help="Hash that a dry run showed: write exactly its records."
        ),
    ] = None,
    runner: Annotated[str, typer.Option("--runner", help="spark, or local (this process).")] = "local",
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write saved records to topics, each once. Without --plan-hash a dry run. Exit code 1: not all; 4: unknown."""
    check_runner(runner)
    targets = _parse_targets(to)
    first, next_offset = _parse_offsets(offsets)
    selection = ReplaySelection(
        topics=tuple(sorted(targets)),
        partitions=tuple(sorted(partition or ())),
        first=first,
        next=next_offset,
        matches=tuple(match or ()),
        where=where,
    )
    loaded = load_configuration(config)
    check_replay_login(loaded)
    report_folder = open_local_folder(table, private=True)
    saved = _SavedRecords(salvage, None if runner == "local" else _start_spark(master, conf))
    manifest = saved.read_manifest()
    counts = saved.count(selection)
    needed = {target: 1 for target in targets.values()}
    for count in counts:
        target = targets[count.topic]
        needed[target] = max(needed[target], count.partition + 1)
    identity, topic_ids = find_replay_target(loaded, cluster, cluster_id, needed)
    plan = ReplayPlan(
        config_path=str(loaded.path),
        cluster=identity,
        targets=targets,
        topic_ids=topic_ids,
        selection=selection,
        salvage=hashlib.sha256(manifest).hexdigest(),
        counts=counts,
    )
    if reasons := check_writable_records(counts):
        raise Refused(REFUSAL, reasons, reason_code="replay_refused")
    if plan_hash is not None and plan_hash != plan.hash:
        raise Refused(
            REFUSAL,
            [f"the hash is {plan.hash} now: other records, topics or cluster than in the dry run. Repeat it"],
            reason_code="plan_outdated",
        )
    if not as_json:
        _print_plan(plan)
    if plan_hash is None:
        if as_json:
            print_json(_to_document(plan, [], "", dry_run=True))
        return
    report_folder.check(TABLE_NAME, TABLE_ADVICE)
    rows = _replay(plan, saved)
    path = _write_report(report_folder, rows)
    if as_json:
        print_json(_to_document(plan, rows, path, dry_run=False))
    else:
        _print_report(rows, path)
    raise typer.Exit(max((_EXIT_CODES[ReplayOutcome(row["outcome"])] for row in rows), default=0))


class _SavedRecords:
    def __init__(self, location: str, spark: Any) -> None:
        """`spark` None: this process reads the salvage."""
        self._location, self._spark = location, spark
        if spark is None or not is_url(location):
            self._folder: Folder = open_local_folder(location)
            self._path = Path(self._folder.where)
            self._url = self._path.as_uri()
        else:
            from mirror_core.spark.hadoop_store import HadoopFolder

            self._folder, self._path, self._url = HadoopFolder(spark.sparkContext, location), Path(), location

    def read_manifest(self) -> bytes:
        try:
            return self._folder.read(MANIFEST)
        except OSError:
            raise BadRequest(f"{self._location}: no finished salvage: there is no {MANIFEST}") from None

    def count(self, selection: ReplaySelection) -> tuple[ReplayCount, ...]:
        if self._spark is None:
            return merge_counts(count_selected(read_selected(self._path, selection)))
        from mirror_core.spark.salvage_job import count_saved_records

        return count_saved_records(self._spark, self._url, selection)

    def replay(self, plan: ReplayPlan) -> list[ReplayedPartition]:
        if self._spark is None:
            return list(replay_batches(make_replay_task(plan), read_selected(self._path, plan.selection)))
        from mirror_core.spark.salvage_job import replay_saved_records

        return replay_saved_records(self._spark, self._url, plan)


def _start_spark(master: str, conf: list[str] | None) -> Any:
    from mirror_core.spark.session import get_spark_session  # late: `--runner local` needs no Spark

    return get_spark_session("mirrorbook-salvage", master, None, parse_spark_conf(conf))


def _replay(plan: ReplayPlan, saved: _SavedRecords) -> list[dict[str, Any]]:
    try:
        return judge_replay(plan, saved.replay(plan), now_ms())
    except RemoteFault as error:
        return [row | {"error": str(error)} for row in judge_replay(plan, [], now_ms())]


def _parse_targets(pairs: Sequence[str]) -> dict[str, str]:
    targets: dict[str, str] = {}
    for pair in pairs:
        topic, equals, target = pair.partition("=")
        if not equals or not all(_TOPIC_NAME.fullmatch(name) for name in (topic, target)):
            raise typer.BadParameter(f"{pair!r} is not TOPIC=TARGET", param_hint="--to")
        if topic in targets or target in targets.values():
            raise typer.BadParameter(f"{pair!r}: this topic was given before", param_hint="--to")
        targets[topic] = target
    return targets


def _parse_offsets(text: str | None) -> tuple[Offset, Offset | None]:
    if text is None:
        return Offset(0), None
    first, colon, next_offset = text.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (first, next_offset)):
        raise typer.BadParameter(f"{text!r} is not FIRST:NEXT", param_hint="--offsets")
    return Offset(int(first or 0)), Offset(int(next_offset)) if next_offset else None


def _write_report(folder: Folder, rows: Sequence[dict[str, Any]]) -> str:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SALVAGE_REPLAYS.schema), buffer, compression="zstd")
    name = f"part-{secrets.token_hex(8)}.parquet"
    folder.write(TABLE_NAME, name, buffer.getvalue(), TABLE_ADVICE)
    return f"{folder.where}/{name}"


def _to_document(plan: ReplayPlan, rows: Sequence[dict[str, Any]], table: str, *, dry_run: bool) -> ReplayDocument:
    shown = ReplayPartitionRow.__struct_fields__
    return ReplayDocument(
        cluster=plan.cluster.name,
        cluster_id=plan.cluster.id,
        plan_hash=plan.hash,
        records=plan.records,
        dry_run=dry_run,
        chosen=tuple(
            ReplayCountRow(
                topic=count.topic,
                partition=count.partition,
                match=count.match or "",
                records=count.records,
                bytes=count.bytes,
            )
            for count in plan.counts
        ),
        partitions=tuple(msgspec.convert({name: row[name] for name in shown}, ReplayPartitionRow) for row in rows),
        table=table,
    )


def _print_plan(plan: ReplayPlan) -> None:
    print_table(
        f"to cluster {plan.cluster.name} ({plan.cluster.id})",
        ("partition", "match", "records", "bytes", "target"),
        [
            (
                f"{count.topic}-{count.partition}",
                count.match or "not compared",
                f"{count.records:,}",
                format_bytes(count.bytes),
                f"{plan.targets[count.topic]}-{count.partition}",
            )
            for count in plan.counts
        ],
    )
    print_line(f"{format_count(plan.records, 'record')}, plan hash {plan.hash}")


def _print_report(rows: Sequence[dict[str, Any]], path: str) -> None:
    print_table(
        "written",
        ("partition", "target", "chosen", "written", "before", "offsets", "outcome"),
        [
            (
                f"{row['topic']}-{row['partition']}",
                row["target_topic"],
                row["selected"],
                "unknown" if row["written"] is None else row["written"],
                "unknown" if row["written_before"] is None else row["written_before"],
                "" if row["first_offset"] is None else f"{row['first_offset']} to {row['last_offset']}",
                row["outcome"],
            )
            for row in rows
        ],
    )
    for error in Counter(row["error"] for row in rows if row["error"]):
        print_line(error)
    print_line(f"report: {path}")
