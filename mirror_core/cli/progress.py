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

from mirror_core.dataplane.progress import Progress, Totals
from mirror_core.model.units import in_bytes

_TERMINAL_S: Final = 0.5
_PLAIN_S: Final = 5.0


class _Known(Protocol):
    def totals(self) -> Totals: ...


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[Progress]:
    progress = Progress()
    with showing(progress, stream):
        yield progress


@contextmanager
def showing(progress: _Known, stream: TextIO | None = None) -> Iterator[None]:
    out = stream or sys.stderr
    ended = threading.Event()
    show = _on_terminal if out.isatty() else _in_lines
    thread = threading.Thread(target=show, args=(progress, out, ended), name="progress-line", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def line(totals: Totals) -> str:
    """`unknown` is printed, never left out."""
    lag = f"{totals.lag:,}"
    if totals.unknown:
        lag = "unknown" if totals.unknown == totals.partitions else f"{lag} + unknown of {totals.unknown} partitions"
    behind = "" if totals.worst_time_lag_s is None else f", {_seconds(totals.worst_time_lag_s)} behind"
    seeding = f"seeding {totals.seeding:,} partitions, {totals.to_seed:,} offsets left; " if totals.seeding else ""
    return (
        f"{totals.partitions:,} partitions, lag {lag}{behind}; {seeding}"
        f"{totals.records_per_s:,.0f} records/s, {in_bytes(totals.bytes_per_s)}/s; "
        f"{totals.records:,} records, {in_bytes(totals.bytes)} in all"
    )


def _on_terminal(progress: _Known, out: TextIO, ended: threading.Event) -> None:
    # Other output through sys.stdout and sys.stderr goes above the line.
    with Live(console=Console(file=out), auto_refresh=False, transient=False) as live:
        while not ended.wait(_TERMINAL_S):
            totals = progress.totals()
            if totals.partitions:
                live.update(Text(line(totals)), refresh=True)


def _in_lines(progress: _Known, out: TextIO, ended: threading.Event) -> None:
    while not ended.wait(_PLAIN_S):
        totals = progress.totals()
        if totals.partitions:
            print(time.strftime("%H:%M:%S"), line(totals), file=out, flush=True)


def _seconds(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{value:.0f} s"
