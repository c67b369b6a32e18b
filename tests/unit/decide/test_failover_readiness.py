"""What speaks against a failover now, with its remedy; and under which names Prometheus is told of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.failover_readiness import (
    FreshnessKind,
    GroupReadAgain,
    PointWeight,
    Readiness,
    ReadinessPoint,
    UnplannedForecast,
    count_never_compared,
    list_drift_points,
    list_newest_times,
    list_plan_points,
    list_staleness_points,
    list_uncompared_points,
    to_newest_times,
)
from mirror_core.decide.fence_state import FenceState as Fence
from mirror_core.decide.process_liveness import WatcherState, WatcherStatus
from mirror_core.decide.run_status import RunProgress, find_run_progress
from mirror_core.decide.steps import WriteLocation
from mirror_core.mirrors.readiness_metrics import ReadinessCollector
from mirror_core.model.errors import Indeterminate
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.mirror import DesiredState, GroupSyncTime, PartitionState
from mirror_core.model.names import MirrorName
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.run import Plan, RunKind, RunMode, StepRecord, StepState
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.runbook import readiness_report
from mirror_core.state.mirror_link import MirrorLink
from tests.support.memory_state import run_of
from tests.support.metric_reports import MIRROR, status
from tests.support.mirror_views import RUN
from tests.support.readiness_views import A0, A1, NAME, VIEW
from tests.support.resume_decisions import EAST, WEST

NOW_MS = 100 * 86_400_000
REFUSED = UnplannedForecast(refused=to_finding_documents([Finding("destination_unseen")]))
FRESH = dict.fromkeys(FreshnessKind, NOW_MS - 1_000)


def plan(kind: RunKind = RunKind.FAILOVER, mode: RunMode = RunMode.PLANNED) -> Plan:
    return Plan(
        kind=kind,
        mirror=MirrorName("m"),
        mode=mode,
        steps=(),
        bound_facts=(),
        warnings=(Finding("dear"),),
        unknown=(Finding("all of east"),),
    )


def test_refusals_make_it_not_ready_and_warnings_do_not() -> None:
    points = tuple(list_plan_points(PlanDecision(plan(), (Finding("the destination is silent"),))))
    assert [(p.weight, p.finding.code) for p in points] == [
        (PointWeight.REFUSAL, "the destination is silent"),
        (PointWeight.WARNING, "dear"),
        (PointWeight.UNKNOWN, "all of east"),
    ]
    found = Readiness(mirror=MIRROR, run_progress=None, points=points, figures={}, unplanned=REFUSED, at_ms=1)
    assert not found.is_ready
    assert replace(found, points=points[1:]).is_ready
    failed = Finding("partitions_failed", "m", count=1, lost=7, unknown=0, failures=["a-1 (damaged)"], more=0)
    deleted = Finding("deleted_early", "west", source="east", listed="a-0 [0, 60)")
    for loss in (failed, deleted):
        losing, _ = list_plan_points(PlanDecision(replace(plan(), warnings=(loss,)), ()))
        assert losing.weight is PointWeight.LOSS
        assert replace(found, points=(losing,)).obstacles == (loss,)


@pytest.mark.parametrize("what", FreshnessKind)
def test_what_is_old_or_never_was_is_a_point_with_a_command(what: FreshnessKind) -> None:
    assert list(list_staleness_points("m", FRESH, NOW_MS)) == []
    for known, code, age_s in (
        (FRESH | {what: NOW_MS - 36 * 86_400_000}, "done_long_ago", 36 * 86_400.0),
        ({**FRESH, what: None}, "never_done", None),
        (FRESH | {what: NOW_MS + 60_000}, "done_at_unknown_time", None),  # not 0 s ago
    ):
        (point,) = list_staleness_points("m", {k: v for k, v in known.items() if v is not None}, NOW_MS)
        assert (point.finding.code, point.finding.subject) == (code, "m")
        assert (point.finding.values["kind"], point.finding.values.get("age_s")) == (what, age_s)
        assert (" m`" in point.remedy) is (code != "done_at_unknown_time")


def test_partitions_that_were_never_compared_are_a_point_where_others_were() -> None:
    some = MirrorVerification.from_partitions(NAME, {A0: VerifiedEnd(60, 0, 40_000, 60)}, {"a": "d"})
    assert [count_never_compared(proof, VIEW.statuses) for proof in (some, None, VIEW.verification)] == [1, 0, 0]
    (point,) = list_uncompared_points("m", 1)
    assert point.finding == Finding("partitions_never_compared", "m", count=1)
    assert "`mirrorbook parity m`" in point.remedy
    assert not list(list_uncompared_points("m", 0))


def test_what_never_was_is_told_apart_from_what_cannot_be() -> None:
    def newest(known: dict[FreshnessKind, int], *states: PartitionState) -> dict[FreshnessKind, int | None]:
        return to_newest_times(known, {p: status(p, state) for p, state in zip((A0, A1), states, strict=False)})

    never = dict.fromkeys(FreshnessKind)
    assert newest({}, PartitionState.MIRRORING, PartitionState.FAILED) == never
    assert newest({FreshnessKind.DRILL: 7}, PartitionState.MIRRORING) == {**never, FreshnessKind.DRILL: 7}
    nothing_to_compare = {FreshnessKind.GROUPS: None, FreshnessKind.DRILL: None}
    assert newest({}) == newest({}, PartitionState.FAILED) == nothing_to_compare
    seen = GroupSyncTime(mirror=NAME, synced_ms=5, followed=True)
    known = dict(list_newest_times(NAME, seen, None, iter(()), VIEW.statuses))
    assert to_newest_times(known, VIEW.statuses) == {**never, FreshnessKind.GROUPS: 5}


def test_drift_is_counted_by_part_and_what_needs_a_person_is_said_in_full() -> None:
    def row(part: SyncCategory, action: SyncAction, *, done: bool = False) -> DriftRow:
        return DriftRow(part=part, subject="s", source="", destination="", action=action, reason="why", done=done)

    rows = [
        row(SyncCategory.TOPICS, SyncAction.CREATE),
        row(SyncCategory.ACLS, SyncAction.STAGE),
        row(SyncCategory.ACLS, SyncAction.CREATE),
        row(SyncCategory.ACLS, SyncAction.REMOVE),
        row(SyncCategory.GROUPS, SyncAction.EQUAL),
        row(SyncCategory.GROUPS, SyncAction.COMMIT),
        row(SyncCategory.TOPICS, SyncAction.WIDEN, done=True),
        row(SyncCategory.CONFIGS, SyncAction.REFUSE),
    ]
    assert list(list_drift_points("m", rows)) == [
        ReadinessPoint(
            PointWeight.WARNING,
            Finding(
                "sides_differ",
                "m",
                differing_topics=1,
                differing_configs=0,
                differing_acls=2,
                differing_groups=0,
                differing_quotas=0,
            ),
        ),
        ReadinessPoint(
            PointWeight.WARNING, Finding("sync_refuses", "s", part="configs", refusal_code="", reason="why")
        ),
    ]
    assert list(list_drift_points("m", [row(SyncCategory.TOPICS, SyncAction.EQUAL)])) == []


def standing(kind: RunKind, *steps: tuple[str, StepState], mode: RunMode = RunMode.PLANNED) -> RunProgress:
    run = run_of("r", plan(kind, mode))
    records = [
        StepRecord(
            run="r",
            step=step,
            state=state,
            attempt=1,
            started_ms=10 * at,
            ended_ms=None if state is StepState.STARTED else 10 * at + 5,
        )
        for at, (step, state) in enumerate(steps, start=1)
    ]
    return find_run_progress(run, records)


def test_where_a_run_stands_says_whether_applications_can_write_until_the_next_word() -> None:
    started, done, failed = StepState.STARTED, StepState.DONE, StepState.FAILED
    forth, back = RunKind.FAILOVER, RunKind.FAILBACK
    assert standing(forth) == RunProgress("", WriteLocation.SOURCE, 1)
    assert standing(forth, ("prove", done)) == RunProgress("prove", WriteLocation.SOURCE, 15, done), (
        "it waits for a person"
    )
    assert standing(forth, ("prove", done), ("fence", started)) == RunProgress(
        "fence", WriteLocation.NOWHERE, 20, started
    )
    assert standing(forth, ("drain", failed)).writes is WriteLocation.NOWHERE
    assert standing(forth, ("record_lmo", done)).writes is WriteLocation.NOWHERE
    assert standing(forth, ("promote", done)).writes is WriteLocation.DESTINATION
    assert standing(forth, ("report", done)).writes is WriteLocation.DESTINATION
    assert standing(forth, mode=RunMode.UNPLANNED).writes is WriteLocation.NOWHERE, "the source is given up for dead"
    assert standing(back) == RunProgress("", WriteLocation.DESTINATION, 1)
    assert standing(back, ("catch_up", started)).writes is WriteLocation.DESTINATION


def samples(*looks: Readiness) -> dict[tuple[str, str], float]:
    shown, registry = ReadinessCollector(), CollectorRegistry()
    registry.register(shown)
    shown.update(looks)
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "mirror")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_step_of_another_version_is_said_and_not_guessed_at() -> None:
    newer = StepRecord(run=RUN.id, step="weigh", state=StepState.STARTED, attempt=1, started_ms=2)
    with pytest.raises(Indeterminate, match="step 'weigh', which this version of Mirrorbook does not know"):
        find_run_progress(RUN, [newer])


def test_prometheus_is_told_and_of_a_mirror_that_a_run_holds_only_how_that_stands() -> None:
    point = ReadinessPoint(PointWeight.WARNING, Finding("dear"))
    found = Readiness(mirror=MIRROR, run_progress=None, points=(point,), figures={}, unplanned=REFUSED, at_ms=5_000)
    told = samples(found)
    assert told["mirrorbook_ready", ""] == 1
    assert told["mirrorbook_readiness_points", "warning"] == 1
    assert told["mirrorbook_readiness_points", "refusal"] == 0
    assert told["mirrorbook_readiness_looked_timestamp_seconds", ""] == 5
    assert [told["mirrorbook_desired", one] for one in DesiredState] == [one is MIRROR.desired for one in DesiredState]
    stands = replace(found, run_progress=RunProgress("drain", WriteLocation.NOWHERE, 3_000))
    held = samples(stands)
    assert held["mirrorbook_run_word_timestamp_seconds", "drain,nowhere"] == 3
    assert ("mirrorbook_run_conducted", "drain,nowhere") not in held, "that is not known"
    for conducted in (True, False):
        told = samples(replace(stands, is_conducted=conducted))
        assert told["mirrorbook_run_conducted", "drain,nowhere"] == conducted
    assert ("mirrorbook_ready", "") not in held
    assert samples() == {}


def test_prometheus_is_told_0_of_what_never_was_and_nothing_of_what_cannot_be() -> None:
    def told(known_ms: dict[FreshnessKind, int | None], run: RunProgress | None = None) -> dict[str, float]:
        found = Readiness(
            mirror=MIRROR, run_progress=run, points=(), figures={}, newest_ms=known_ms, unplanned=REFUSED, at_ms=5_000
        )
        name = "mirrorbook_readiness_known_timestamp_seconds"
        return {what: value for (metric, what), value in samples(found).items() if metric == name}

    known = {FreshnessKind.GROUPS: 4_500, FreshnessKind.VERIFICATION: None, FreshnessKind.DRILL: None}
    assert told(known) == {"groups": 4.5, "verification": 0, "drill": 0}
    assert told({FreshnessKind.GROUPS: None, FreshnessKind.DRILL: 2_000}) == {"groups": 0, "drill": 2}
    assert told(known, RunProgress("drain", WriteLocation.NOWHERE, 3_000)) == {}


def test_prometheus_is_told_when_a_mirror_was_created_and_how_long_a_failover_would_take() -> None:
    found = Readiness(
        mirror=replace(MIRROR, created_ms=1_500),
        run_progress=None,
        points=(),
        figures={},
        predicted_s=2.5,
        unplanned=REFUSED,
        at_ms=5_000,
    )
    created, predicted = "mirrorbook_created_timestamp_seconds", "mirrorbook_without_writes_predicted_seconds"
    told = samples(found)
    assert (told[created, ""], told[predicted, ""]) == (1.5, 2.5)
    assert (predicted, "") not in samples(replace(found, predicted_s=None)), "unknown is not 0"
    held = samples(replace(found, run_progress=RunProgress("drain", WriteLocation.NOWHERE, 3_000)))
    assert held[created, ""] == 1.5
    assert (predicted, "") not in held


def test_prometheus_is_told_whether_anybody_watches_the_old_source_also_while_a_run_holds_the_mirror() -> None:
    def told(watching: WatcherState, run: RunProgress | None = None) -> dict[str, float]:
        watched = WatcherStatus(state=watching, cluster="east", fence_state=Fence.PENDING)
        found = Readiness(
            mirror=MIRROR, run_progress=run, watcher=watched, points=(), figures={}, unplanned=REFUSED, at_ms=5_000
        )
        prefix = "east,pending,"
        return {
            labels.removeprefix(prefix): value
            for (name, labels), value in samples(found).items()
            if name == "mirrorbook_old_source_watched" and labels.startswith(prefix)
        }

    nobody = {"alive": 0, "awaited": 0, "missing": 1, "unknown": 0}
    assert (
        told(WatcherState.MISSING)
        == told(WatcherState.MISSING, RunProgress("canary", WriteLocation.DESTINATION, 3_000))
        == nobody
    )
    assert told(WatcherState.ALIVE)["alive"] == 1
    assert told(WatcherState.NOT_NEEDED) == {}


def test_prometheus_is_told_what_an_unplanned_failover_would_cost_and_nothing_of_what_is_unknown() -> None:
    def told(unplanned: UnplannedForecast, run: RunProgress | None = None) -> dict[str, float]:
        found = Readiness(mirror=MIRROR, run_progress=run, points=(), figures={}, unplanned=unplanned, at_ms=5_000)
        of = samples(found).items()
        return {name.removeprefix("mirrorbook_unplanned_"): value for (name, _), value in of if "_unplanned_" in name}

    groups = {"g": GroupReadAgain(most=4, now=1), "h": GroupReadAgain(most=0, now=None)}
    known = UnplannedForecast(
        refused=(),
        missing=7,
        unknown_partitions=0,
        observed_s=2.0,
        behind_s=3.5,
        missing_now=9,
        groups=groups,
    )
    assert told(known) == {
        "ready": 1,
        "loss_offsets": 7,
        "loss_looked_timestamp_seconds": 3,
        "behind_seconds": 3.5,
        "read_again_offsets": 4,
    }
    assert "loss_offsets" not in told(replace(known, unknown_partitions=1)), "a sum of which a part is unknown"
    assert "read_again_offsets" not in told(
        replace(known, groups={**groups, "new": GroupReadAgain(most=None, now=None)})
    )
    assert told(replace(known, groups={}))["read_again_offsets"] == 0
    assert told(REFUSED) == {"ready": 0}
    assert told(known, RunProgress("drain", WriteLocation.NOWHERE, 3_000)) == {}


def test_a_destination_that_forgets_producers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster check` says so, too, to whoever runs it; this is looked at again and again."""
    findings = [Finding("producer_ids_expire", broker) for broker in (1, 2)]
    forgets: dict[str, list[Finding]] = {EAST: findings, WEST: findings}
    found = cast(
        "MirrorLink", SimpleNamespace(source=SimpleNamespace(name=EAST), destination=SimpleNamespace(name=WEST))
    )
    monkeypatch.setattr(
        readiness_report,
        "check_cluster",
        lambda side: SimpleNamespace(rights=(), expiring_producers=to_finding_documents(forgets[side.name])),
    )
    (point,) = readiness_report.find_missing_rights(found)
    assert point.weight is PointWeight.WARNING
    assert point.finding == Finding("destination_forgets_producers", WEST, brokers=["1", "2"])
    assert "cluster check west" in point.remedy
    forgets[WEST] = []
    assert not list(readiness_report.find_missing_rights(found)), "what could not be looked at is none"
