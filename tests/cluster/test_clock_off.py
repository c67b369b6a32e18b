"""The clock of the machine that acts is hours ahead of everybody's, or behind."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from mirror_core.cli.run_commands import begin_run, find_expired_approval
from mirror_core.decide.approval_rules import ApprovalPolicy, make_approval
from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS
from mirror_core.decide.parity_result import LEVEL_RECORDS
from mirror_core.decide.process_liveness import ConductorState, WatcherState
from mirror_core.decide.run_result import measure_outage
from mirror_core.decide.run_status import find_newest_run
from mirror_core.decide.steps import list_step_names, measure_standstill_s, measure_step_s
from mirror_core.evidence.file_store import open_local_folder
from mirror_core.kafka.config import load_config
from mirror_core.kafka.heartbeat_topic import HeartbeatProducer, ensure_heartbeat_topic
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS, alter_configs, describe_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.incremental_verification import compare_and_record, judge_plan, plan_comparison
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.mirrors.preflight import check_cluster
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import ACTIVE_TOPIC, Partition, get_heartbeat_topic
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import Plan, RunKind, RunMode, RunState, list_newest_first
from mirror_core.model.run_checkpoints import RecordedApproval
from mirror_core.model.source_observation import Heartbeat
from mirror_core.model.sync_state import SyncCategory
from mirror_core.model.timing import now_ms, read_steady_s
from mirror_core.parity.check import LocalParity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.parity.parity_table import read_parity_rows, write_rows_locally
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state import mirror_link
from mirror_core.state.approvals import find_approvals, record_approval
from mirror_core.state.lease import make_next_lease, take_over_lease
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.watcher_heartbeat import WatcherHeartbeats, observe_watcher
from mirror_core.wire.batch import NO_TIMESTAMP
from tests.support.broker_faults import killed
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import beating, beats, driving
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import at_work
from tests.support.shifted_clock import HOUR_S, ShiftedClock
from tests.support.unplanned_runs import begin as begin_unplanned
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CREATE_TIME: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "3600000",
    "message.timestamp.after.max.ms": "3600000",
}
"""As topics are that an older version has made, on brokers that mind the past as well."""


@pytest.fixture
def old_topics(pair: Pair) -> Iterator[None]:
    """Of ours, on the destination; put back as they were."""
    with as_admin(pair.west) as client:
        yield
        before: dict[str, str | None] = {**dict.fromkeys(CREATE_TIME), **BROKER_TIME_CONFIGS}
        alter_configs(client, dict.fromkeys((STATE_TOPIC, ACTIVE_TOPIC), before))


@pytest.mark.usefixtures("old_topics")
@pytest.mark.parametrize("hours", [2, -2])
def test_a_dead_source_is_given_up_by_a_machine_whose_clock_is_off(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with as_admin(pair.west) as client:  # `new_mirror` has changed them
        alter_configs(client, dict.fromkeys((STATE_TOPIC, ACTIVE_TOPIC), CREATE_TIME))
    with killed(pair.east):
        clock.hours = hours
        decision = mirrored.failover.decide(RunMode.UNPLANNED)
        assert decision.reasons == ()
        run = mirrored.failover.begin(decision.plan.hash, RunMode.UNPLANNED)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        clock.hours = 0
    assert mirrored.statuses[Partition(topic, 0)].lmo == 20
    assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sorted(sent)


@pytest.mark.parametrize("hours", [2, -2])
def test_ages_go_by_the_brokers_clock_where_the_data_plane_was_on_another_machine(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """The data plane has died with the source. No loss is told by hours, and nothing is waited for as long."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    with at_work(mirrored, "local", tmp_path) as process:
        beating(mirrored, 2)
        clock.hours = hours
        facts = describe_mirror(mirrored.link, mirrored.state, now_ms()).facts
        clock.hours = 0
        way = "ahead of" if hours > 0 else "behind"
        assert facts[FactKey.CLOCK].text.startswith(f"the clock here is 7,200 s {way} that of west's brokers"), facts[
            FactKey.CLOCK
        ].text
        assert facts[FactKey.DATA_PLANE].value != ()
        assert re.fullmatch(r"\d{1,2}\.\d s ago", facts[FactKey.SOURCE_SEEN].text), facts
        with killed(pair.east):
            process.kill()
            clock.hours = hours
            decision = mirrored.failover.decide(RunMode.UNPLANNED)
            assert 0 <= silence_s(decision.plan) < HOUR_S
            assert f"the clock here is 7,200 s {way} that of west's brokers" in " ".join(
                map(str, decision.plan.warnings)
            )
            run = mirrored.failover.begin(decision.plan.hash, RunMode.UNPLANNED)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
            checked = check_cluster(mirrored.config.cluster("west")).advice
            clock.hours = 0
    (differs,) = [line for line in checked if f"the clock here is 7,200 s {way} that of west's brokers" in line]
    assert "Set the one that is wrong" in differs
    assert ("refuse records of applications" in differs) is (hours > 0), "where it is the brokers that are behind"
    assert [line for line in check_cluster(mirrored.config.cluster("west")).advice if "clock" in line] == []


