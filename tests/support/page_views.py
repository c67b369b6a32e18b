"""Page views, shared by tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirrorbook_airflow.page.buttons import list_mirror_buttons

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.loss_bound import compute_loss
from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR
from mirror_core.kafka.config import Config
from mirror_core.mirrors.describe import ClockState, MirrorDescription, PartitionDescription
from mirror_core.mirrors.mirror_facts import FactKey, make_fact
from mirror_core.model.figures import FigureKey, to_figure_documents
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import (
    DesiredState,
    Mirror,
    PartitionState,
    PartitionStatus,
)
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import Plan, PlanStep, Run, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.page.mirror_page import MirrorPageContent, make_mirror_page
from mirror_core.page.poller import PollerSettings
from mirror_core.page.reports import NewestReports
from mirror_core.page.routes import render
from mirror_core.page.snapshots import ClusterSnapshot, MirrorAssessment, MirrorSample, MirrorView, PendingApproval
from mirror_core.runbook.run_services import local_services
from mirror_core.state.state_records import State

NOW = 1_000_000_000

NO_CLUSTERS = PollerSettings(
    load_config=lambda: Config(Path("mirrorbook.yaml"), {}),
    list_unusable_clusters=lambda path: {},
    make_services=lambda path: local_services(path, evidence_dir=path.parent),
    get_prometheus_address=lambda: "",
    add_clusters_advice="add both of its clusters",
)
"""Of a process that knows none."""

NAME = MirrorName("orders")

HOSTILE = '<script>alert("1")</script>' + "ü" * 200 + "\u202eenod"

MIRROR = Mirror(
    name=NAME,
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="E",
    destination_id="W",
    topics=(".*",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=1,
)


def row(
    index: int, state: PartitionState = PartitionState.MIRRORING, lag: int | None = 0, **more: str
) -> PartitionDescription:
    end = None if lag is None else 100 + lag
    fields = {"position": 100, "source_start": 0, "source_end": end, "lag": lag, "lmo": None}
    fields |= {"verified_end": None, "kind": None, "reason": None}
    return PartitionDescription(**{"partition": f"t-{index}", "state": state, **fields, **more})  # type: ignore[arg-type]


def plan(mode: RunMode = RunMode.PLANNED, kind: RunKind = RunKind.FAILOVER, **more: object) -> Plan:
    steps = tuple(PlanStep(name=name, action="...") for name in ("prove", "fence", "drain", "promote"))
    return Plan(**{"kind": kind, "mirror": NAME, "mode": mode, "steps": steps, "bound_facts": (), **more})  # type: ignore[arg-type]


def run(mode: RunMode = RunMode.PLANNED, kind: RunKind = RunKind.FAILOVER, ended_ms: int | None = None) -> Run:
    return Run(
        id=f"orders-{kind}-20260101T000000-0000",
        number=1,
        plan=plan(mode, kind),
        plan_hash="h",
        state=RunState.RUNNING if ended_ms is None else RunState.ABORTED,
        started_by="airflow mirror_failover/manual__2026-01-01T00:00:00+00:00 by ann",
        started_ms=NOW - 20_000,
        desired=DesiredState.STARTED,
        conducted_by="x",
        ended_ms=ended_ms,
    )


def told(*records: object, at_ms: int = NOW - 500, silent: str = "") -> ClusterSnapshot:
    state = State()
    for record in (MIRROR, *records):
        state.put(record)  # type: ignore[arg-type]
    return ClusterSnapshot(state, {}, at_ms, silent)


def seen(
    *rows: PartitionDescription,
    at_ms: int = NOW - 1_000,
    seen_ms: int = NOW - 1_000,
    trouble: str = "",
    clock: str = "",
) -> MirrorView:
    statuses = {p: status(p) for p in (Partition("t", n) for n in range(len(rows)))}
    topics = (ObservedTopic(topic="t", ends=tuple(100 + (r.lag or 0) for r in rows)),)
    bound = compute_loss(
        statuses,
        SourceObservation(mirror=NAME, at_ms=seen_ms, topics=topics, listed_ms=seen_ms),
        {p: Offset(100) for p in statuses},
        (),
        now_ms=NOW,
    )
    lag = sum(r.lag or 0 for r in rows)
    facts = {
        FactKey.LAG: make_fact(lag),
        FactKey.MISSING_OFFSETS: make_fact(lag if rows and not bound.unknown_partitions else None),
        FactKey.PROBLEMS: make_fact((trouble,) if trouble else ()),
        FactKey.CLOCK: make_fact(ClockState.BEHIND if clock else ClockState.NOT_BEHIND, clock),
        FactKey.DIFFERENCES: make_fact(()),
    }
    proof = to_figure_documents({FigureKey.PROVED_OFFSETS: 0, FigureKey.PROVABLE_OFFSETS: 100})
    described = MirrorDescription(figures=proof, facts=facts, not_normal=(), silent=(), copying=True, rows=rows)
    return MirrorView(at_ms, described, bound, (MirrorSample(at_ms, 7, 7, 100),))


def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING, **more: object) -> PartitionStatus:
    fields = {"partition": partition, "state": state, "source_topic_id": "s", "destination_topic_id": "d"}
    return PartitionStatus(**{**fields, **more})  # type: ignore[arg-type]


def judged(*reasons: str, at_ms: int = NOW - 5_000, warnings: tuple[str, ...] = ()) -> MirrorAssessment:
    return MirrorAssessment(
        at_ms, PlanDecision(plan(warnings=tuple(map(Finding, warnings))), tuple(map(Finding, reasons))), ()
    )


def page(
    known: MirrorView | None,
    judgement: MirrorAssessment | None = None,
    one: ClusterSnapshot | None = None,
    number: int = 1,
) -> MirrorPageContent:
    return make_mirror_page(MIRROR, one or told(), known, judgement, NOW, number)


def shown(
    view: MirrorPageContent, reports: NewestReports | None = None, pending: Sequence[PendingApproval] = ()
) -> str:
    buttons = list(list_mirror_buttons({}, None, None, UNKNOWN_CONDUCTOR))
    beside = {"actions": buttons, "reports": reports, "sets": [], "trouble": "", "past": "", "pending": pending}
    return render("mirror", view=view, **beside, base="", root="/mirrorbook")


def step(name: str, start_ms: int, end_ms: int | None) -> StepRecord:
    state = StepState.STARTED if end_ms is None else StepState.DONE
    return StepRecord(run=run().id, step=name, state=state, attempt=1, started_ms=start_ms, ended_ms=end_ms)
