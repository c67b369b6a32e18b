from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    NameArgument,
    SparkConfOption,
    check_runner,
    find_mirror,
    print_facts,
    print_json,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.parity import MAX_LISTED, make_parity_check, make_proof_tasks
from mirror_core.cli.tables import print_table
from mirror_core.decide.parity_result import LEVEL_RECORDS
from mirror_core.mirrors.receipt_maintenance import RebuildResult, first_open_day
from mirror_core.mirrors.receipt_maintenance import compact_receipts as compact_receipts
from mirror_core.mirrors.receipt_maintenance import rebuild_receipts as rebuild_receipts
from mirror_core.model.errors import Indeterminate
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.text import format_items

receipts_app = typer.Typer(no_args_is_help=True, help="What vouches for a copy: put together, or stored anew.")

ReceiptsOption = Annotated[str, typer.Option("--receipts", metavar="DIR|URL", help="Where `replicate` keeps them.")]
RunnerOption = Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")]
MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]


class CompactDocument(JsonDocument, frozen=True, kw_only=True):
    """A compaction of receipts."""

    mirror: str
    days: Mapping[str, tuple[int, int]]
    """Files before and after, by day."""
    pieces_left_out: int
    left: Mapping[str, str]
    """Unchanged days, with the lost, altered or foreign file."""


class UncoveredPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition not wholly covered by receipts."""

    topic: str
    partition: int
    why: tuple[str, ...]


class RebuildDocument(JsonDocument, frozen=True, kw_only=True):
    """A rebuild of receipts."""

    mirror: str
    records: int
    """Covered again."""
    files: int
    settled: tuple[str, ...]
    """Superseded files."""
    left: tuple[UncoveredPartition, ...]


@receipts_app.command("compact")
@prints_json(CompactDocument)
def compact(
    name: NameArgument,
    receipts: ReceiptsOption = "receipts",
    runner: RunnerOption = "local",
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One file a day, up to the day before yesterday, without what vouches for no log any more."""
    check_runner(runner)
    link, _ = find_mirror(config, name)
    compaction = compact_receipts(link, make_proof_tasks(runner, master, conf).folder(receipts), first_open_day())
    if as_json:
        print_json(
            CompactDocument(
                mirror=name, days=compaction.files, pieces_left_out=compaction.pieces_left_out, left=compaction.troubled
            )
        )
    else:
        print_facts({"mirror": name, "days": len(compaction.files), "pieces left out": compaction.pieces_left_out})
        if compaction.files:
            print_table("put together", ("day", "files before", "now"), [(d, *n) for d, n in compaction.files.items()])
    if compaction.troubled:
        listed = format_items(f"{day}: {path}" for day, path in compaction.troubled.items())
        raise Indeterminate(
            f"mirror {name}: {len(compaction.troubled)} days stay as they are, since receipts were lost, altered or are"
            f" not ours; `mirrorbook receipts rebuild {name}` looks at what they vouched for:{listed}"
        )


@receipts_app.command("rebuild")
@prints_json(RebuildDocument)
def rebuild(
    name: NameArgument,
    receipts: ReceiptsOption = "receipts",
    runner: RunnerOption = "spark",
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what no receipt vouches for with the source, and vouch for what is equal. 4 when something is left."""
    check_runner(runner)
    link, state = find_mirror(config, name)
    proof = make_proof_tasks(runner, master, conf)
    check = make_parity_check(link.config.path, runner, master, LEVEL_RECORDS, conf, None)
    rebuilt = rebuild_receipts(
        link,
        state,
        proof.folder(receipts),
        proof,
        lambda ranges: check(link.mirror.source_identity, link.mirror.destination_identity, ranges, None, None),
        lambda line: print_line(line, err=True),
    )
    _print_rebuild(name, rebuilt, as_json)
    if rebuilt.uncovered:
        raise Indeterminate(
            f"mirror {name}: of {len(rebuilt.uncovered)} partitions something is vouched for by no receipt"
        )


def _print_rebuild(name: str, rebuilt: RebuildResult, as_json: bool) -> None:
    if as_json:
        uncovered = tuple(
            UncoveredPartition(topic=p.topic, partition=p.index, why=reasons)
            for p, reasons in rebuilt.uncovered.items()
        )
        print_json(
            RebuildDocument(
                mirror=name, records=rebuilt.records, files=rebuilt.files, settled=rebuilt.settled, left=uncovered
            )
        )
        return
    print_facts(
        {"mirror": name, "records": rebuilt.records, "files": rebuilt.files, "files settled": len(rebuilt.settled)}
    )
    for partition, reasons in list(rebuilt.uncovered.items())[:MAX_LISTED]:
        print_line(f"no receipt covers {partition}: {'; '.join(reasons[:MAX_LISTED])}")
