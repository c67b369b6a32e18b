"""`mirrorbook mirror watch` and `mirrorbook mirror fence`."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from mirror_core.cli.command_options import ConfigOption, JsonOption, NameArgument, find_mirror, print_json
from mirror_core.cli.http_server import METRICS_OPTION, parse_address, serve_metrics
from mirror_core.cli.output import print_line
from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.kafka.config import parse_addresses
from mirror_core.mirrors import fence_watcher
from mirror_core.mirrors.fence_manual_commands import format_fence_commands, format_manual_lift
from mirror_core.mirrors.fence_metrics import FenceCollector
from mirror_core.mirrors.old_source_fence import find_fenced_direction
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.text import format_count


class AttentionNeeded(MirrorError):
    """A person must look at the old source."""


class WatchDocument(JsonDocument, frozen=True, kw_only=True):
    """What `mirror watch --once` has seen of the old source, and done."""

    mirror: str
    cluster: str
    """The mirror's source."""
    state: FenceState
    answers: bool
    lines: tuple[str, ...]
    alarms: tuple[str, ...]
    """Not empty: exit code 1. Empty, no answer, and a fence is pending: 4."""
    new_alarms: tuple[str, ...]
    """Those that no later look repeats."""


class FenceCommandsDocument(JsonDocument, frozen=True, kw_only=True):
    """Lines for somebody who can reach the source. Nothing was run."""

    mirror: str
    cluster: str
    """The mirror's source."""
    desired: DesiredState
    """Unless it is STOPPED, these lines stop its applications."""
    commands: tuple[str, ...]
    lift: tuple[str, ...]
    """How to take the fence down again. Empty: it is a run's, which lifts it."""


@prints_json(WatchDocument)
def watch(
    name: NameArgument,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="One look. Exit code 1: somebody has to be called; 4: no answer, and a fence is pending."
        ),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(METRICS_OPTION, metavar="[HOST:]PORT", help="Serve /metrics for Prometheus, as `replicate` does."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the old source fenced: put the fence up the moment it answers, and look after it.

    Where the mirror has none, and its way home has: that of the way home. Ends when no fence is pending there.
    """
    if as_json and not once:
        raise BadRequest("--json is for one look: give --once, too")
    metrics_address = parse_address(metrics) if metrics is not None else None
    link = find_fenced_direction(*find_mirror(config, name))
    if once:
        decision = fence_watcher.check_fence(link)
        if as_json:
            print_json(
                WatchDocument(
                    mirror=link.mirror.name,
                    cluster=link.mirror.source,
                    state=decision.state,
                    answers=not decision.is_silent,
                    lines=decision.lines,
                    alarms=decision.alarms,
                    new_alarms=decision.one_time_alarms,
                )
            )
        else:
            _print_decision(decision)
        for alarm in () if as_json else decision.alarms:
            print_line(f"alarm: {alarm}", err=True)
        if decision.one_time_alarms:
            fence_watcher.record_reported(link, decision.one_time_alarms)
        _raise_by_class(link.mirror, decision)
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    exposition, printer = FenceCollector(link.mirror), ChangePrinter()

    def publish(decision: FenceDecision) -> None:
        exposition.update(decision)
        printer(decision)

    with serve_metrics(metrics_address, exposition, print_line):
        fence_watcher.watch_fence(link, stop, publish)


@prints_json(FenceCommandsDocument)
def fence(
    name: NameArgument,
    bootstrap_controller: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Lines for the controllers' listener: these can be fenced before any broker is started.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the lines that fence a mirror's source, for somebody who can reach it. Asks only the destination."""
    if bootstrap_controller is not None:
        parse_addresses(bootstrap_controller, "--bootstrap-controller")
    link, state = find_mirror(config, name)
    if link.source.ruling.is_foreign:
        raise BadRequest(
            f"cluster {link.source.name} has an authorizer that is not Kafka's: no line of kafka-acls.sh fences it. "
            "Close it to applications by its own means, as its fence_command does if it has one"
        )
    ledger, partitions = state.ledger_entries(link.mirror.name), state.partitions.get(link.mirror.name, {})
    fenced = link.mirror, tuple(ledger), tuple(partitions), bootstrap_controller
    lines = format_fence_commands(*fenced)
    if not lines:
        raise BadRequest(f"mirror {name} has mirrored nothing: there is nothing to fence")
    lift_lines = format_manual_lift(*fenced)
    if as_json:
        print_json(
            FenceCommandsDocument(
                mirror=link.mirror.name,
                cluster=link.mirror.source,
                desired=link.mirror.desired,
                commands=tuple(lines),
                lift=tuple(lift_lines),
            )
        )
        return
    if link.mirror.desired is not DesiredState.STOPPED:
        print_line(
            f"# mirror {name} is {link.mirror.desired}: applications of {link.source.name} are stopped by this",
            err=True,
        )
    for line in lines:
        print_line(line)
    for line in lift_lines:
        print_line(f"# {line}", err=True)


def _raise_by_class(mirror: Mirror, decision: FenceDecision) -> None:
    if decision.alarms:
        count = format_count(len(decision.alarms), "alarm")
        raise AttentionNeeded(f"mirror {mirror.name}: {count}, above: somebody has to look at {mirror.source}")
    if decision.is_silent and not decision.is_held_by_run:
        action = "fenced" if decision.state is FenceState.PENDING else "opened again"
        raise Indeterminate(
            f"mirror {mirror.name}: {mirror.source} does not answer, and is not {action} yet. This does it when"
            f" {mirror.source} answers:\n    mirrorbook mirror watch {mirror.name}"
        )


def _print_decision(decision: FenceDecision) -> None:
    for line in decision.lines:
        print_line(line)


class ChangePrinter:
    def __init__(self) -> None:
        self._last: FenceDecision | None = None

    def __call__(self, decision: FenceDecision) -> None:
        if not decision.is_same_trouble(self._last):
            _print_decision(decision)
            for alarm in decision.alarms:
                print_line(f"alarm: {alarm}", err=True)
        self._last = decision
