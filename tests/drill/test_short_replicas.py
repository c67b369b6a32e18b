"""Three nodes: an old source's log is cut by a replica that ends before the point, or in the folder of one broker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.acl_requests import (
    create_acls,
    delete_acls,
    wait_until_acls_absent,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.reassignment import (
    claim_in_sync,
    describe_placements,
    elect_preferred_leaders,
)
from mirror_core.kafka.topics import delete_topic
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MirrorError, MissingPermission, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy
from mirror_core.rights.required_acls import REQUIRED_ACLS
from mirror_core.runbook import truncation_strategies
from mirrorbook_tools.sandbox.credentials import CONTROL
from tests.drill.applications import Lines, Login
from tests.drill.operators import Deaths, Operator
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin
from tests.support.dedicated_clusters import two_clusters
from tests.support.divergent_tails import (
    ANY_LEADER_EPOCH,
    conducted,
    creep_into_a_transaction,
    half_in_transactions,
    in_sync,
    in_transactions,
    nothing_left,
    three_again,
    with_a_tail,
)
from tests.support.failback_runs import content, go_home
from tests.support.failover_runs import app_topic, begin
from tests.support.gap_logs import transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all, read_topics, read_topics_aiokafka
from tests.support.killed_conductors import conducted as by_commands
from tests.support.mirrored_topics import new_mirror
from tests.support.sentences import format_sentence
from tests.support.sizes import MIB
from tests.support.three_nodes import dead
from tests.support.topic_equality import assert_equal, assert_same_offsets
from tests.support.truncated_replicas import placed, same_logs, truncate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3) as pair:
        yield pair


@pytest.mark.slow
def test_a_short_replica_leads_and_the_others_follow_it(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation_strategies, "OPERATOR_WAIT_S", 120.0)
    mirrored, topic, primary = with_a_tail(three, tmp_path, 30 * MIB)
    operator, replica = Operator(three), AllowedStrategies(FailbackStrategy.REPLICA)
    failback = conducted(mirrored, operator)
    plan = failback.plan(replica)
    assert plan.strategies == {topic: "replica"}
    run = failback.begin(plan.hash, replica)

    failback.run_step(run.id, "salvage")
    monkeypatch.setattr(operator, "heeds", False)
    monkeypatch.setattr(truncation_strategies, "OPERATOR_WAIT_S", 3.0)
    with pytest.raises(MirrorError, match="was not stopped within 3 s; then resume"):
        failback.run_step(run.id, "align")
    nothing_left(mirrored, topic)
    monkeypatch.setattr(operator, "heeds", True)
    monkeypatch.setattr(truncation_strategies, "OPERATOR_WAIT_S", 120.0)
    failback.drive(run.id)
    operator.join()

    nothing_left(mirrored, topic)
    aligned = next(s for s in failback.read_status(run.id)[1] if s.step == "align")
    assert str(aligned.evidence["led_by_a_short_replica"]).startswith(f"{topic}-0 at ")
    go_home(failback, run.id)
    assert content(read_all(three.east, topic)) == content(primary)
    three_again(mirrored, topic)


def test_a_tail_is_truncated_by_requests_while_no_broker_stops_and_no_other_topic_changes_its_leader(
    three: Pair, tmp_path: Path
) -> None:
    """Without a strategy named. Transactions, a partition without a tail, a small topic that is made anew."""
    topic, small = app_topic(three, 2, retention_ms="-1"), app_topic(three, retention_ms="-1")
    other = placed(three.east, 1, 2, 3)
    in_transactions(three.east, topic, 44 * MIB)
    produce(three.east, small, 20)
    mirrored = new_mirror(three, tmp_path, topic, small)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    tail = [r.value for r in produce(three.east, topic, 500, partition=0)]
    produce(three.east, small, 5)
    produce(three.west, topic, 20)
    primary = read_topics(three.west, (topic, small))
    processes = [three.east.pid(node) for node in (1, 2, 3)]
    with as_admin(three.east) as client:
        other_leader = describe_placements(client, [other])[Partition(other, 0)].leader
        topic_id = client.metadata([topic]).topics[topic].id

    operator = Operator(three)
    failback = conducted(mirrored, operator)
    plan = failback.plan(AllowedStrategies())
    assert {topic: plan.strategies[topic], small: plan.strategies[small]} == {topic: "handover", small: "recreate"}
    assert plan.figures[FigureKey.STRATEGY_REASONS] == {topic: "cheapest", small: "only"}
    obstacles = plan.figures[FigureKey.STRATEGY_OBSTACLES]
    assert isinstance(obstacles, dict)
    assert obstacles[f"{small} by handover"] == "log_too_short"
    run = failback.begin(plan.hash, AllowedStrategies())
    failback.drive(run.id)

    assert not operator.threads, operator.told
    assert [three.east.pid(node) for node in (1, 2, 3)] == processes
    nothing_left(mirrored, topic)
    with as_admin(three.east) as client:
        assert describe_placements(client, [other])[Partition(other, 0)].leader == other_leader
        assert client.metadata([topic]).topics[topic].id == topic_id, "it was not made anew"
    go_home(failback, run.id)
    found = read_topics(three.east, (topic, small))
    assert_equal(found, primary, "librdkafka")
    assert not {record.value for record in found[topic]} & set(tail)
    three_again(mirrored, topic)
    for partition in (0, 1):
        same = partial(same_logs, three.east, topic, {1, 2, 3}, partition)
        wait_until(same, timeout_s=TIMEOUT_S, why=f"the replicas of {topic}-{partition} hold the same")


def test_without_cluster_action_a_handover_is_not_chosen_and_the_leader_refuses_the_claim(
    three: Pair, tmp_path: Path
) -> None:
    mirrored, topic, _ = with_a_tail(three, tmp_path, 20 * MIB)
    failback = conducted(mirrored, Operator(three))
    right = next(
        required.to_acl(f"User:{CONTROL}")
        for required in REQUIRED_ACLS
        if required.principal == "control" and required.operation is Operation.CLUSTER_ACTION
    )
    with as_admin(three.east) as admin:
        delete_acls(admin, [right])
        try:
            wait_until_acls_absent(admin, [right])
            plan = failback.plan(AllowedStrategies())
            assert plan.strategies == {topic: "recreate"}
            obstacles = plan.figures[FigureKey.STRATEGY_OBSTACLES]
            assert obstacles == {
                f"{topic} by handover": "failback_rights_lacking",
                f"{topic} by replica": "log_too_short",
            }
            decision = failback.decide(AllowedStrategies(FailbackStrategy.HANDOVER))
            assert "handover needs CLUSTER_ACTION on the cluster" in str(decision.reasons[0])
            partition = Partition(topic, 0)
            leader = describe_placements(admin, [topic])[partition].leader
            with ClusterClient(mirrored.config.cluster("east")) as control:
                ends = list_offsets(control, [partition], OffsetPoint.LOG_END)
                with pytest.raises(MissingPermission, match="CLUSTER_ACTION"):
                    claim_in_sync(control, leader, 1 + leader % 3, ends, {partition: ANY_LEADER_EPOCH})
        finally:
            create_acls(admin, [right])
            wait_until_acls_present(admin, [right])
    assert failback.plan(AllowedStrategies()).strategies == {topic: "handover"}


def test_a_conductor_that_dies_at_each_action_of_a_handover_is_resumed_to_the_same_end(
    three: Pair, tmp_path: Path
) -> None:
    mirrored, topic, primary = with_a_tail(three, tmp_path, 20 * MIB)
    operator = Operator(three)
    deaths = Deaths(by_commands(mirrored, "short replicas"), operator, ("failback", "run", "--yes"))
    deaths.at(truncation_strategies, "_wait_for_approach")
    deaths.at(truncation_strategies, "claim_in_sync")
    deaths.at(truncation_strategies, "elect_preferred_leaders", before=True)
    deaths.at(truncation_strategies, "elect_preferred_leaders")
    deaths.when_all_is_done()
    assert deaths.run() == 0, deaths.said()
    assert not operator.threads, operator.told

    nothing_left(mirrored, topic)
    assert content(read_all(three.east, topic)) == content(primary)
    three_again(mirrored, topic)


def test_a_replica_that_creeps_into_a_transaction_before_it_leads_is_replaced_by_a_shorter_one(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends that transaction: its marker was in what the others have truncated."""
    monkeypatch.setattr(truncation_strategies, "OPERATOR_WAIT_S", 45.0)
    mirrored, topic, primary = with_a_tail(three, tmp_path, 30 * MIB, half_in_transactions)
    late = list[int]()

    def elects_late(client: ClusterClient, partitions: Mapping[Partition, Offset]) -> None:
        if not late:
            late.append(creep_into_a_transaction(client, Partition(topic, 0)))
        elect_preferred_leaders(client, partitions)

    monkeypatch.setattr(truncation_strategies, "elect_preferred_leaders", elects_late)
    failback = conducted(mirrored, Operator(three))
    run = failback.begin(failback.plan(AllowedStrategies()).hash, AllowedStrategies())
    failback.drive(run.id)

    assert late, "it was handed over"
    nothing_left(mirrored, topic)
    go_home(failback, run.id)
    assert content(read_all(three.east, topic)) == content(primary)
    three_again(mirrored, topic)


