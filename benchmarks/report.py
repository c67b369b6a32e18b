"""JSON on stdout for whoever computes with it; a short table and the verdicts on stderr for whoever waits."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from benchmarks.verdict import Samples, Verdict, summary
from mirrorbook_tools.sandbox.jars import jars_dir


def machine() -> dict[str, object]:
    """What the figures hold for; to be asked before the work begins, because of the load."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kafka": [jar.stem for jar in jars_dir().glob("*kafka-clients-*.jar")],
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def say(line: str) -> None:
    """A word to whoever waits."""
    print(line, file=sys.stderr, flush=True)


def turns(copiers: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Who is measured when: round, copier. Round 0 does not count: in it brokers that nobody has used yet warm up.

    Another copier begins each time, so that none has always the same one before it.
    """
    for number in range(rounds + 1):
        first = number % len(copiers)
        for copier in (*copiers[first:], *copiers[:first]):
            yield number, copier


def measured(samples: Samples, failures: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The part of the report about one data set: all runs, their middles, and what failed."""
    return {
        "runs": {copier: [_rounded(run) for run in runs] for copier, runs in samples.items()},
        "summary": {
            copier: {name: _rounded(asdict(middle)) for name, middle in figures.items()}
            for copier, figures in summary(samples).items()
        },
        "failed": list(failures),
    }


def table(title: str, samples: Samples, columns: Sequence[str]) -> None:
    """Medians, and the best run in brackets where there were several."""
    say(f"\n{title}: median (best)")
    say("  ".join(["copier".ljust(12), *(column.rjust(max(len(column), 15)) for column in columns)]))
    for copier, figures in summary(samples).items():
        cells = []
        for column in columns:
            middle = figures.get(column)
            text = "-" if middle is None else f"{middle.median:.2f} ({middle.best:.2f})"
            cells.append(text.rjust(max(len(column), 15)))
        say("  ".join([copier.ljust(12), *cells]))


def finish(body: Mapping[str, object], verdicts: Sequence[Verdict]) -> None:
    """The verdicts for a person, and everything as JSON."""
    say("")
    for verdict in verdicts:
        say(f"{verdict.outcome.value.ljust(13)} {verdict.target}: {verdict.says}")
    print(json.dumps({**body, "verdicts": [asdict(verdict) for verdict in verdicts]}, indent=2))


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}
