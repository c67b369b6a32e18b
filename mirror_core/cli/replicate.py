"""`mirrorbook replicate`, and `mirrorbook supervise`, which keeps it running."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Protocol, TextIO

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    SparkConfOption,
    check_runner,
    complete_mirrors,
    find_mirror,
    load_configuration,
    parse_spark_conf,
    print_facts,
    print_json,
)
from mirror_core.cli.http_server import METRICS_OPTION, parse_address, serve_metrics
from mirror_core.cli.output import print_line
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Replication, ReplicationOptions, check_may_run
from mirror_core.dataplane.epoch_results import ReplicationSummary, raise_if_failed
from mirror_core.dataplane.progress import ProgressTotals, ProgressTracker
from mirror_core.dataplane.prometheus_collector import MetricsCollector
from mirror_core.dataplane.task_runner import LocalRunner, Runner
from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.evidence.file_store import is_url, open_local_folder, refuse_password
from mirror_core.kafka.config import find_config
from mirror_core.mirrors.background_work import BackgroundSync, BackgroundVerification
from mirror_core.mirrors.mirror_fleet import Fleet, FleetMember
from mirror_core.model.errors import BadRequest, PartitionFailed
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.logs import get_log_settings
from mirror_core.model.names import MirrorName
from mirror_core.model.text import format_bytes, format_items
from mirror_core.supervisor.child_commands import build_replicate_command, build_watch_command
from mirror_core.supervisor.supervisor import Supervisor

_TERMINAL_S: Final = 0.5
_PLAIN_S: Final = 5.0


class _TotalsSource(Protocol):
    def totals(self) -> ProgressTotals: ...


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[ProgressTracker]:
    progress = ProgressTracker()
    with show_totals(progress, stream):
        yield progress


@contextmanager
def show_totals(progress: _TotalsSource, stream: TextIO | None = None) -> Iterator[None]:
    output = stream or sys.stderr
    stop = threading.Event()
    printer = _print_on_terminal if output.isatty() else _print_in_lines
    thread = threading.Thread(target=printer, args=(progress, output, stop), name="progress-line", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def format_totals(totals: ProgressTotals) -> str:
    """`unknown` is printed, never left out."""
    lag = f"{totals.lag:,}"
    if totals.unknown:
        lag = "unknown" if totals.unknown == totals.partitions else f"{lag} + unknown of {totals.unknown} partitions"
    behind_text = "" if totals.worst_time_lag_s is None else f", {_format_seconds(totals.worst_time_lag_s)} behind"
    seeding = f"seeding {totals.seeding:,} partitions, {totals.to_seed:,} offsets left; " if totals.seeding else ""
    return (
        f"{totals.partitions:,} partitions, lag {lag}{behind_text}; {seeding}"
        f"{totals.records_per_s:,.0f} records/s, {format_bytes(totals.bytes_per_s)}/s; "
        f"{totals.records:,} records, {format_bytes(totals.bytes)} in all"
    )


def _print_on_terminal(progress: _TotalsSource, output: TextIO, stop: threading.Event) -> None:
    # Other output through sys.stdout and sys.stderr goes above the line.
    with Live(console=Console(file=output), auto_refresh=False, transient=False) as live:
        while not stop.wait(_TERMINAL_S):
            totals = progress.totals()
            if totals.partitions:
                live.update(Text(format_totals(totals)), refresh=True)


def _print_in_lines(progress: _TotalsSource, output: TextIO, stop: threading.Event) -> None:
    while not stop.wait(_PLAIN_S):
        totals = progress.totals()
        if totals.partitions:
            print(time.strftime("%H:%M:%S"), format_totals(totals), file=output, flush=True)


def _format_seconds(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{value:.0f} s"


def replicate_mirrors(
    config: Path | None,
    names: Sequence[str],
    runners: AbstractContextManager[Callable[[int], Runner]],
    receipts: str,
    metrics_address: tuple[str, int] | None,
    stop: threading.Event,
    prove_bytes_per_s: int | None,
) -> None:
    """Until stopped. Raises PartitionFailed if partitions were left behind."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise BadRequest(f"{', '.join(repeated)}: named more than once")
    path = load_configuration(config).path
    with runners as start:
        members = [
            FleetMember(
                path,
                MirrorName(name),
                partial(start, number),
                ReplicationOptions(receipts=receipts),
                stop=stop,
                print_line=print_line,
                verify_bytes_per_s=prove_bytes_per_s,
            )
            for number, name in enumerate(names)
        ]
        fleet = Fleet(members, stop)
        with show_totals(fleet), serve_metrics(metrics_address, fleet, print_line):
            fleet.run()
    failed = [f"{m.name}: {p}: {reason}" for m in members for p, reason in sorted(m.failed.items())]
    if failed:
        raise PartitionFailed(
            f"{len(failed)} partitions FAILED; `mirrorbook mirror recover` shows what can be done about each:"
            f"{format_items(failed)}"
        )


