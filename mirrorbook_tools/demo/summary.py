"""How the demonstration ended: the verdict in words, and where to go next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirror_core.model.json_documents import JsonDocument
from mirrorbook_tools.demo.loss_check import Verdict


class DemoDocument(JsonDocument, frozen=True, kw_only=True):
    """Counts of orders in a demonstration."""

    exact: bool
    """False where nothing was acknowledged, too."""
    acknowledged: int
    consumed: int
    foretold: int
    """Lost with the source, as the plan said."""
    lost: int
    """Beyond that."""
    duplicated: int
    out_of_order: int
    shifted: int
    """At another offset than on the source."""
    skipped: int
    """Never read by the consumer group."""
    read_again: int
    seconds_without_writes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryResult:
    """A story that was told to its end."""

    verdict: Verdict
    lost: frozenset[int]
    """Orders that are on east only, as the plan said they might be."""


def to_demo_document(told: StoryResult) -> DemoDocument:
    verdict = told.verdict
    return DemoDocument(
        exact=verdict.exit_code == 0,
        acknowledged=verdict.acknowledged,
        consumed=verdict.consumed,
        foretold=len(told.lost),
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        out_of_order=verdict.out_of_order,
        shifted=verdict.shifted,
        skipped=verdict.skipped,
        read_again=verdict.read_again,
        seconds_without_writes=tuple(seconds for _, _, _, seconds in verdict.seconds_without_writes),
    )


def verdict_lines(told: StoryResult) -> list[str]:
    """Each number in a line of its own, and in the last one what to make of them."""
    found = told.verdict
    return [
        f"acknowledged: {found.acknowledged:,}",
        f"read by the consumer group: {found.consumed:,}",
        f"lost with east, as the plan said: {len(told.lost):,}{_which(told.lost)}",
        f"lost beyond that: {found.lost:,}",
        f"repeated: {found.duplicated:,}",
        f"out of order: {found.out_of_order:,}",
        f"offsets equal: {'yes' if not found.shifted else f'no, {found.shifted:,} differ'}",
        f"never read by the consumer group: {found.skipped:,}",
        f"read more than once by the consumer group: {found.read_again:,}",
        *(f"seconds without writes: {seconds:.1f}" for _, _, _, seconds in found.seconds_without_writes),
        "",
        _in_a_word(told),
    ]


def _in_a_word(told: StoryResult) -> str:
    if told.verdict.exit_code == 4:
        return "INDETERMINATE: nothing was acknowledged, so nothing can be judged."
    if told.verdict.exit_code:
        return "NOT EXACT: orders were lost beyond what the plan said, repeated, moved or never read."
    named = (
        "West misses only orders that the plan said might be missing; they are still on east's disk, and a failback "
        "saves them to files before it takes them off its log."
        if told.lost
        else "West has every order that east had acknowledged."
    )
    return f"EXACT: no order is repeated, and every copied order has the offset that it had on east. {named}"


def _which(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f" (numbers {found[0]:,} to {found[-1]:,})" if found else ""


def next_steps(folder: Path, config: Path, sandbox: Path, stop: str, *, kept: bool) -> list[str]:
    """Where to go from here. Lines that begin with `$` can be typed."""
    home = [
        "The clusters go on. Start east again, and bring the applications home:",
        f"$ mirrorbook sandbox up --dir {sandbox}",
        f"$ mirrorbook failback run orders --runner local --config {config}",
        "Stop the clusters, and remove their data:",
        f"$ {stop}",
    ]
    return [
        f"The run's report and all logs are in {folder}; remove it when you like.",
        *(home if kept else []),
        "Next: a checkout of Mirrorbook's sources has docs/try.md, which tells the same by hand, and `make demo`, the "
        "longer story: Airflow, Spark, a failback with what only the old source had saved to files, and the way home.",
    ]