def test_a_run_begun_by_a_clock_that_was_ahead_hides_none_of_the_later_ones(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where brokers do not tell the time."""
    monkeypatch.setattr(mirror_link, "measure_clock_ahead_ms", lambda *asked, **options: None)
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover, failback = mirrored.failover, failback_of(mirrored)
    clock.hours = 2
    first = failover.begin(failover.plan(RunMode.PLANNED).hash)
    first = failover.drive(first.id)
    clock.hours = 0
    assert failover.is_in_effect(mirrored.state, first)
    later = failback.begin(failback.plan().hash)
    assert later.started_ms < first.started_ms
    assert not failover.is_in_effect(mirrored.state, first), "a cleared task would take it up again"
    assert failover.find_run_to_resume(first.plan_hash) is None
    assert find_newest_run(mirrored.link.mirror.name, mirrored.state.runs.values()) == later
    assert [run.id for run in list_newest_first(mirrored.state.runs.values())][:2] == [later.id, first.id]
    failback.abort(later.id)
    assert failover.is_in_effect(mirrored.state, first)


@pytest.mark.parametrize("hours", [2, -2])
def test_who_conducts_and_who_watches_is_told_by_the_brokers_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """Whoever asks is hours off; then whoever acted was."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover, west, name = mirrored.failover, mirrored.link.destination, mirrored.link.mirror.name
    for acting, asking in ((0, hours), (hours, 0)):
        clock.hours = acting
        run = failover.begin(failover.plan(RunMode.PLANNED).hash)
        clock.hours = asking
        told = observe_conductor(west, mirrored.state, run)
        assert told.state is ConductorState.RELEASED, told
        assert told.age_s is not None, told
        assert 0 <= told.age_s < 100, told
        clock.hours = 0
        failover.abort(run.id)
    failover.drive(begin(failover))
    for acting, asking in ((0, hours), (hours, 0)):
        clock.hours = acting
        with WatcherHeartbeats(west, "a test", 30.0) as signs:
            signs.send(name)
        clock.hours = asking
        watcher = observe_watcher(west, mirrored.state, name)
        clock.hours = 0
        assert watcher.state is WatcherState.ALIVE, watcher


@pytest.mark.parametrize("mode", list(RunMode))
@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_jumps_within_a_run_lengthens_and_holds_up_nothing(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, mode: RunMode, hours: int
) -> None:
    """Before the promotion: its check asks whether the run stood still, and what people said is still valid."""
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    steps, before_ms, held_up = (PlannedSteps if mode is RunMode.PLANNED else UnplannedSteps), now_ms(), list[bool]()
    check = steps.check_before_promotion

    def jump(self: Any) -> PromotionProbe:
        clock.hours = hours
        held_up.append(isinstance(self, UnplannedSteps) and self._was_held_up())
        return check(self)

    monkeypatch.setattr(steps, "check_before_promotion", jump)
    with killed(pair.east) if mode is RunMode.UNPLANNED else nullcontext():
        run = mirrored.failover.drive(begin_unplanned(mirrored.failover, mode).id)
        clock.hours = 0
    assert run.state is RunState.DONE
    assert held_up == [False]
    records = mirrored.failover.read_status(run.id)[1]
    seconds = [measure_step_s(record) for record in records] + [measure_standstill_s(run, records)]
    assert all(s is not None and s < HOUR_S for s in seconds), seconds
    for at_ms in (run.ended_ms, *(record.ended_ms for record in records)):
        assert at_ms is not None
        assert before_ms - 1_000 <= at_ms < before_ms + HOUR_S * 1_000
    assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sorted(sent)


@pytest.mark.parametrize("hours", [2, -2])
def test_a_run_that_a_machine_with_another_clock_resumes_is_as_long_as_it_was(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    run_id = begin(mirrored.failover)
    for name in list_step_names(RunKind.FAILOVER, RunMode.PLANNED):
        mirrored.failover.run_step(run_id, name)
        clock.hours = hours - clock.hours
    run, records = mirrored.failover.read_status(run_id)
    clock.hours = 0
    outage = measure_outage(run, records)
    assert outage is not None, records
    assert outage.promotion_s < HOUR_S


@pytest.mark.parametrize("hours", [2, -2])
def test_a_data_plane_whose_clock_jumps_goes_on(pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int) -> None:
    """Epochs end, heartbeats are taken, and what is new is found: no wait is for a time on the wall clock."""
    topic, prefix = app_topic(pair), f"later-{secrets.token_hex(4)}-"
    sent = produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic, f"{prefix}.*")
    with driving(mirrored):
        beating(mirrored, 2)
        clock.hours = hours
        heard = len(beats(mirrored))
        # The test's own records are of the same clock.
        later = new_topic(pair.east, 1, prefix, message_timestamp_after_max_ms=str(2**63 - 1))
        produce(pair.east, later, 10)
        wait_until(lambda: Partition(later, 0) in mirrored.statuses, timeout_s=TIMEOUT_S, why="epochs are planned anew")
        wait_until(lambda: len(read_all(pair.west, later)) == 10, timeout_s=TIMEOUT_S, why="it is copied")
        wait_until(lambda: len(beats(mirrored)) > heard + 3, timeout_s=TIMEOUT_S, why="it beats on")
    clock.hours = 0
    assert read_all(pair.west, topic) == sorted(sent)


@pytest.mark.parametrize("hours", [2, -2])
def test_the_next_data_plane_waits_as_long_as_the_last_one_copies_whose_clock_was_set(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """It dies at once: what it has recorded by then counts."""
    mirrored = new_mirror(pair, tmp_path, app_topic(pair))
    with driving(mirrored, epoch_s=60):
        beating(mirrored, 2)
        clock.hours = hours
        before = mirrored.state.leases[mirrored.name].heartbeat_ms
        wait_until(
            lambda: mirrored.state.leases[mirrored.name].heartbeat_ms != before, timeout_s=TIMEOUT_S, why="it renews"
        )
        clock.hours = 0
        next_lease = make_next_lease(mirrored.state, mirrored.name, "the next one", 0)
        left_s = (next_lease.writers_until_ms - next_lease.heartbeat_ms) / 1000
        assert 20 < left_s < 63, "tasks of an epoch of 60 s still write"


@pytest.mark.parametrize("hours", [2, -2])
def test_ages_in_an_observation_are_no_longer_for_a_clock_that_was_set(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)

    def find_rate() -> float | None:
        observation = mirrored.state.source_observations.get(mirrored.name)
        return observation.offsets_per_s if observation else None

    with driving(mirrored):
        beating(mirrored, 2)
        produce(pair.east, topic, 20)
        wait_until(lambda: (find_rate() or 0) > 0.2, timeout_s=TIMEOUT_S, why="the rate is known")
        clock.hours = hours
        wait_until(
            lambda: abs(mirrored.state.source_observations[mirrored.name].at_ms - now_ms()) < HOUR_S * 1000,
            timeout_s=TIMEOUT_S,
            why="it looks by the new clock",
        )
        observation = mirrored.state.source_observations[mirrored.name]
        times_ms = [end.at_ms for _, end in observation.get_ends()]
        times_ms += [at_ms for at_ms in (observation.listed_ms, observation.transactions_ms) if at_ms is not None]
        assert all(0 <= observation.at_ms - at_ms < 300_000 for at_ms in times_ms), (observation.at_ms, times_ms)
        assert (observation.offsets_per_s or 0) > 0.2, "the last minute has not become two hours"
        clock.hours = 0


def test_old_tasks_are_waited_for_though_the_clock_is_set_ahead_meanwhile(
    pair: Pair, tmp_path: Path, clock: ShiftedClock
) -> None:
    mirrored = new_mirror(pair, tmp_path, app_topic(pair))
    destination = mirrored.link.destination
    take_over_lease(destination, mirrored.name, "elsewhere/1/a").renew(writers_end_s=read_steady_s() + 6)
    lease, began_s = take_over_lease(destination, mirrored.name, "elsewhere/2/b"), time.monotonic()

    def set_clock(line: str) -> None:
        clock.hours = 2

    lease.wait_for_old_writers(set_clock)
    assert clock.hours == 2, "there was nothing to wait for"
    assert time.monotonic() - began_s > 4
    clock.hours = 0
    lease.release()


@pytest.mark.parametrize("hours", [2, -2])
def test_what_a_data_plane_with_a_wrong_clock_has_seen_is_dated_by_the_brokers_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """People look for the records of that time, on a machine whose clock is right."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    clock.hours = hours
    with driving(mirrored):
        beating(mirrored, 2)
        wait_until(lambda: mirrored.name in mirrored.state.source_observations, timeout_s=TIMEOUT_S, why="it looks")
    clock.hours = 0
    with killed(pair.east):
        run = begin_unplanned(mirrored.failover)
        clock.hours = -hours  # and on a third machine
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        clock.hours = 0
    evidence = next(s.evidence for s in mirrored.failover.read_status(run.id)[1] if s.step == "record_lmo")
    for figures in (run.plan.figures, evidence):
        times = figures[FigureKey.COMPLETE_UP_TO_MS]
        assert isinstance(times, dict)
        assert 0 < now_ms() - times["all topics together"] < HOUR_S * 1_000, times
    seconds = evidence[FigureKey.TRANSACTIONS_SEEN_S]
    assert isinstance(seconds, float | int)
    assert seconds < HOUR_S


@pytest.mark.parametrize("hours", [2, -2])
def test_a_sync_on_a_machine_whose_clock_is_off_is_dated_by_the_data_planes_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """What it records is compared with the follower's time: is there one that commits what is newer?"""
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    before_ms = now_ms()
    clock.hours = hours
    mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS}))
    clock.hours = 0
    assert abs(mirrored.state.groups[mirrored.name].synced_ms - before_ms) < HOUR_S * 1_000


