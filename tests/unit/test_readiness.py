"""What speaks against a failover now, with its remedy; and under which names Prometheus is told of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from mirror_core.decide.ages import NEVER, Known, known_since, never_compared, newest_of
from mirror_core.decide.failover import Decision
from mirror_core.decide.readiness import Point, Readiness, Weight, of_ages, of_drift, of_plan, of_uncompared
from mirror_core.decide.run_standing import Standing, standing_of
from mirror_core.decide.standing import Standing as Fence
from mirror_core.decide.steps import Writes
from mirror_core.decide.watchers import Watched, Watching
from mirror_core.decide.without_source import Again, WithoutSource
from mirror_core.mirrors.readiness_metrics import Exposition
from mirror_core.model.drift import Action, DriftRow, Part
from mirror_core.model.errors import Indeterminate
from mirror_core.model.mirror import Desired, GroupsSeen, PartitionState
from mirror_core.model.names import MirrorName
from mirror_core.model.proof import Proof, Proved
from mirror_core.model.run import Mode, Plan, RunKind, StepRecord, StepState
from mirror_core.runbook import readiness
from mirror_core.state.link import Link
from tests.judging import EAST, WEST
from tests.memory import run_of
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_metrics import MIRROR, status
from tests.unit.test_ready_rows import A0, A1, NAME, VIEW

NOW_MS = 100 * 86_400_000
REFUSED = WithoutSource(refused=("the destination is silent",))
FRESH = dict.fromkeys(Known, NOW_MS - 1_000)


def plan(kind: RunKind = RunKind.FAILOVER, mode: Mode = Mode.PLANNED) -> Plan:
    return Plan(
        kind=kind,
        mirror=MirrorName("m"),
        mode=mode,
        steps=(),
        bound=(),
        warnings=("dear",),
        unknown=("everything on east",),
    )


def test_refusals_make_it_not_ready_and_warnings_do_not() -> None:
    points = tuple(of_plan(Decision(plan(), ("the destination is silent",))))
    assert [(p.weight, p.words) for p in points] == [
        (Weight.REFUSAL, "the destination is silent"),
        (Weight.WARNING, "dear"),
        (Weight.WARNING, "not known: everything on east"),
    ]
    found = Readiness(mirror=MIRROR, run=None, points=points, figures={}, unplanned=REFUSED, at_ms=1)
    assert not found.ready
    assert replace(found, points=points[1:]).ready


@pytest.mark.parametrize("what", Known)
def test_what_is_old_or_never_was_is_a_point_with_a_command(what: Known) -> None:
    assert list(of_ages("m", FRESH, NOW_MS)) == []
    for known, words in ((FRESH | {what: NOW_MS - 36 * 86_400_000}, " ago"), ({**FRESH, what: None}, NEVER[what])):
        (point,) = of_ages("m", {k: v for k, v in known.items() if v is not None}, NOW_MS)
        assert point.words.endswith(words)
        assert " m`" in point.remedy
    (point,) = of_ages("m", FRESH | {what: NOW_MS + 60_000}, NOW_MS)
    assert point.words.endswith("at an unknown time (clocks differ)"), "not 0 s ago"
    assert point.remedy == "set the clock here, look again"


def test_partitions_that_were_never_compared_are_a_point_where_others_were() -> None:
    some = Proof.of(NAME, {A0: Proved(60, 0, 40_000, 60)}, {"a": "d"})
    assert [never_compared(proof, VIEW.statuses) for proof in (some, None, VIEW.proof)] == [1, 0, 0]
    (point,) = of_uncompared("m", 1)
    assert (point.words, "`mirrorbook parity m`" in point.remedy) == ("1 partition(s) were never compared", True)
    assert not list(of_uncompared("m", 0))


def test_what_never_was_is_told_apart_from_what_cannot_be() -> None:
    def newest(known: dict[Known, int], *states: PartitionState) -> dict[Known, int | None]:
        return newest_of(known, {p: status(p, state) for p, state in zip((A0, A1), states, strict=False)})

    never = dict.fromkeys(Known)
    assert newest({}, PartitionState.MIRRORING, PartitionState.FAILED) == never
    assert newest({Known.DRILL: 7}, PartitionState.MIRRORING) == {**never, Known.DRILL: 7}
    nothing_to_compare = {Known.GROUPS: None, Known.DRILL: None}
    assert newest({}) == newest({}, PartitionState.FAILED) == nothing_to_compare
    seen = GroupsSeen(mirror=NAME, synced_ms=5, followed=True)
    known = dict(known_since(NAME, seen, None, iter(()), VIEW.statuses))
    assert newest_of(known, VIEW.statuses) == {**never, Known.GROUPS: 5}


def test_drift_is_counted_by_part_and_what_needs_a_person_is_said_in_full() -> None:
    def row(part: Part, action: Action, *, done: bool = False) -> DriftRow:
        return DriftRow(part=part, subject="s", source="", destination="", action=action, reason="why", done=done)

    rows = [
        row(Part.TOPICS, Action.CREATE),
        row(Part.ACLS, Action.STAGE),
        row(Part.ACLS, Action.CREATE),
        row(Part.ACLS, Action.REMOVE),
        row(Part.GROUPS, Action.EQUAL),
        row(Part.GROUPS, Action.COMMIT),
        row(Part.TOPICS, Action.WIDEN, done=True),
        row(Part.CONFIGS, Action.REFUSE),
    ]
    assert list(of_drift("m", rows)) == [
        Point(
            Weight.WARNING, "the two sides differ: 2 of acls, 1 of topics", "`mirrorbook sync m`; often the next one"
        ),
        Point(Weight.WARNING, "configs, s: why"),
    ]
    assert list(of_drift("m", [row(Part.TOPICS, Action.EQUAL)])) == []


def standing(kind: RunKind, *steps: tuple[str, StepState], mode: Mode = Mode.PLANNED) -> Standing:
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
    return standing_of(run, records)


def test_where_a_run_stands_says_whether_applications_can_write_until_the_next_word() -> None:
    started, done, failed = StepState.STARTED, StepState.DONE, StepState.FAILED
    forth, back = RunKind.FAILOVER, RunKind.FAILBACK
    assert standing(forth) == Standing("", Writes.SOURCE, 1)
    assert standing(forth, ("prove", done)) == Standing("prove", Writes.SOURCE, 15), "it waits for a person"
    assert standing(forth, ("prove", done), ("fence", started)) == Standing("fence", Writes.NOWHERE, 20)
    assert standing(forth, ("drain", failed)).writes is Writes.NOWHERE
    assert standing(forth, ("record_lmo", done)).writes is Writes.NOWHERE
    assert standing(forth, ("promote", done)).writes is Writes.DESTINATION
    assert standing(forth, ("report", done)).writes is Writes.DESTINATION
    assert standing(forth, mode=Mode.UNPLANNED).writes is Writes.NOWHERE, "the source is given up for dead"
    assert standing(back) == Standing("", Writes.DESTINATION, 1)
    assert standing(back, ("catch_up", started)).writes is Writes.DESTINATION


def samples(*looks: Readiness) -> dict[tuple[str, str], float]:
    shown, registry = Exposition(), CollectorRegistry()
    registry.register(shown)
    shown.tell(looks)
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "mirror")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_step_of_another_version_is_said_and_not_guessed_at() -> None:
    newer = StepRecord(run=RUN.id, step="weigh", state=StepState.STARTED, attempt=1, started_ms=2)
    with pytest.raises(Indeterminate, match="step 'weigh', which this version of Mirrorbook does not know"):
        standing_of(RUN, [newer])


def test_prometheus_is_told_and_of_a_mirror_that_a_run_holds_only_how_that_stands() -> None:
    point = Point(Weight.WARNING, "dear")
    found = Readiness(mirror=MIRROR, run=None, points=(point,), figures={}, unplanned=REFUSED, at_ms=5_000)
    told = samples(found)
    assert told["mirrorbook_ready", ""] == 1
    assert told["mirrorbook_readiness_points", "warning"] == 1
    assert told["mirrorbook_readiness_points", "refusal"] == 0
    assert told["mirrorbook_readiness_looked_timestamp_seconds", ""] == 5
    assert [told["mirrorbook_desired", one] for one in Desired] == [one is MIRROR.desired for one in Desired]
    stands = replace(found, run=Standing("drain", Writes.NOWHERE, 3_000))
    held = samples(stands)
    assert held["mirrorbook_run_word_timestamp_seconds", "drain,nowhere"] == 3
    assert ("mirrorbook_run_conducted", "drain,nowhere") not in held, "that is not known"
    for conducted in (True, False):
        told = samples(replace(stands, conducted=conducted))
        assert told["mirrorbook_run_conducted", "drain,nowhere"] == conducted
    assert ("mirrorbook_ready", "") not in held
    assert samples() == {}


def test_prometheus_is_told_0_of_what_never_was_and_nothing_of_what_cannot_be() -> None:
    def told(known_ms: dict[Known, int | None], run: Standing | None = None) -> dict[str, float]:
        found = Readiness(
            mirror=MIRROR, run=run, points=(), figures={}, known_ms=known_ms, unplanned=REFUSED, at_ms=5_000
        )
        name = "mirrorbook_readiness_known_timestamp_seconds"
        return {what: value for (metric, what), value in samples(found).items() if metric == name}

    known = {Known.GROUPS: 4_500, Known.PROOF: None, Known.DRILL: None}
    assert told(known) == {"groups": 4.5, "proof": 0, "drill": 0}
    assert told({Known.GROUPS: None, Known.DRILL: 2_000}) == {"groups": 0, "drill": 2}
    assert told(known, Standing("drain", Writes.NOWHERE, 3_000)) == {}


def test_prometheus_is_told_when_a_mirror_was_created_and_how_long_a_failover_would_take() -> None:
    found = Readiness(
        mirror=replace(MIRROR, created_ms=1_500),
        run=None,
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
    held = samples(replace(found, run=Standing("drain", Writes.NOWHERE, 3_000)))
    assert held[created, ""] == 1.5
    assert (predicted, "") not in held


def test_prometheus_is_told_whether_anybody_watches_the_old_source_also_while_a_run_holds_the_mirror() -> None:
    def told(watching: Watching, run: Standing | None = None) -> dict[str, float]:
        watched = Watched(watching=watching, mirror=MIRROR.name, cluster="east", fence=Fence.OWED)
        found = Readiness(
            mirror=MIRROR, run=run, watched=watched, points=(), figures={}, unplanned=REFUSED, at_ms=5_000
        )
        prefix = "east,pending,"
        return {
            labels.removeprefix(prefix): value
            for (name, labels), value in samples(found).items()
            if name == "mirrorbook_old_source_watched" and labels.startswith(prefix)
        }

    nobody = {"somebody": 0, "awaited": 0, "nobody": 1, "unknown": 0}
    assert told(Watching.NOBODY) == told(Watching.NOBODY, Standing("canary", Writes.DESTINATION, 3_000)) == nobody
    assert told(Watching.SOMEBODY)["somebody"] == 1
    assert told(Watching.NOT_NEEDED) == {}


def test_prometheus_is_told_what_an_unplanned_failover_would_cost_and_nothing_of_what_is_unknown() -> None:
    def told(unplanned: WithoutSource, run: Standing | None = None) -> dict[str, float]:
        found = Readiness(mirror=MIRROR, run=run, points=(), figures={}, unplanned=unplanned, at_ms=5_000)
        of = samples(found).items()
        return {name.removeprefix("mirrorbook_unplanned_"): value for (name, _), value in of if "_unplanned_" in name}

    groups = {"g": Again(most=4, now=1), "h": Again(most=0, now=None)}
    known = WithoutSource(
        refused=(),
        missing=7,
        unknown_partitions=0,
        looked_s=2.0,
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
    assert "read_again_offsets" not in told(replace(known, groups={**groups, "new": Again(most=None, now=None)}))
    assert told(replace(known, groups={}))["read_again_offsets"] == 0
    assert told(REFUSED) == {"ready": 0}
    assert told(known, Standing("drain", Writes.NOWHERE, 3_000)) == {}


def test_a_destination_that_forgets_producers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster check` says so, too, to whoever runs it; this is looked at again and again."""
    lines = ("broker 1: forgets", "broker 2: forgets")
    forgets: dict[str, tuple[str, ...]] = {EAST: lines, WEST: lines}
    found = cast("Link", SimpleNamespace(source=SimpleNamespace(name=EAST), destination=SimpleNamespace(name=WEST)))
    monkeypatch.setattr(readiness, "check", lambda side: SimpleNamespace(rights=(), forgetful=forgets[side.name]))
    (point,) = readiness.rights(found)
    assert (point.weight, point.words) == (Weight.WARNING, f"cluster {WEST}: {lines[0]} (and 1 more such broker(s))")
    assert "cluster check west" in point.remedy
    forgets[WEST] = ()
    assert not list(readiness.rights(found)), "what could not be looked at is none"
