"""What an unplanned failover would be if the source died now: by one look, and never 0 for what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_core.decide.clock_skew import find_leader_ahead_ms
from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.failover_readiness import (
    GroupReadAgain,
    UnplannedForecast,
    forecast_unplanned,
    list_forecast_facts,
)
from mirror_core.decide.mirror_snapshot import ClusterTopic, MirrorSnapshot, SourceSnapshot, UnseenCluster
from mirror_core.decide.process_liveness import CONDUCTOR_STEP
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.mirror import DesiredState, GroupSyncTime
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.timing import UNKNOWN_NOW_MS
from mirror_core.runbook import failover_conductor
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import Services
from mirror_core.runbook.snapshot_reader import PRESUMED_DEAD, presume_source_dead
from mirror_core.state import run_heartbeat
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.state_records import State
from tests.support import loss_views
from tests.support.cluster_names import LINK
from tests.support.forecasts import COMMITTED
from tests.support.loss_views import A0, A1, B0, DESTINATION, status
from tests.support.memory_state import journal_of
from tests.support.mirror_views import HOLDER

lost = loss_views.view
SOURCE = SourceSnapshot(
    cluster_id="E",
    topics={"a": ClusterTopic(id="s", partitions=2), "b": ClusterTopic(id="s", partitions=1)},
    stable_ends={A0: Offset(103), A1: Offset(60), B0: Offset(11)},
    authorizer=True,
    transactions=(),
    groups=("g",),
    committed={"g": {A0: Offset(90), A1: Offset(20)}},
)
DRAINED_SOURCE = replace(SOURCE, stable_ends=DESTINATION.positions)
THERE = replace(DESTINATION, committed=COMMITTED)


@pytest.fixture
def seen(lost: MirrorSnapshot) -> MirrorSnapshot:
    """A living source, and a mirror that is well."""
    return replace(
        lost,
        mode=RunMode.PLANNED,
        source=SOURCE,
        destination=THERE,
        groups=GroupSyncTime(mirror=lost.mirror.name, synced_ms=99_000, followed=True),
    )


def judged(seen: MirrorSnapshot, **more: object) -> UnplannedForecast:
    view = replace(seen, mode=RunMode.UNPLANNED, source=PRESUMED_DEAD, **cast(Any, more))
    return forecast_unplanned(decide_failover(view), view, seen)


def test_no_age_is_known_by_a_clock_that_is_behind(seen: MirrorSnapshot) -> None:
    found = judged(seen, now_ms=50_000)
    assert (found.missing, found.observed_s, found.heartbeat_s, found.synced_s) == (37, None, None, None)
    assert "clock_behind" in [warning.code for warning in found.warnings]


def test_no_age_is_known_where_the_leader_of_the_state_topic_is_ahead(seen: MirrorSnapshot) -> None:
    found = judged(seen, now_ms=UNKNOWN_NOW_MS, leader_ahead_ms=7_200_000)
    assert (found.missing, found.observed_s, found.behind_s, found.heartbeat_s, found.synced_s) == (37, *[None] * 4)
    codes = [warning.code for warning in found.warnings]
    assert "state_leader_ahead" in codes
    assert "clock_behind" not in codes


@pytest.mark.parametrize(
    ("appended_ms", "ahead_ms"), [(1_000, None), (11_000, None), (11_001, 10_001), (7_201_000, 7_200_000)]
)
def test_a_leader_is_ahead_where_a_record_is_of_the_controllers_future(appended_ms: int, ahead_ms: int | None) -> None:
    """The controller says 1,000; this machine is five seconds behind it."""
    assert find_leader_ahead_ms(-4_000, -5_000, [0, appended_ms]) == ahead_ms
    assert find_leader_ahead_ms(-4_000, None, [appended_ms]) is None
    assert find_leader_ahead_ms(-4_000, -5_000, []) is None


def test_it_costs_what_a_plan_would_count_and_what_the_source_has_taken_since(seen: MirrorSnapshot) -> None:
    found = judged(seen)
    assert [refusal.code for refusal in found.refused] == ["copy_never_complete"]
    assert found.missing == seen.loss.known_missing == 37
    assert (found.unknown_partitions, found.observed_s, found.heartbeat_s, found.synced_s) == (0, 6.0, 5.5, 5.0)
    assert found.missing_now == 10 + 40 + 0, "newer than what the data plane has seen"
    assert found.groups == {"g": GroupReadAgain(most=5, now=2), "h": GroupReadAgain(most=6, now=None)}
    assert found.read_again_most == 11
    assert (found.figures[FigureKey.LOST_OFFSETS].value, found.figures[FigureKey.SOURCE_SEEN_S].value) == (37, 6.0)
    assert not {"source_answers", "source_answers_partly"} & {warning.code for warning in found.warnings}, (
        "the source is dead, as far as this goes"
    )


def test_facts_of_it_have_the_bound_and_say_unknown(seen: MirrorSnapshot) -> None:
    said = list_forecast_facts(judged(seen))
    assert said["without the source"] == "would be refused", "nobody saw a-0 whole"
    assert said["loss, if the source died now"].startswith("loss, at least: 37 offsets")
    assert said["not on the destination yet"] == "50 offsets by what the source shows now"
    assert said["seconds behind"] == "unknown", "nobody saw a-0 whole"
    assert said["read again"] == "at most 11 offsets, by 2 groups"
    nothing = list_forecast_facts(UnplannedForecast(refused=to_finding_documents([Finding("no plan can be made")])))
    assert nothing.pop("without the source") == "would be refused"
    assert set(nothing.values()) == {"unknown"}


@pytest.mark.parametrize(
    "source",
    [
        UnseenCluster("silent"),
        replace(SOURCE, cluster_id="another"),
        replace(SOURCE, stable_ends={A0: Offset(103), A1: Offset(60)}),
        replace(SOURCE, stable_ends={**SOURCE.stable_ends, A0: Offset(80)}),
        replace(SOURCE, topics={**SOURCE.topics, "a": ClusterTopic(id="anew", partitions=2)}),
    ],
    ids=["silent", "another cluster", "no leader", "it lacks some itself", "recreated"],
)
def test_what_the_source_has_now_is_unknown_unless_it_tells_of_every_partition(
    seen: MirrorSnapshot, source: SourceSnapshot | UnseenCluster
) -> None:
    found = judged(replace(seen, source=source))
    assert found.missing_now is None
    assert found.missing == 37, "a plan counts by the data plane's observation"


def test_a_failed_partition_counts_in_what_is_known_and_not_in_what_is_copied_now(seen: MirrorSnapshot) -> None:
    ends = {p: end for p, end in SOURCE.stable_ends.items() if p != A1}  # nobody asks for that of a FAILED one
    found = judged(
        replace(seen, statuses={**seen.statuses, A1: status(A1, "gone")}, source=replace(SOURCE, stable_ends=ends))
    )
    assert (found.missing, found.missing_now) == (37, 10)


def test_nothing_known_is_not_nothing_lost(seen: MirrorSnapshot) -> None:
    never = judged(replace(seen, source_observation=None, groups=None, destination=replace(THERE, heartbeats=())))
    assert (never.missing, never.unknown_partitions, never.observed_s, never.behind_s) == (None, 3, None, None)
    assert (never.heartbeat_s, never.synced_s) == (None, None)
    assert never.missing_now == 50, "the source itself is seen"
    empty = judged(replace(seen, statuses={}))
    assert (empty.missing, empty.missing_now) == (None, None)
    assert empty.refused
    part = replace(THERE, positions={A0: Offset(93), B0: Offset(11)}, committed={})
    assert (
        judged(replace(seen, destination=part)).missing,
        judged(replace(seen, destination=part)).unknown_partitions,
    ) == (7, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda seen: replace(seen, destination=UnseenCluster("silent")),
        lambda seen: replace(seen, destination=replace(THERE, cluster_id="another")),
        lambda seen: replace(seen, mirror=replace(seen.mirror, desired=DesiredState.STOPPED)),
    ],
    ids=["destination silent", "another destination", "stopped"],
)
def test_where_it_is_refused_for_good_no_figure_stands(
    seen: MirrorSnapshot, change: Callable[[MirrorSnapshot], MirrorSnapshot]
) -> None:
    found = judged(change(seen))
    assert found.refused
    assert (found.figures, found.missing, found.unknown_partitions, found.missing_now) == ({}, None, None, None)
    assert (found.groups, found.read_again_most, found.observed_s) == (None, None, None)


def test_of_a_group_that_would_begin_nowhere_or_has_members_it_is_unknown_what_it_reads_again(
    seen: MirrorSnapshot,
) -> None:
    committed = {**SOURCE.committed, "new": {A0: Offset(5)}, "h": {B0: Offset(5), A0: Offset(3)}}
    found = judged(replace(seen, source=replace(SOURCE, committed=committed)))
    assert found.groups is not None
    assert found.groups["new"] == GroupReadAgain(most=None, now=None), "nothing was synced for it"
    assert found.groups["h"] == GroupReadAgain(most=None, now=None), "nor for one of its partitions"
    assert found.read_again_most is None
    joined = judged(replace(seen, destination=replace(THERE, active_groups=("g",))))
    assert joined.groups is not None
    assert joined.groups["g"] == GroupReadAgain(most=None, now=None)
    assert list_forecast_facts(joined)["read again"] == "at most 6 offsets, by 1 group; unknown of 1 group"
    unseen = judged(replace(seen, destination=replace(THERE, groups_unknown=True, committed={})))
    assert (unseen.groups, unseen.read_again_most, list_forecast_facts(unseen)["read again"]) == (None, None, "unknown")


@pytest.mark.parametrize(
    ("there", "source"),
    [
        ({"g": {A0: Offset(90)}}, SOURCE),
        ({"g": {A0: Offset(90)}}, UnseenCluster("dead")),
        ({}, UnseenCluster("dead")),
        (COMMITTED, replace(SOURCE, groups_unread=176)),
    ],
    ids=[
        "a partition never synced",
        "and the source silent",
        "no group synced, and the source silent",
        "no time to ask",
    ],
)
def test_what_groups_had_on_the_source_only_is_unknown_and_never_nothing(
    seen: MirrorSnapshot, there: Mapping[str, Mapping[Partition, Offset]], source: SourceSnapshot | UnseenCluster
) -> None:
    found = judged(replace(seen, destination=replace(THERE, committed=there), source=source))
    assert found.read_again_most is None
    assert "unknown of " in list_forecast_facts(found)["read again"]


def test_groups_that_there_was_no_time_to_ask_about_are_unknown_and_warned_of(seen: MirrorSnapshot) -> None:
    found = judged(replace(seen, destination=replace(THERE, groups_unread=176)))
    assert (found.groups, found.read_again_most) == (None, None)
    assert ("groups_unread", "west", {"count": 176}) in [(w.code, w.subject, w.values) for w in found.warnings]


@pytest.mark.parametrize(
    "topics",
    [
        {**SOURCE.topics, "new": ClusterTopic(id="n", partitions=3)},
        {**SOURCE.topics, "b": ClusterTopic(id="s", partitions=5)},
    ],
    ids=["a topic", "partitions"],
)
def test_what_is_not_mirrored_yet_makes_what_the_source_has_unknown(
    seen: MirrorSnapshot, topics: Mapping[str, ClusterTopic]
) -> None:
    assert judged(replace(seen, source=replace(SOURCE, topics=topics))).missing_now is None


def test_a_look_is_as_old_as_that_at_the_partition_where_it_is_oldest_also_without_a_leader(
    seen: MirrorSnapshot,
) -> None:
    topics = (
        ObservedTopic(topic="a", ends=(100, 50), ages_ms=(0, 60_000), offline=(1,)),
        ObservedTopic(topic="b", ends=(10,), ages_ms=(90_000,)),
    )
    sighting = SourceObservation(mirror=seen.mirror.name, at_ms=100_000, topics=topics, listed_ms=100_000)
    found = judged(replace(seen, source_observation=sighting, statuses={**seen.statuses, B0: status(B0, "bad")}))
    assert found.observed_s == (seen.now_ms - 100_000 + 90_000) / 1000


def test_by_a_clock_that_is_behind_no_age_is_known(seen: MirrorSnapshot) -> None:
    found = judged(replace(seen, now_ms=10_000))
    assert (found.observed_s, found.behind_s, found.heartbeat_s, found.synced_s) == (None,) * 4
    assert found.missing == 37


def test_behind_a_fence_that_was_drained_only_what_has_failed_is_missing(seen: MirrorSnapshot) -> None:
    drained = judged(seen, is_drained=True, continues_run="run")
    assert (drained.missing, drained.unknown_partitions) == (0, 0)
    assert drained.figures[FigureKey.LOST_OFFSETS].value == 0
    broken = replace(seen, statuses={**seen.statuses, A1: status(A1, "gone")})
    failed = judged(broken, is_drained=True, continues_run="run")
    assert (failed.missing, failed.has_all, failed.behind_s) == (30, False, judged(broken).behind_s)
    assert list_forecast_facts(failed)["loss, if the source died now"].startswith("loss, at least: 30 offsets")


@pytest.mark.parametrize("source", [DRAINED_SOURCE, UnseenCluster("silent")])
def test_a_source_that_is_fenced_and_drained_is_not_read_as_one_that_takes_records(
    seen: MirrorSnapshot, source: SourceSnapshot | UnseenCluster
) -> None:
    later = replace(seen, source=source, now_ms=seen.now_ms + 60_000)
    drained = judged(later, is_drained=True, continues_run="run")
    assert (drained.has_all, drained.behind_s) == (True, 0.0), "it has nothing that the destination lacks"
    facts = list_forecast_facts(drained)
    assert "at least" not in facts["loss, if the source died now"]
    assert facts["seconds behind"] == "0.0"
    assert facts["not on the destination yet"] != "unknown"
    assert not judged(later).has_all


def test_a_drained_source_that_shows_more_than_was_copied_is_not_said_to_have_lost_nothing(
    seen: MirrorSnapshot,
) -> None:
    written = judged(replace(seen, source=SOURCE), is_drained=True, continues_run="run")
    assert written.missing_now
    assert (written.has_all, written.behind_s == 0.0) == (False, False)


def test_both_are_decided_by_one_look(seen: MirrorSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[RunMode]()

    def observed(link: object, state: object, mode: RunMode, **more: object) -> MirrorSnapshot:
        looks.append(mode)
        return replace(seen, grants=("of the source",))

    monkeypatch.setattr(failover_conductor, "take_snapshot", observed)
    monkeypatch.setattr(failover_conductor, "read_state", lambda *_, **__: State())
    planned, unplanned = Failover(LINK, cast(Services, None), started_by="test").decide_both_modes()
    assert looks == [RunMode.PLANNED]
    assert planned.plan.mode is RunMode.PLANNED
    assert (unplanned.missing, unplanned.missing_now) == (37, 50)


def test_it_is_bound_to_staged_rights_and_foretold_by_runs_without_a_source(seen: MirrorSnapshot) -> None:
    view = presume_source_dead(replace(seen, grants=("of the source",)), replace(LINK, mirror=seen.mirror), State())
    assert (view.mode, view.source, view.grants, view.unbacked_grants) == (RunMode.UNPLANNED, PRESUMED_DEAD, (), ())
    assert view.now_ms == seen.now_ms


@pytest.mark.parametrize("released", [False, True])
def test_a_failover_that_goes_on_from_a_run_sees_whether_somebody_conducts_it(
    seen: MirrorSnapshot, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    journal = journal_of("m-failover-20260101T000000-abcd", "prove", "fence")
    beat = replace(run_heartbeat._make_heartbeat("me"), released=released)
    journal.log.put(make_checkpoint(journal.run_id, CONDUCTOR_STEP, beat))
    lost = replace(seen, mode=RunMode.UNPLANNED, source=PRESUMED_DEAD, active_run=HOLDER)
    monkeypatch.setattr(failover_conductor, "take_snapshot", lambda *_, **__: lost)
    monkeypatch.setattr(failover_conductor, "is_known_to_stand", lambda services, run_id: False)
    monkeypatch.setattr(run_heartbeat, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
    found = Failover(LINK, cast(Services, None), started_by="test")._decide(journal.log.state, RunMode.UNPLANNED)
    told = any("that process loses the mirror to this run" in warning for warning in map(str, found.plan.warnings))
    assert told is not released