@pytest.mark.parametrize("hours", [2, -2])
def test_ages_of_syncs_and_comparisons_go_by_the_brokers_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """Whoever wrote is hours off, then whoever reads: neither makes a fresh one old, or its time unknown."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    link, services = mirrored.link, mirrored.services
    pins, compare = (link.mirror.source_identity, link.mirror.destination_identity), LocalParity(mirrored.config.path)
    for acting, asking in ((0, hours), (hours, 0)):
        clock.hours = acting
        mirror_commands.run_sync(link, only=frozenset({SyncCategory.GROUPS}))
        ranges, state = read_parity_scope(link, mirrored.state).ranges, mirrored.state
        compare_and_record(
            link, state, ranges, lambda rest, _: compare(*pins, rest, None), compare_all=True, report=print
        )
        clock.hours = asking
        readiness = assess_readiness(link, mirrored.state, services, with_drift=False)
        described = describe_mirror(link, mirrored.state, now_ms()).figures
        plan = mirrored.failover.plan(RunMode.PLANNED)
        clock.hours = 0
        codes = {point.finding.code for point in readiness.points}
        assert not {"done_at_unknown_time", "done_long_ago"} & codes, codes
        for seconds in (plan.figures[FigureKey.NEWEST_PROOF_S], described[FigureKey.NEWEST_PROOF_S].value):
            assert isinstance(seconds, float | int)
            assert seconds < HOUR_S


@pytest.mark.parametrize("hours", [2, -2])
def test_a_comparison_is_as_long_as_it_was_where_the_machine_that_judges_has_another_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    began_s, began_ms = time.monotonic(), now_ms()
    for planning, judging in ((0, hours), (hours, 0)):
        clock.hours = planning
        scope = read_parity_scope(mirrored.link, mirrored.state)
        plan = plan_comparison(mirrored.link, mirrored.state, scope, level=LEVEL_RECORDS, compare_all=True)
        table = open_local_folder(str(tmp_path / f"rows{planning}"))
        write_rows_locally(plan, table)
        clock.hours = judging
        result = judge_plan(mirrored.link, plan, read_parity_rows(plan, table), None, None, print)
        clock.hours = 0
        assert result.verdict is ParityVerdict.PASSED, result.reasons
        assert 0 < result.seconds <= time.monotonic() - began_s + 2 * MAX_CLOCK_SKEW_MS / 1000
        proof = mirrored.state.verifications[mirrored.link.mirror.name]
        (verified,) = [end for topic_proof in proof.topics for _, end in topic_proof.partitions]
        assert began_ms - MAX_CLOCK_SKEW_MS <= verified.at_ms <= now_ms() + MAX_CLOCK_SKEW_MS


def silence_s(plan: Plan) -> float:
    """Since the source was last looked at, as the plan's bound says it."""
    seconds = plan.figures[FigureKey.SOURCE_SEEN_S]
    assert isinstance(seconds, float)
    return seconds