class ReplicateDocument(JsonDocument, frozen=True, kw_only=True):
    """What one process copied. Partition keys are TOPIC-NUMBER."""

    caught_up: bool
    positions: Mapping[str, int]
    """Next offset to copy, by receipts."""
    failed: Mapping[str, str]
    """Reason by FAILED partition."""
    never_copied: Mapping[str, int]
    """Offsets deleted on the source before the copy."""
    records: int
    bytes: int
    seconds: float
    copy_seconds: float
    """Since the first task began."""
    copier_cpu_seconds: float
    epochs: int


@prints_json(ReplicateDocument)
def replicate_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="The mirror; of several, one process copies them all.",
            autocompletion=complete_mirrors,
        ),
    ],
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all is copied that the source holds now.")
    ] = False,
    runner: Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")] = "spark",
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*]",
    conf: SparkConfOption = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks", min=1, help="Copying tasks at a time, of each mirror. Default: 2; 1 of several mirrors."
        ),
    ] = None,
    receipts: Annotated[
        str,
        typer.Option(
            "--receipts", metavar="DIR|URL", help="Folder for receipts, or a URL that Spark knows (s3a://, hdfs://)."
        ),
    ] = "receipts",
    metrics: Annotated[
        str | None,
        typer.Option(
            METRICS_OPTION,
            metavar="[HOST:]PORT",
            help="Serve /metrics for Prometheus, for this machine only unless HOST says otherwise. Port 0: any.",
        ),
    ] = None,
    prove_at: Annotated[
        str | None,
        typer.Option(
            "--prove-at",
            metavar="RATE",
            help="Compare what was copied with the source, all the time, reading each side at this rate (50MB/s).",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing mirror topics and copy. Runs on until SIGTERM, or until caught up."""
    check_runner(runner)
    metrics_address = parse_address(metrics) if metrics is not None else None
    if runner == "spark":
        from mirror_core.spark.session import check_master

        check_master(master)  # now: Spark itself starts after the lease is taken
    rate = None if prove_at is None else parse_bytes_per_s(prove_at)
    if rate is not None and until_caught_up:
        raise BadRequest("--prove-at goes on for as long as copying does, and --until-caught-up ends it: use `parity`")
    settings = parse_spark_conf(conf) if runner == "spark" else {}
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    refuse_password(receipts)
    folder = receipts if is_url(receipts) and runner == "spark" else open_local_folder(receipts).where
    if len(names) > 1:
        if until_caught_up or as_json:
            raise BadRequest(
                "--until-caught-up and --json are for one mirror at a time: several are copied until SIGTERM"
            )
        replicate_mirrors(
            config,
            names,
            _open_runners(runner, master, tasks or 1, len(names), settings),
            folder,
            metrics_address,
            stop,
            rate,
        )
        return
    link, state = find_mirror(config, names[0])
    check_may_run(state, link)
    line_printer = (lambda text: print_line(text, err=True)) if as_json else print_line
    counters = Counters()
    with (
        show_progress() as progress,
        serve_metrics(metrics_address, MetricsCollector(link.mirror, counters, progress), line_printer),
        nullcontext() if until_caught_up else BackgroundSync(link, counters, line_printer),
        BackgroundVerification(link, rate, counters, line_printer) if rate else nullcontext(),
    ):
        options = ReplicationOptions(
            until_caught_up=until_caught_up,
            receipts=folder,
            progress=progress,
        )
        replication = Replication(
            link,
            lambda: _make_runner(runner, master, tasks or 2, settings),
            options,
            stop=stop,
            report_line=line_printer,
            counters=counters,
        )
        summary = replication.run()
    if as_json:
        print_json(_to_document(summary))
    else:
        print_facts(_to_facts(summary))
    raise_if_failed(summary)


def _make_runner(kind: str, master: str, tasks: int, conf: Mapping[str, str]) -> Runner:
    if kind == "local":
        return LocalRunner()
    # Imported late: `--runner local` must work where Spark is not installed.
    from mirror_core.spark.runner import SparkRunner

    return SparkRunner(master, tasks, conf)


@contextmanager
def _open_runners(
    kind: str, master: str, tasks: int, mirrors: int, conf: Mapping[str, str]
) -> Iterator[Callable[[int], Runner]]:
    if kind == "local":
        yield lambda number: LocalRunner()
        return
    from mirror_core.spark.runner import SparkFleet

    fleet = SparkFleet(master, tasks, mirrors, conf)
    try:
        yield fleet.runner
    finally:
        fleet.close()


def _to_facts(summary: ReplicationSummary) -> dict[str, object]:
    return {
        "caught up": "yes" if summary.caught_up else "no",
        "partitions": len(summary.positions),
        "failed": len(summary.failed),
        "deleted before they were copied": sum(summary.never_copied.values()),
        "records": summary.records,
        "bytes": summary.bytes,
        "seconds": f"{summary.seconds:.1f} ({summary.copy_seconds:.1f} copying)",
        "copier CPU seconds": f"{summary.cpu_s:.2f}",
    }


def _to_document(summary: ReplicationSummary) -> ReplicateDocument:
    return ReplicateDocument(
        caught_up=summary.caught_up,
        positions={str(partition): offset for partition, offset in sorted(summary.positions.items())},
        failed={str(partition): reason for partition, reason in sorted(summary.failed.items())},
        never_copied={str(partition): offsets for partition, offsets in sorted(summary.never_copied.items())},
        records=summary.records,
        bytes=summary.bytes,
        seconds=round(summary.seconds, 3),
        copy_seconds=round(summary.copy_seconds, 3),
        copier_cpu_seconds=round(summary.cpu_s, 3),
        epochs=summary.epochs,
    )


def find_default_home() -> Path:
    """For locks, logs and status files of this user's supervisors."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "mirrorbook"


class SuperviseDocument(JsonDocument, frozen=True, kw_only=True):
    """A supervisor that was told to stop."""

    mirror: str
    restarts: int
    """How often it has started `replicate` again."""
    last_exit: int | None
    """Exit code of the last child that ended by itself; -N: killed by signal N. Null: none did."""


@prints_json(SuperviseDocument)
def supervise_command(
    name: Annotated[str, typer.Argument(help="The mirror.", autocompletion=complete_mirrors)],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options for `mirrorbook replicate`, after `--`.", metavar="[-- OPTIONS]")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Path of mirrorbook.yaml.")] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder for lock, logs and status. Default: the user's state folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep `mirrorbook replicate NAME` running: start it again whenever it ends, until told to stop (SIGTERM, Ctrl-C).

    Copies NAME-back, too, as soon as a failback has made it, and keeps the source fenced that was failed away from.
    Waits longer after each quick end, 30 s at most. One supervisor for a mirror on a host; between hosts the mirror's
    lease decides who copies.
    """
    mirror = MirrorName(name)
    config_path, log_settings = find_config(config), get_log_settings()
    command = build_replicate_command(config_path, mirror, options or [], log_settings)
    watch_command_line = build_watch_command(config_path, mirror, options or [], log_settings)
    status = Supervisor(
        (home or find_default_home()).absolute(),
        mirror,
        command,
        print_text=partial(print_line, err=as_json),
        refusal_command=watch_command_line,
    ).run()
    if as_json:
        print_json(SuperviseDocument(mirror=mirror, restarts=status.restarts, last_exit=status.last_exit))
