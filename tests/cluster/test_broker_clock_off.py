"""The clocks of a cluster's brokers are hours ahead of everybody's, or behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from mirror_core.decide.approval_rules import ApprovalPolicy, make_approval
from mirror_core.decide.steps import measure_standstill_s, measure_step_s
from mirror_core.kafka.reassignment import (
    ReplicaPlacement,
    describe_placements,
    elect_preferred_leaders,
    reassign,
    wait_for_replicas,
)
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import ClockState, describe_mirror
from mirror_core.mirrors.incremental_verification import compare_and_record
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState, list_newest_first
from mirror_core.model.run_checkpoints import RecordedApproval
from mirror_core.model.timing import now_ms
from mirror_core.parity.check import LocalParity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.state.approvals import record_approval
from mirror_core.state.state_records import STATE_TOPIC
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.support.broker_clocks import clock_off
from tests.support.broker_faults import killed
from tests.support.cluster_admin import active_controller, as_admin
from tests.support.data_plane_thread import beating, driving
from tests.support.dedicated_clusters import two_clusters
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.separate_cluster import in_place_of
from tests.support.shifted_clock import HOUR_S
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EPOCH_S = 3
STATE = Partition(STATE_TOPIC, 0)


@contextmanager
def one_off(pair: Pair, name: str, folder: Path, hours: int) -> Iterator[Pair]:
    with ExitStack() as stack:
        with clock_off(hours):
            made = stack.enter_context(in_place_of(pair, name, folder, ensure_jars()))
        yield made


def assert_ages_are_short(mirrored: Mirrored) -> None:
    """Of the group sync, of a comparison, and of the last look at the source."""
    link = mirrored.link
    mirror_commands.run_sync(link)
    pins, compare = (link.mirror.source_identity, link.mirror.destination_identity), LocalParity(mirrored.config.path)
    ranges, state = read_parity_scope(link, mirrored.state).ranges, mirrored.state
    compare_and_record(link, state, ranges, lambda rest, _: compare(*pins, rest, None), compare_all=True, report=print)
    readiness = assess_readiness(link, mirrored.state, mirrored.services, with_drift=False)
    codes = {point.finding.code for point in readiness.points}
    assert not {"done_at_unknown_time", "done_long_ago"} & codes, codes
    described = describe_mirror(link, mirrored.state, now_ms())
    plan = mirrored.failover.plan(RunMode.PLANNED)
    seconds = [plan.figures[FigureKey.NEWEST_PROOF_S], described.figures[FigureKey.NEWEST_PROOF_S].value]
    assert all(isinstance(s, int | float) and 0 <= s < HOUR_S for s in seconds), seconds
    assert described.facts[FactKey.DATA_PLANE].value != ()


def assert_run_is_short(mirrored: Mirrored, run_id: str) -> None:
    run, records = mirrored.failover.read_status(run_id)
    seconds = [measure_step_s(record) for record in records] + [measure_standstill_s(run, records)]
    assert all(s is not None and s < HOUR_S for s in seconds), seconds
    assert list_newest_first(mirrored.state.runs.values())[0].id == run_id


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.parametrize("side", ["east", "west"])
def test_a_mirror_between_clusters_whose_clocks_differ(pair: Pair, tmp_path: Path, side: str, hours: int) -> None:
    """A planned failover to the cluster that is behind is refused: it would refuse what applications write."""
    with one_off(pair, side, tmp_path, hours) as off:
        topic = app_topic(off, message_timestamp_after_max_ms=str(2**63 - 1))
        sent = produce(off.east, topic, 20)
        mirrored = new_mirror(off, tmp_path, topic)
        with driving(mirrored, epoch_s=EPOCH_S):
            beating(mirrored, 2)
            wait_until(lambda: len(read_all(off.west, topic)) == 20, timeout_s=TIMEOUT_S, why="it is copied")
            assert_ages_are_short(mirrored)
        decision = mirrored.failover.decide(RunMode.PLANNED)
        refused = "destination_clock_behind" in {reason.code for reason in decision.reasons}
        assert refused is ((side, hours) in {("west", -2), ("east", 2)}), decision.reasons
        warned = {warning.subject for warning in decision.plan.warnings if warning.code == "clock_differs"}
        assert warned == {side}
        mode = RunMode.UNPLANNED if refused else RunMode.PLANNED
        with killed(off.east) if refused else nullcontext():
            run = mirrored.failover.begin(mirrored.failover.plan(mode).hash, mode)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
        assert_run_is_short(mirrored, run.id)
        assert mirrored.statuses[Partition(topic, 0)].lmo == 20
        assert [r for r in read_all(off.west, topic) if r.value != b"x"] == sorted(sent)


@pytest.mark.parametrize("hours", [2, -2])
def test_answers_hold_as_long_by_a_destination_whose_clock_is_off(pair: Pair, tmp_path: Path, hours: int) -> None:
    with one_off(pair, "west", tmp_path, hours) as off:
        topic = app_topic(off)
        produce(off.east, topic, 5)
        mirrored = new_mirror(off, tmp_path, topic)
        mirrored.copy()
        failover = Failover(mirrored.link, mirrored.services, started_by="airflow mirror_failover/r1 by ann")
        plan = failover.decide(RunMode.UNPLANNED).plan
        policy = ApprovalPolicy(question="mirror_failover/r1", tasks=("approve",), approvers=frozenset({"ann"}))

        def answer(age_s: int) -> None:
            approval = make_approval("a", "ann", "Ann", now_ms() - age_s * 1000)
            recorded = RecordedApproval(question=policy.question, task="approve", approval=approval, approves=plan.hash)
            record_approval(mirrored.link.destination, mirrored.name, recorded)

        answer(age_s=2 * HOUR_S)
        with pytest.raises(Refused, match="approved it 120 minutes ago"):
            failover.begin(plan.hash, RunMode.UNPLANNED, approved_by=policy)
        answer(age_s=60)
        run = failover.begin(plan.hash, RunMode.UNPLANNED, approved_by=policy)
        assert failover.abort(run.id).state is RunState.ABORTED


@pytest.mark.heavy
def test_one_of_three_nodes_of_the_destination_is_ahead(tmp_path: Path) -> None:
    """Whichever node leads the state topic, and whichever the quorum. Where the one that leads the topic is ahead of
    the other, records look younger than they are: no age is told."""
    with two_clusters(tmp_path, nodes=3) as off:
        for node in off.west.nodes():
            off.west.terminate(node)
            with clock_off(2):
                off.west.start(node)
            topic = app_topic(off, 3)
            sent = produce(off.east, topic, 20)
            mirrored = new_mirror(off, tmp_path / str(node), topic)
            leads_ahead = node == find_placement(off).leader != active_controller(off.west)
            with driving(mirrored, epoch_s=EPOCH_S):
                beating(mirrored, 2)
                wait_until(partial(has_records, off, topic, 20), timeout_s=TIMEOUT_S, why="it is copied")
                if leads_ahead:
                    assert_no_age_is_told(mirrored)
                else:
                    assert_ages_are_short(mirrored)
            run = mirrored.failover.begin(mirrored.failover.plan(RunMode.PLANNED).hash)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
            assert_run_is_short(mirrored, run.id)
            assert [r for r in read_all(off.west, topic) if r.value != b"x"] == sorted(sent)
            off.west.terminate(node)
            off.west.start(node)


def test_a_leader_of_the_state_topic_that_is_ahead_makes_no_look_at_the_source_younger(tmp_path: Path) -> None:
    with two_clusters(tmp_path, nodes=3) as off:
        topic = app_topic(off, 3)
        produce(off.east, topic, 20)
        mirrored = new_mirror(off, tmp_path, topic)
        ahead = next(node for node in off.west.nodes() if node != active_controller(off.west))
        off.west.terminate(ahead)
        with clock_off(2):
            off.west.start(ahead)
        with as_admin(off.west) as client:
            replicas = {STATE: (ahead, *(node for node in find_placement(off).replicas if node != ahead))}
            reassign(client, replicas)
            wait_for_replicas(client, replicas)
            wait_until(lambda: ahead in find_placement(off).in_sync, timeout_s=TIMEOUT_S, why="it has caught up")
            elect_preferred_leaders(client, [STATE])
            wait_until(lambda: find_placement(off).leader == ahead, timeout_s=TIMEOUT_S, why="it leads")
        assert active_controller(off.west) != ahead
        with driving(mirrored, epoch_s=EPOCH_S):
            beating(mirrored, 2)
            assert_no_age_is_told(mirrored)
        assert_no_age_is_told(mirrored)


def find_placement(pair: Pair) -> ReplicaPlacement:
    """Of the state topic."""
    with as_admin(pair.west) as client:
        return describe_placements(client, [STATE_TOPIC])[STATE]


def has_records(pair: Pair, topic: str, count: int) -> bool:
    return len(read_all(pair.west, topic)) == count


def assert_no_age_is_told(mirrored: Mirrored) -> None:
    decision = mirrored.failover.decide(RunMode.UNPLANNED)
    assert {w.subject for w in decision.plan.warnings if w.code == "state_leader_ahead"} == {"west"}
    assert decision.plan.figures[FigureKey.SOURCE_SEEN_S] is None
    assert decision.plan.figures[FigureKey.LEASE_HEARTBEAT_S] is None
    described = describe_mirror(mirrored.link, mirrored.state, now_ms())
    assert described.facts[FactKey.CLOCK].value is ClockState.DIFFERS
    assert described.facts[FactKey.SOURCE_SEEN].value is None
