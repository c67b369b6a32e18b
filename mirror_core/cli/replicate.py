"""`mirrorbook replicate`: parse, call, print."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, JsonOption, NameArgument, mirror, print_facts, print_json
from mirror_core.cli.metrics import OPTION, address, served
from mirror_core.cli.progress import shown
from mirror_core.cli.spark_conf import SparkConfOption, spark_conf
from mirror_core.cli.telling import tell
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Options, Replication, refuse_to_run
from mirror_core.dataplane.local import LocalRunner
from mirror_core.dataplane.metrics import Exposition
from mirror_core.dataplane.results import Summary, raise_if_failed
from mirror_core.dataplane.runner import Runner


def replicate_command(
    name: NameArgument,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all is copied that the source holds now.")
    ] = False,
    runner: Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")] = "spark",
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*]",
    conf: SparkConfOption = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Copying tasks at a time.")] = 2,
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="Folder for receipts. Default: ./receipts.")
    ] = Path("receipts"),
    metrics: Annotated[
        str | None,
        typer.Option(
            OPTION,
            metavar="[HOST:]PORT",
            help="Serve /metrics for Prometheus, for this machine only unless HOST says otherwise. Port 0: any.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing mirror topics and copy. Runs on until SIGTERM, or until caught up."""
    if runner not in ("spark", "local"):
        raise typer.BadParameter("must be spark or local", param_hint="--runner")
    where = address(metrics) if metrics is not None else None
    if runner == "spark":
        from mirror_core.spark.session import check_master

        check_master(master)  # now: Spark itself is started when the lease is held and topics are created
    settings = spark_conf(conf) if runner == "spark" else {}
    link, state = mirror(config, name)
    refuse_to_run(state, link)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    say = (lambda text: tell(text, err=True)) if as_json else tell
    counters = Counters()
    with shown() as progress, served(where, Exposition(link.mirror, counters, progress), say):
        options = Options(
            until_caught_up=until_caught_up,
            receipts=receipts.absolute() if receipts else None,
            progress=progress,
        )
        copying = Replication(
            link, lambda: _runner(runner, master, tasks, settings), options, stop=stop, say=say, counters=counters
        )
        summary = copying.run()
    if as_json:
        print_json(_json(summary))
    else:
        print_facts(_facts(summary))
    raise_if_failed(summary)


def _runner(kind: str, master: str, tasks: int, conf: Mapping[str, str]) -> Runner:
    if kind == "local":
        return LocalRunner()
    # Imported late: `--runner local` must work where Spark is not installed.
    from mirror_core.spark.runner import SparkRunner

    return SparkRunner(master, tasks, conf)


def _facts(summary: Summary) -> dict[str, object]:
    return {
        "caught up": "yes" if summary.caught_up else "no",
        "partitions": len(summary.positions),
        "failed": len(summary.failed),
        "records": summary.records,
        "bytes": summary.bytes,
        "seconds": f"{summary.seconds:.1f} ({summary.copy_seconds:.1f} copying)",
        "copier CPU seconds": f"{summary.cpu_s:.2f}",
    }


def _json(summary: Summary) -> dict[str, object]:
    return {
        "caught_up": summary.caught_up,
        "positions": {str(partition): offset for partition, offset in sorted(summary.positions.items())},
        "failed": {str(partition): reason for partition, reason in sorted(summary.failed.items())},
        "records": summary.records,
        "bytes": summary.bytes,
        "seconds": round(summary.seconds, 3),
        "copy_seconds": round(summary.copy_seconds, 3),
        "copier_cpu_seconds": round(summary.cpu_s, 3),
        "epochs": summary.epochs,
    }
