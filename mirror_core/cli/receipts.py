"""`mirrorbook receipts`: parse, call, print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    check_runner,
    mirror,
    print_facts,
    print_json,
    print_table,
)
from mirror_core.cli.parity import SHOWN, parity_check, proof_tasks
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.cli.telling import tell
from mirror_core.decide.parity import RECORDS
from mirror_core.mirrors.rebuilding import Rebuilt
from mirror_core.mirrors.rebuilding import rebuild as rebuild_receipts
from mirror_core.mirrors.receipts import closed
from mirror_core.mirrors.receipts import compact as compact_receipts
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import Indeterminate

receipts_app = typer.Typer(no_args_is_help=True, help="What vouches for a copy: put together, or stored anew.")

ReceiptsOption = Annotated[str, typer.Option("--receipts", metavar="DIR|URL", help="Where `replicate` keeps them.")]
RunnerOption = Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")]
MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]


class CompactDocument(Document, frozen=True, kw_only=True):
    """A compaction of receipts."""

    mirror: str
    days: Mapping[str, tuple[int, int]]
    """Files before and after, by day."""
    pieces_left_out: int
    left: Mapping[str, str]
    """Unchanged days, with the lost, altered or foreign file."""


class NoReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A partition not wholly covered by receipts."""

    topic: str
    partition: int
    why: tuple[str, ...]


class RebuildDocument(Document, frozen=True, kw_only=True):
    """A rebuild of receipts."""

    mirror: str
    records: int
    """Covered again."""
    files: int
    settled: tuple[str, ...]
    """Superseded files."""
    left: tuple[NoReceipt, ...]


@receipts_app.command("compact")
@prints(CompactDocument)
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
    link, _ = mirror(config, name)
    done = compact_receipts(link, proof_tasks(runner, master, conf).folder(receipts), closed())
    if as_json:
        print_json(CompactDocument(mirror=name, days=done.files, pieces_left_out=done.pieces_left_out, left=done.left))
    else:
        print_facts({"mirror": name, "days": len(done.files), "pieces left out": done.pieces_left_out})
        if done.files:
            print_table("put together", ("day", "files before", "now"), [(d, *n) for d, n in done.files.items()])
    if done.left:
        listed = "".join(f"\n  - {day}: {path}" for day, path in done.left.items())
        raise Indeterminate(
            f"mirror {name}: {len(done.left)} days stay as they are, since receipts were lost, altered or are not "
            f"ours; `mirrorbook receipts rebuild {name}` looks at what they vouched for:{listed}"
        )


@receipts_app.command("rebuild")
@prints(RebuildDocument)
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
    link, state = mirror(config, name)
    proof = proof_tasks(runner, master, conf)
    check = parity_check(link.config.path, runner, master, RECORDS, conf, None)
    done = rebuild_receipts(
        link,
        state,
        proof.folder(receipts),
        proof,
        lambda ranges: check(link.mirror.source, link.mirror.destination, ranges, None, None),
        lambda line: tell(line, err=True),
    )
    _print(name, done, as_json)
    if done.left:
        raise Indeterminate(f"mirror {name}: of {len(done.left)} partitions something is vouched for by no receipt")


def _print(name: str, done: Rebuilt, as_json: bool) -> None:
    if as_json:
        left = tuple(NoReceipt(topic=p.topic, partition=p.index, why=why) for p, why in done.left.items())
        print_json(
            RebuildDocument(mirror=name, records=done.records, files=done.files, settled=done.settled, left=left)
        )
        return
    print_facts({"mirror": name, "records": done.records, "files": done.files, "files settled": len(done.settled)})
    for partition, why in list(done.left.items())[:SHOWN]:
        tell(f"no receipt covers {partition}: {'; '.join(why[:SHOWN])}")
