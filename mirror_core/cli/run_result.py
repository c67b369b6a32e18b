"""The block that every run's screen ends with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirror_core.cli.output import format_block, print_line
from mirror_core.decide.run_result import RunLoss, RunResult, format_outage, format_rto
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunMode
from mirror_core.model.text import format_count


def print_run_result(result: RunResult | None, mode: RunMode, report: Path | None) -> None:
    """Nothing of a run that is not done."""
    if result is None:
        return
    print_line("")
    for line in format_block(list_result(result, mode, report), indent=0):
        print_line(line)


def list_result(result: RunResult, mode: RunMode, report: Path | None) -> Iterator[tuple[str, str]]:
    yield "applications write on", result.applications
    if result.loss is None:
        yield "saved", format_saved(result.saved, result.saved_to, result.old_source)
    else:
        yield "lost", format_run_loss(result.loss, result.old_source)
    yield "without writes", format_outage(result.outage, mode, result.old_source)
    if result.outage is not None and (rto := format_rto(result.outage)):
        yield "RTO", rto
    yield "report", "not on this machine" if report is None else str(report)


def format_saved(count: int | None, folder: str, old_source: ClusterName) -> str:
    if count == 0:
        return f"nothing: {old_source} had no records of its own"
    records = "an unknown number of records" if count is None else format_count(count, "record")
    return f"{records} that only {old_source} had" + (f", in {folder}" if folder else "")


def format_run_loss(loss: RunLoss, source: ClusterName) -> str:
    if loss.offsets == 0 and not loss.is_minimum:
        return "nothing"
    if loss.offsets is None and not loss.is_minimum:
        return "unknown: the report says what was compared"
    counted = "unknown" if loss.offsets is None else format_count(loss.offsets, "record")
    least = f"at least {counted}" if loss.is_minimum and loss.offsets is not None else counted
    if loss.unseen_s is None:
        return least
    probable = "an unknown number" if loss.unseen_offsets is None else f"about {loss.unseen_offsets:,}"
    counted_first = "" if loss.offsets == 0 else f"{least}, and "
    return (
        f"{counted_first}what {source} took in the {loss.unseen_s:,.1f} s before, when nobody observed it"
        f" ({probable}); the exact number is known when {source} is back"
    )
