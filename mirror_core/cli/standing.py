"""`mirrorbook mirror watch` and `mirrorbook mirror fence`: parse, call, print."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, NameArgument, mirror
from mirror_core.cli.metrics import OPTION, address, served
from mirror_core.cli.telling import tell
from mirror_core.decide.standing import Judgement
from mirror_core.kafka.config import addresses
from mirror_core.mirrors import standing
from mirror_core.mirrors.fence_lines import fence_lines, lifted_by_hand
from mirror_core.mirrors.standing_metrics import Exposition
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.mirror import Desired


class Paged(MirrorError):
    """Somebody has to look at the old source."""


def watch(
    name: NameArgument,
    once: Annotated[bool, typer.Option("--once", help="One look; exit code 1 when somebody has to be called.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(OPTION, metavar="[HOST:]PORT", help="Serve /metrics for Prometheus, as `replicate` does."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Keep the old source fenced: put the fence up the moment it answers, and look after it.

    Ends when no fence is pending there.
    """
    where = address(metrics) if metrics is not None else None
    link, _ = mirror(config, name)
    if once:
        found = standing.look_after(link)
        _show(found)
        if found.once:
            for alarm in found.once:
                tell(f"alarm: {alarm}", err=True)
            standing.said(link, found.once)
        if found.alarms:
            raise Paged(f"mirror {name}: " + "; ".join(found.alarms))
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    shown, teller = Exposition(link.mirror), Teller()

    def told(found: Judgement) -> None:
        shown.tell(found)
        teller(found)

    with served(where, shown, tell):
        standing.watch(link, stop, told)


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
) -> None:
    """Print the lines that fence a mirror's source, for somebody who can reach it. Asks only the destination."""
    if bootstrap_controller is not None:
        addresses(bootstrap_controller, "--bootstrap-controller")
    link, state = mirror(config, name)
    if link.source.ruling.foreign:
        raise BadRequest(
            f"cluster {link.source.name} has an authorizer that is not Kafka's: no line of kafka-acls.sh fences it. "
            "Close it to applications by its own means, as its fence_command does if it has one"
        )
    ledger, partitions = state.ledger_of(link.mirror.name), state.partitions.get(link.mirror.name, {})
    fenced = link.mirror, tuple(ledger), tuple(partitions), bootstrap_controller
    lines = fence_lines(*fenced)
    if not lines:
        raise BadRequest(f"mirror {name} has mirrored nothing: there is nothing to fence")
    if link.mirror.desired is not Desired.STOPPED:
        tell(
            f"# mirror {name} is {link.mirror.desired}: applications of {link.source.name} are stopped by this",
            err=True,
        )
    for line in lines:
        tell(line)
    for line in lifted_by_hand(*fenced):
        tell(f"# {line}", err=True)


def _show(found: Judgement) -> None:
    for line in found.lines:
        tell(line)


class Teller:
    """Prints changes only."""

    def __init__(self) -> None:
        self._last: Judgement | None = None

    def __call__(self, found: Judgement) -> None:
        if found != self._last:
            _show(found)
            for alarm in found.alarms:
                tell(f"alarm: {alarm}", err=True)
        self._last = found