def test_topics_of_an_older_version_get_the_brokers_time(pair: Pair, tmp_path: Path) -> None:
    mirrored = new_mirror(pair, tmp_path, app_topic(pair))
    beats_of = get_heartbeat_topic(mirrored.name)
    with as_admin(pair.west) as west, as_admin(pair.east) as east:
        ensure_heartbeat_topic(east, beats_of)
        for client, topic in ((west, STATE_TOPIC), (east, beats_of)):
            alter_configs(client, {topic: CREATE_TIME})
        with driving(mirrored):
            beating(mirrored, 2)
        for client, topic in ((west, STATE_TOPIC), (east, beats_of)):
            assert BROKER_TIME_CONFIGS.items() <= describe_configs(client, [topic])[topic].effective.items()
    assert {record.append_time for record in read_all(pair.east, beats_of)} == {True}
    mirrored.copy()
    assert read_all(pair.west, beats_of) == read_all(pair.east, beats_of)


def test_heartbeats_go_on_where_the_clock_is_refused_and_the_topic_may_not_be_changed(pair: Pair) -> None:
    topic = new_topic(pair.east, 1)
    with as_admin(pair.east) as client:
        alter_configs(
            client, {topic: {**CREATE_TIME, "message.timestamp.before.max.ms": "0"}}
        )  # as a clock that is late
    beats = HeartbeatProducer(load_config(pair.config_path).cluster("east"), topic)

    def write() -> bool:
        beat = Heartbeat(partition=0, number=1, at_ms=now_ms(), mirror="m", driver="test")
        return beats.write([beat])[0] == 1 and beats._timestamp == NO_TIMESTAMP

    wait_until(write, timeout_s=TIMEOUT_S, why="one is taken after the first was refused")
    assert read_all(pair.east, topic)[-1].timestamp_ms == NO_TIMESTAMP


