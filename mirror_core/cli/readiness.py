"""`mirrorbook readiness`: parse, call, print."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from mirror_core.cli import completing
from mirror_core.cli.common import ConfigOption, JsonOption, mirror, print_facts, print_json, print_table
from mirror_core.cli.conducting import evidence_folder
from mirror_core.cli.metrics import OPTION, address, served
from mirror_core.cli.telling import tell
from mirror_core.decide.readiness import Point, Readiness, Weight
from mirror_core.decide.steps import Writes
from mirror_core.decide.without_source import WithoutSource, facts_of
from mirror_core.kafka.config import Config, Principal, find_config, load_config
from mirror_core.mirrors.readiness_metrics import Exposition
from mirror_core.model.clock import now_ms
from mirror_core.model.defects import type_and_line
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.names import DRILL, ClusterName
from mirror_core.runbook.readiness import look
from mirror_core.runbook.services import Services, local_services
from mirror_core.state.link import Link, link_of, states
from mirror_core.state.records import State
from mirror_core.state.remembered import REMEMBERED

LOOK_S: Final = 30.0
AT_ONCE: Final = 4
SHOWN: Final = ("seconds without writes, predicted", "lag in offsets", "proved equal before", "data plane")


class HoldingRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run that holds the mirror; then that one counts."""

    step: str
    """The last begun; empty: none."""
    writes: Writes
    """Where applications may write now."""
    conducted: bool | None
    """Null: unknown."""


class ReadinessDocument(Document, frozen=True, kw_only=True):
    """Whether a mirror could be failed over now."""

    mirror: str
    ready: bool
    run: HoldingRun | None
    points: tuple[Point, ...]
    figures: Mapping[str, str]
    """Figures of a planned failover's plan, as text."""
    unplanned: WithoutSource
    """If the source died now."""


@prints(ReadinessDocument)
def readiness_command(
    name: Annotated[
        str | None, typer.Argument(help="The mirror. With --metrics: all of them.", autocompletion=completing.mirrors)
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            OPTION, metavar="[HOST:]PORT", help="Look every 30 s, and serve /metrics for Prometheus, until SIGTERM."
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Could it be failed over now? What speaks against it, and what to do. Changes nothing. Exit code 3: not ready."""
    if (name is None) == (metrics is None):
        raise BadRequest("give the name of a mirror, or --metrics to look at all of them again and again")
    if name is None:
        _serve(load_config(find_config(config), only=Principal.CONTROL), address(metrics or ""))
        return
    link, state = mirror(config, name)
    found = look(link, state, _services(link.config.path), whole=True)
    if as_json:
        print_json(_document(found))
    else:
        _show(found)
    if not found.ready:
        raise Refused(
            f"mirror {name} is not ready", [point.words for point in found.points if point.weight is Weight.REFUSAL]
        )


def _show(found: Readiness) -> None:
    print_facts({what: found.figures.get(what) for what in SHOWN} | {"ready": "yes" if found.ready else "no"})
    if found.points:
        rows = [(point.weight, point.words, point.remedy) for point in found.points]
        print_table("What speaks against it", ("weight", "what", "what to do"), rows)
    print_facts(facts_of(found.unplanned))
    said = {point.words for point in found.points}
    if more := [line for line in (*found.unplanned.refused, *found.unplanned.warnings) if line not in said]:
        print_table("Without the source, also", ("what",), [(line,) for line in more])


def _document(found: Readiness) -> ReadinessDocument:
    run = found.run
    holding = HoldingRun(step=run.step, writes=run.writes, conducted=found.conducted) if run else None
    return ReadinessDocument(
        mirror=found.mirror.name,
        ready=found.ready,
        run=holding,
        points=found.points,
        figures=found.figures,
        unplanned=found.unplanned,
    )


def _serve(config: Config, where: tuple[str, int]) -> None:
    stop, shown = threading.Event(), Exposition()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    known: dict[ClusterName, State] = {}
    services = _services(config.path)
    with served(where, shown, tell), ThreadPoolExecutor(AT_ONCE) as pool, REMEMBERED.keeping():
        while not stop.is_set():
            # Keep a silent cluster's last state: its mirrors are not ready, but known.
            told = {name: state for name, state in states(config) if not isinstance(state, MirrorError)}
            known |= told
            read_ms = now_ms()  # assessing many mirrors with silent clusters takes minutes
            mirrors = [
                (*one, read_ms, name in told) for name, state in known.items() for one in _mirrors(config, name, state)
            ]
            shown.tell(found for found in pool.map(partial(_looked, services), mirrors) if found is not None)
            stop.wait(LOOK_S)


def _looked(services: Services, one: tuple[Link, State, int, bool]) -> Readiness | None:
    """None after a defect or an unreadable record: it hides this mirror and no other."""
    link, state, read_ms, current = one
    try:
        return look(link, state, services, whole=False, read_ms=read_ms, current=current)
    except MirrorError as error:
        tell(f"mirror {link.mirror.name}: not looked at: {error}", err=True)
    except Exception as error:  # noqa: BLE001 - reported by type only
        tell(f"mirror {link.mirror.name}: not looked at: a defect of Mirrorbook: {type_and_line(error)}", err=True)
    return None


def _mirrors(config: Config, cluster: ClusterName, state: State) -> Iterator[tuple[Link, State]]:
    """Mirrors towards this cluster only: its word about others does not count. No drills."""
    for one in state.mirrors.values():
        if one.destination == cluster and one.source in config.clusters and not one.name.startswith(DRILL):
            yield link_of(config, one), state


def _services(path: Path) -> Services:
    return local_services(path, evidence_dir=evidence_folder(path, None))
