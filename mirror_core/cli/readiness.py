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

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    complete_mirrors,
    find_mirror,
    print_facts,
    print_json,
)
from mirror_core.cli.http_server import METRICS_OPTION, parse_address, serve_metrics
from mirror_core.cli.mirror_headline import list_attention
from mirror_core.cli.output import print_line
from mirror_core.cli.runs import choose_evidence_folder
from mirror_core.cli.tables import print_table
from mirror_core.decide.failover_readiness import (
    PointWeight,
    Readiness,
    UnplannedForecast,
    list_forecast_facts,
)
from mirror_core.decide.steps import WriteLocation
from mirror_core.kafka.config import Config, Principal, find_config, load_config
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.mirrors.readiness_metrics import ReadinessCollector
from mirror_core.model.errors import BadRequest, MirrorError, Refused, format_error_location
from mirror_core.model.figures import Figure, FigureKey, list_figure_rows, to_figure_documents
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import FindingDocument, JsonDocument, prints_json, to_finding_document
from mirror_core.model.names import DRILL_PREFIX, ClusterName
from mirror_core.model.timing import now_ms
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.runbook.run_services import Services, local_services
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link, read_both_states, read_states
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State

LOOK_INTERVAL_S: Final = 30.0
PARALLEL_MIRRORS: Final = 4
SHOWN_FIGURES: Final = (
    FigureKey.WITHOUT_WRITES_S,
    FigureKey.FORECAST_BASIS,
    FigureKey.LAG_OFFSETS,
    FigureKey.PROVED_OFFSETS,
    FigureKey.PROVABLE_OFFSETS,
    FigureKey.LEASE_OWNER,
    FigureKey.LEASE_HEARTBEAT_S,
)


class HoldingRunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The run that holds the mirror; then that one counts."""

    step: str
    """The last begun; empty: none."""
    writes: WriteLocation
    """Where applications may write now."""
    conducted: bool | None
    """Null: unknown."""


class ReadinessPointDocument(FindingDocument, frozen=True, kw_only=True):
    weight: PointWeight
    remedy: str
    """Empty: the text says it."""


class ReadinessDocument(JsonDocument, frozen=True, kw_only=True):
    """Whether a mirror could be failed over now."""

    mirror: str
    returned: FindingDocument | None
    """As in `mirror describe`."""
    ready: bool
    run: HoldingRunDocument | None
    points: tuple[ReadinessPointDocument, ...]
    figures: Mapping[FigureKey, Figure]
    """Figures of a planned failover's plan."""
    unplanned: UnplannedForecast
    """If the source died now."""


@prints_json(ReadinessDocument)
def readiness_command(
    name: Annotated[
        str | None,
        typer.Argument(help="The mirror. With --metrics: all of them.", autocompletion=complete_mirrors),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            METRICS_OPTION,
            metavar="[HOST:]PORT",
            help="Look every 30 s, and serve /metrics for Prometheus, until SIGTERM.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Could it be failed over now? What speaks against it, and what to do. Changes nothing. Exit code 3: not ready."""
    if (name is None) == (metrics is None):
        raise BadRequest("give the name of a mirror, or --metrics to look at all of them again and again")
    if name is None:
        _serve_metrics(load_config(find_config(config), only_principal=Principal.CONTROL), parse_address(metrics or ""))
        return
    link, state = find_mirror(config, name)
    assessed = assess_readiness(link, state, _make_services(link.config.path), with_drift=True)
    returned = find_returned_source(link, read_both_states(link, state))
    if as_json:
        print_json(_to_document(assessed, returned))
    else:
        for line in list_attention(returned):
            print_line(line)
        _print_readiness(assessed)
    if not assessed.is_ready:
        raise Refused(f"mirror {name} is not ready", assessed.obstacles)


def _print_readiness(readiness: Readiness) -> None:
    figures = dict(list_figure_rows({key: readiness.figures.get(key) for key in SHOWN_FIGURES}))
    print_facts({"ready": "yes" if readiness.is_ready else "no"} | figures)
    if readiness.points:
        rows = [(point.weight, str(point), point.remedy) for point in readiness.points]
        print_table("What speaks against it", ("weight", "what", "what to do"), rows)
    print_facts(list_forecast_facts(readiness.unplanned))
    shown_lines = {str(point) for point in readiness.points}
    unplanned = readiness.unplanned
    if further_lines := [f.text for f in (*unplanned.refused, *unplanned.warnings) if f.text not in shown_lines]:
        print_table("Without the source, also", ("what",), [(line,) for line in further_lines])


def _to_document(readiness: Readiness, returned: Finding | None) -> ReadinessDocument:
    holding_run = readiness.run_progress
    run_document = (
        HoldingRunDocument(step=holding_run.step, writes=holding_run.writes, conducted=readiness.is_conducted)
        if holding_run
        else None
    )
    return ReadinessDocument(
        mirror=readiness.mirror.name,
        returned=to_finding_document(returned),
        ready=readiness.is_ready,
        run=run_document,
        points=tuple(
            ReadinessPointDocument(
                weight=point.weight,
                code=point.finding.code,
                subject=point.finding.subject,
                values=point.finding.values,
                text=str(point),
                remedy=point.remedy,
            )
            for point in readiness.points
        ),
        figures=to_figure_documents(readiness.figures),
        unplanned=readiness.unplanned,
    )


def _serve_metrics(config: Config, metrics_address: tuple[str, int]) -> None:
    stop, exposition = threading.Event(), ReadinessCollector()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    last_states: dict[ClusterName, State] = {}
    services = _make_services(config.path)
    with (
        serve_metrics(metrics_address, exposition, print_line),
        ThreadPoolExecutor(PARALLEL_MIRRORS) as pool,
        STATE_CACHE.enable(),
    ):
        while not stop.is_set():
            # Keep a silent cluster's last state: its mirrors are not ready, but known.
            answered_states = {name: state for name, state in read_states(config) if not isinstance(state, MirrorError)}
            last_states |= answered_states
            read_ms = now_ms()  # assessing many mirrors with silent clusters takes minutes
            mirrors = [
                (*item, read_ms, name in answered_states)
                for name, state in last_states.items()
                for item in _list_mirrors(config, name, state)
            ]
            exposition.update(
                readiness for readiness in pool.map(partial(_assess_mirror, services), mirrors) if readiness is not None
            )
            stop.wait(LOOK_INTERVAL_S)


def _assess_mirror(services: Services, mirror_state: tuple[MirrorLink, State, int, bool]) -> Readiness | None:
    """None after a defect or an unreadable record: it hides this mirror and no other."""
    link, state, read_ms, current = mirror_state
    try:
        return assess_readiness(link, state, services, with_drift=False, read_ms=read_ms, current=current)
    except MirrorError as error:
        print_line(f"mirror {link.mirror.name}: not looked at: {error}", err=True)
    except Exception as error:  # noqa: BLE001 - reported by type only
        print_line(
            f"mirror {link.mirror.name}: not looked at: a defect of Mirrorbook: {format_error_location(error)}",
            err=True,
        )
    return None


def _list_mirrors(config: Config, cluster: ClusterName, state: State) -> Iterator[tuple[MirrorLink, State]]:
    """Towards this cluster only: its word about others does not count. No drills."""
    for mirror in state.mirrors.values():
        if (
            mirror.destination == cluster
            and mirror.source in config.clusters
            and not mirror.name.startswith(DRILL_PREFIX)
        ):
            yield make_mirror_link(config, mirror), state


def _make_services(path: Path) -> Services:
    return local_services(path, evidence_dir=choose_evidence_folder(path, None))
