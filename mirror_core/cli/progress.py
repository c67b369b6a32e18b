"""Progress of a data plane: a live line on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mirror_core.dataplane.progress import ProgressTotals, ProgressTracker
from mirror_core.model.units import format_bytes

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