def test_an_answer_from_ahead_of_the_brokers_clock_is_valid_for_no_longer_than_another(
    pair: Pair, tmp_path: Path
) -> None:
    """Airflow's API server, whose clock is two hours ahead, says when it was given."""
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    given = make_approval("a", "ann", "Ann", now_ms() + 2 * HOUR_S * 1000)
    recorded = RecordedApproval(question="mirror_failover/r1", task="approve", approval=given, approves="0" * 64)
    record_approval(mirrored.link.destination, mirrored.name, recorded)
    (found,) = find_approvals(mirrored.state, mirrored.name, recorded.question)
    soon_ms = now_ms() + 60_000
    assert found.approval.at_ms is not None
    assert found.approval.at_ms < soon_ms
    assert found.approval.until_ms == found.approval.at_ms + HOUR_S * 1000
    assert found.approval.approval_id == given.approval_id, "a task that reads its answer again has the same approval"


@pytest.mark.parametrize(("hours", "age_s", "is_valid"), [(2, 60, True), (-2, 60, True), (-2, 2 * HOUR_S, False)])
def test_approvals_expire_by_the_brokers_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int, age_s: int, *, is_valid: bool
) -> None:
    """The conductor's clock is off; the person's answer has the time of Airflow's server."""
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = Failover(mirrored.link, mirrored.services, started_by="airflow mirror_failover/r1 by ann")
    plan = failover.decide(RunMode.PLANNED).plan
    policy = ApprovalPolicy(question="mirror_failover/r1", tasks=("approve",), approvers=frozenset({"ann"}))
    approval = make_approval("a", "ann", "Ann", now_ms() - age_s * 1000)
    recorded = RecordedApproval(question=policy.question, task="approve", approval=approval, approves=plan.hash)
    record_approval(mirrored.link.destination, mirrored.name, recorded)
    clock.hours = hours
    with nullcontext() if is_valid else pytest.raises(Refused, match="approved it 120 minutes ago"):
        run = failover.begin(plan.hash, RunMode.PLANNED, approved_by=policy)
        assert failover.abort(run.id).state is RunState.ABORTED
    clock.hours = 0


@pytest.mark.parametrize("hours", [2, -2])
def test_a_yes_on_a_terminal_is_dated_by_the_brokers_clock(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    """It holds for an hour, and not for three; and whoever resumes at once is not asked again."""
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover, begun_ms = mirrored.failover, now_ms()
    clock.hours = hours
    run = begin_run(failover, failover.decide(RunMode.PLANNED), RunMode.PLANNED, as_json=True)
    asked_again = find_expired_approval(failover, run)
    clock.hours = 0
    (approval,) = run.approvals
    assert asked_again == ""
    assert approval.at_ms is not None
    assert begun_ms - 60_000 < approval.at_ms < now_ms() + 60_000
    assert failover.abort(run.id).state is RunState.ABORTED


@pytest.mark.parametrize("hours", [-2, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failback_on_a_machine_whose_clock_is_off_waits_for_no_task_by_hours_and_is_brought_home(
    pair: Pair, tmp_path: Path, clock: ShiftedClock, hours: int
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    sent = produce(pair.west, topic, 5)
    clock.hours = hours
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert sorted(read_all(pair.east, topic))[-5:] == sorted(sent)