def test_a_log_that_is_too_short_is_refused_while_an_abort_is_possible(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation_strategies, "OPERATOR_WAIT_S", 120.0)
    mirrored, _, _ = with_a_tail(three, tmp_path, 4 * MIB)
    failback, replica = conducted(mirrored, Operator(three)), AllowedStrategies(FailbackStrategy.REPLICA)
    run = failback.begin(failback.plan(replica).hash, replica)
    with pytest.raises(Refused, match="fewer than 15 MiB"):
        failback.drive(run.id)
    failback.abort(run.id)


def test_a_short_replica_ends_between_transactions_and_is_elected_by_a_majority(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old source has come back without one of its three nodes at first."""
    for name, seconds in (("OPERATOR_WAIT_S", 120.0), ("APPROACH_S", 5.0), ("MIN_OPERATOR_S", 20.0)):
        monkeypatch.setattr(truncation_strategies, name, seconds)
    mirrored, topic, primary = with_a_tail(three, tmp_path, 17 * MIB, in_transactions)
    operator, replica = Operator(three), AllowedStrategies(FailbackStrategy.REPLICA)
    with dead(three.east, 3):
        wait_until(partial(in_sync, mirrored, topic, 2), timeout_s=TIMEOUT_S, why="two replicas are in sync")
        failback = conducted(mirrored, operator)
        run = failback.begin(failback.plan(replica).hash, replica)
        with pytest.raises(Refused, match=format_sentence("controllers_too_few_pattern")):
            failback.drive(run.id)
        assert not operator.threads
    three_again(mirrored, topic)
    failback.drive(run.id)
    operator.join()
    assert len(operator.threads) == 2, operator.told
    go_home(failback, run.id)
    assert content(read_all(three.east, topic)) == content(primary)


@pytest.mark.slow
def test_where_a_transaction_is_always_open_nobody_stops_a_broker_and_the_topic_can_go(
    three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("OPERATOR_WAIT_S", 120.0), ("APPROACH_S", 5.0)):
        monkeypatch.setattr(truncation_strategies, name, seconds)
    mirrored, topic, primary = with_a_tail(three, tmp_path, 17 * MIB, partial(in_transactions, overlapping=True))
    operator, replica = Operator(three), AllowedStrategies(FailbackStrategy.REPLICA)
    failback = conducted(mirrored, operator)
    run = failback.begin(failback.plan(replica).hash, replica)
    with pytest.raises(Refused, match=format_sentence("transaction_open_pattern", topic, topic)):
        failback.drive(run.id)
    assert not operator.threads, operator.told
    with as_admin(three.east) as client:
        delete_topic(client, topic, client.metadata([topic]).topics[topic].id)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert content(read_all(three.east, topic)) == content(primary)


def test_a_conductor_that_dies_at_each_action_of_a_short_replica_is_resumed_to_the_same_end(
    three: Pair, tmp_path: Path
) -> None:
    mirrored, topic, primary = with_a_tail(three, tmp_path, 20 * MIB)
    operator = Operator(three)
    deaths = Deaths(
        by_commands(mirrored, "short replicas"), operator, ("failback", "run", "--strategy", "replica", "--yes")
    )
    deaths.at(truncation_strategies, "throttle_partitions")
    deaths.at(truncation_strategies, "_wait_for_approach")
    assert not operator.threads, "it told somebody to stop a broker before the replica was parked"
    deaths.at(truncation_strategies, "elect_unclean_leaders", before=True)
    operator.join()
    (leader,) = (node for node in (1, 2, 3) if three.east.pid(node) is None)
    assert deaths.run() == 1, deaths.said()
    assert f"no leader for {topic}-0" in deaths.said()
    three.east.start(leader)

    deaths.at(truncation_strategies, "elect_unclean_leaders")
    operator.join()
    deaths.when_all_is_done()
    operator.join()
    assert deaths.run() == 0, deaths.said()

    nothing_left(mirrored, topic)
    assert content(read_all(three.east, topic)) == content(primary)
    three_again(mirrored, topic)


def test_logs_are_cut_in_the_folders_of_several_brokers_by_a_conductor_that_dies_at_each_action(
    three: Pair, tmp_path: Path
) -> None:
    """With applications at work on the new primary all the time."""
    whole = app_topic(three, 2, retention_ms="-1")
    double = placed(three.east, 1, 2)
    topics = (whole, double, placed(three.east, 3))
    for topic in topics:
        produce(three.east, topic, 200)
    log_shapes.transactions(three.east, whole)
    mirrored = new_mirror(three, tmp_path, *topics)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    before = {topic: read_all(three.west, topic) for topic in topics}
    ends = {p: s.lmo or 0 for p, s in mirrored.statuses.items()}
    late = transactional(three.east)
    tail = [record.value for topic in topics for record in produce(three.east, topic, 30)]
    for commit in (False, True):
        transaction(late, whole, 10, commit=commit, partitions=(0, 1))

    lines = Lines(Login("app", three.west.passwords["app"]), whole, 2)
    lines.start(three.west)
    try:
        deaths = Deaths(
            by_commands(mirrored, "short replicas"),
            list[str]().append,
            ("failback", "run", "--strategy", "offline", "--yes"),
        )
        deaths.at(truncation_strategies, "reassign")
        log_shapes.transactions_of_aiokafka(three.west, whole)
        deaths.at(truncation_strategies, "_write_points")
        assert deaths.run() == 3, deaths.said()
        hosts = [int(node) for node in re.findall(r"broker (\d+) \(.*?: stop it;", deaths.said())]
        assert hosts == [1, 3]
        (points,) = tmp_path.glob("run-*/points.json")
        for node in hosts:
            three.east.terminate(node)
            truncate(three.east, node, "--to", str(points), "--backup", str(tmp_path / f"cut-{node}"))
            three.east.start(node)
        log_shapes.transactions_of_aiokafka(three.west, double)
        deaths.at(truncation_strategies, "reassign", before=True)
        deaths.at(truncation_strategies, "reassign")
        deaths.when_all_is_done()
        log_shapes.transactions(three.west, whole)
        assert deaths.run() == 0, deaths.said()
        lines.denied()
    finally:
        lines.stop()

    mirrored.copy()
    # To readers of committed records only: west's log keeps what was aborted there.
    found = read_topics(three.east, topics)
    assert_equal(found, read_topics(three.west, topics), "librdkafka")
    assert_equal(read_topics_aiokafka(three.east, topics), read_topics_aiokafka(three.west, topics), "aiokafka")
    assert_same_offsets(three, topics)
    for topic, home in found.items():
        assert [r for r in home if r.offset < ends[Partition(topic, r.partition)]] == before[topic]
        assert not {record.value for record in home} & set(tail)
        if topic == whole:
            handled = Counter(record.value for record in home)
            assert {handled[line] for line in lines.acknowledged} == {1}
    for partition, replicas in ((0, {1, 2, 3}), (1, {1, 2, 3})):
        same = partial(same_logs, three.east, whole, replicas, partition)
        wait_until(same, timeout_s=TIMEOUT_S, why=f"the replicas of {whole}-{partition} hold the same")
    assert same_logs(three.east, double, {1, 2})
