"""A short replica is handed the leadership while conductors and brokers die, rights go, and others move replicas."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest, TopicRequest
from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.schema.update_features.v1.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.schema.update_features.v1.response import UpdateFeaturesResponse
from kio.static.primitive import i8, i16, i32Timedelta

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets, list_replica_ends
from mirror_core.kafka.reassignment import (
    ReplicaPlacement,
    describe_placements,
    elect_preferred_leaders,
    elect_unclean_leaders,
    fetch_throttle_rate,
    reassign,
    set_throttle_rate,
    wait_for_replicas,
)
from mirror_core.kafka.topics import delete_topic
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MirrorError, MissingPermission, Refused, RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.rights.required_acls import REQUIRED_ACLS
from mirror_core.runbook import truncation_strategies
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import CONTROL
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.drill.operators import Deaths, Operator
from tests.support.cluster_admin import as_admin
from tests.support.dedicated_clusters import two_clusters
from tests.support.divergent_tails import (
    conducted,
    creep_into_a_transaction,
    half_in_transactions,
    has_open_transaction,
    nothing_left,
    three_again,
    with_a_tail,
)
from tests.support.failback_runs import content, go_home
from tests.support.kafka3_source import LOCK as KAFKA_3_9
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, produce, read_all
from tests.support.killed_conductors import conducted as by_commands
from tests.support.mirrored_topics import Mirrored
from tests.support.separate_cluster import in_place_of
from tests.support.sizes import MIB
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module", params=["3.9", "4.3", "4.3 without ELR"])
def source(request: pytest.FixtureRequest, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Three nodes of this version."""
    jars = ensure_jars(KAFKA_3_9) if request.param == "3.9" else ensure_jars()
    with in_place_of(pair, "east", tmp_path_factory.mktemp("source"), jars, nodes=3) as found:
        if request.param == "4.3 without ELR":
            switch_elr_off(found.east)
        yield found


def switch_elr_off(cluster: SandboxCluster) -> None:
    update = FeatureUpdateKey(feature="eligible.leader.replicas.version", max_version_level=i16(0), upgrade_type=i8(2))
    limit = i32Timedelta.parse(datetime.timedelta(seconds=TIMEOUT_S))
    with as_admin(cluster) as client:
        response = client.call_controller(
            UpdateFeaturesRequest(timeout=limit, feature_updates=(update,)), UpdateFeaturesResponse
        )
    assert response.error_code is ErrorCode.none, response.error_message


@dataclass(frozen=True, slots=True)
class CreepsAndDies:
    """In the conductor's process: the replica that it elects ends within a transaction."""

    topic: str

    def __call__(self) -> None:
        def elect(client: ClusterClient, partitions: Mapping[Partition, Offset]) -> None:
            follower = creep_into_a_transaction(client, Partition(self.topic, 0))
            elect_preferred_leaders(client, partitions)
            wait_until(
                lambda: placement_of(client, self.topic).leader == follower,
                timeout_s=TIMEOUT_S,
                why=f"broker {follower} leads",
            )
            os.kill(os.getpid(), signal.SIGKILL)

        patch.object(truncation_strategies, "elect_preferred_leaders", elect).start()


def placement_of(client: ClusterClient, topic: str) -> ReplicaPlacement:
    return describe_placements(client, [topic])[Partition(topic, 0)]


def test_a_conductor_that_dies_when_a_replica_leads_that_ends_within_a_transaction_is_resumed_to_the_same_end(
    source: Pair, tmp_path: Path
) -> None:
    """Nobody ends that transaction: its marker was in what the others have truncated."""
    mirrored, topic, primary = with_a_tail(source, tmp_path, 32 * MIB, half_in_transactions, min_insync_replicas="2")
    operator = Operator(source)
    deaths = Deaths(by_commands(mirrored, "disturbed handovers"), operator, ("failback", "run", "--yes"))
    attempts = 4  # it may find no place without an open transaction
    while (code := deaths.run(CreepsAndDies(topic))) == Refused.exit_code and attempts:
        attempts -= 1
    assert code == -signal.SIGKILL, deaths.said()
    with as_admin(source.east) as client:
        assert has_open_transaction(client, Partition(topic, 0))
    assert deaths.run() == 0, deaths.said()
    assert not operator.threads, operator.told

    nothing_left(mirrored, topic)
    assert content(read_all(source.east, topic)) == content(primary)
    three_again(mirrored, topic)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3, lone_west=True) as pair:
        yield pair


@dataclass
class Handover:
    """A run whose next step is `align`. Printed lines are kept."""

    three: Pair
    mirrored: Mirrored
    topic: str
    primary: list[Record]
    failback: Failback
    run: str
    printed: list[str]

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, 0)

    @property
    def placement(self) -> ReplicaPlacement:
        with as_admin(self.three.east) as client:
            return placement_of(client, self.topic)

    def disturb(self, monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object]) -> None:
        """`act` is called once, right before this function of the strategy is."""
        undisturbed, acts = getattr(truncation_strategies, function), [act]

        def disturbed(*arguments: Any) -> object:
            if acts:
                acts.pop()()
            return undisturbed(*arguments)

        monkeypatch.setattr(truncation_strategies, function, disturbed)

    def fail_in_align(self, error: type[MirrorError], match: str) -> None:
        with pytest.raises(error, match=match):
            self.failback.drive(self.run)

    def check_end(self) -> None:
        """Home by the reverse failover; nothing mirrored is lost, and nothing of the tail is left."""
        self.failback.drive(self.run)
        go_home(self.failback, self.run)
        assert content(read_all(self.three.east, self.topic)) == content(self.primary)
        three_again(self.mirrored, self.topic)


@pytest.fixture
def begin_handover(three: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Handover]:
    for name, seconds in (("OPERATOR_WAIT_S", 60.0), ("APPROACH_S", 20.0), ("STALL_S", 10.0)):
        monkeypatch.setattr(truncation_strategies, name, seconds)

    def begin(*, min_insync_replicas: str = "1", unclean_leader_election_enable: str = "false") -> Handover:
        mirrored, topic, primary = with_a_tail(
            three,
            tmp_path,
            17 * MIB,
            min_insync_replicas=min_insync_replicas,
            unclean_leader_election_enable=unclean_leader_election_enable,
        )
        printed = list[str]()
        failback = conducted(mirrored, printed.append)
        plan = failback.plan(AllowedStrategies())
        assert plan.strategies == {topic: "handover"}
        run = failback.begin(plan.hash, AllowedStrategies())
        failback.run_step(run.id, "salvage")
        return Handover(three, mirrored, topic, primary, failback, run.id, printed)

    return begin


@pytest.mark.parametrize("ends_by", ["kill", "terminate"])
def test_a_leader_that_dies_while_the_replica_is_short_is_waited_for(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    handover = begin_handover(min_insync_replicas="2")
    east, stopped = handover.three.east, list[int]()

    def stop_leader() -> None:
        stopped.append(handover.placement.leader)
        getattr(east, ends_by)(stopped[0])
        wait_until(lambda: handover.placement.leader < 0, timeout_s=TIMEOUT_S, why="nobody leads")

    handover.disturb(monkeypatch, "claim_in_sync", stop_leader)
    try:
        handover.fail_in_align(Unreachable, "cannot connect")
        handover.fail_in_align(Unreachable, f"no leader for {handover.partition}")
    finally:
        east.start(*stopped)
    handover.failback.drive(handover.run)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def test_where_unclean_elections_are_allowed_the_short_replica_leads_when_the_leader_dies(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = begin_handover(unclean_leader_election_enable="true")
    east, killed = handover.three.east, list[int]()

    def kill_leader() -> None:
        leader = handover.placement.leader
        killed.append(leader)
        east.kill(leader)
        wait_until(lambda: handover.placement.leader not in (leader, -1), timeout_s=TIMEOUT_S, why="another one leads")

    handover.disturb(monkeypatch, "claim_in_sync", kill_leader)
    try:
        handover.failback.drive(handover.run)
    except RemoteFault:  # it had asked the dead one
        handover.failback.drive(handover.run)
    finally:
        east.start(*killed)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def test_a_new_replica_whose_broker_dies_for_good_is_replaced_on_another_broker(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = begin_handover(min_insync_replicas="2")
    east, killed = handover.three.east, list[int]()

    def kill_follower() -> None:
        killed.append(handover.placement.replicas[0])
        east.kill(killed[0])
        with as_admin(east) as client:
            wait_until(lambda: killed[0] not in client.brokers(), timeout_s=TIMEOUT_S, why="it has left")

    handover.disturb(monkeypatch, "claim_in_sync", kill_follower)
    try:
        with pytest.raises(RemoteFault):
            handover.failback.drive(handover.run)
        handover.failback.drive(handover.run)
        aligned = next(s for s in handover.failback.read_status(handover.run)[1] if s.step == "align")
        assert aligned.evidence["brokers_left_throttled"] == str(killed[0])
        assert any(f"--entity-name {killed[0]} --delete-config" in line for line in handover.printed)
    finally:
        east.start(*killed)
    with as_admin(east) as client:
        assert fetch_throttle_rate(client, killed[0]) == "1"
        set_throttle_rate(client, killed[0], None)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def test_a_long_replica_whose_broker_died_at_the_election_never_leads_again(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in sync, so it would be eligible to lead (KIP-966)."""
    handover = begin_handover(min_insync_replicas="2")
    east, frozen = handover.three.east, list[int]()

    def freeze_leader() -> None:
        frozen.append(handover.placement.leader)
        east.stop_process(frozen[0])

    handover.disturb(monkeypatch, "elect_preferred_leaders", freeze_leader)
    returned = list[Mapping[Partition, tuple[int, ...]]]()
    monkeypatch.setattr(truncation_strategies, "wait_for_replicas", remember(returned))
    try:
        drive_until_done(handover)
        placement = handover.placement
        eligible = list_eligible(east, handover.topic)
    finally:
        east.kill(*frozen)
        east.start(*frozen)
    assert {handover.partition: (placement.leader,)} in returned
    assert frozen[0] not in {placement.leader, *eligible}
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def remember(calls: list[Mapping[Partition, tuple[int, ...]]]) -> Callable[..., None]:
    def remembered(client: ClusterClient, replicas: Mapping[Partition, tuple[int, ...]]) -> None:
        calls.append(replicas)
        wait_for_replicas(client, replicas)

    return remembered


def drive_until_done(handover: Handover) -> None:
    """A broker that hangs costs some attempts, until its cluster gives it up."""

    def is_done() -> bool:
        try:
            handover.failback.run_step(handover.run, "align")
        except RemoteFault as error:
            print(error)
            return False
        return True

    wait_until(is_done, timeout_s=240, why="align is done")


def list_eligible(cluster: SandboxCluster, topic: str) -> tuple[int, ...]:
    """Eligible leader replicas, by the controllers' metadata."""
    request = DescribeTopicPartitionsRequest(topics=(TopicRequest(name=TopicName(topic)),))
    with as_admin(cluster) as client:
        (row,) = client.call(request, DescribeTopicPartitionsResponse).topics
    return tuple(int(node) for node in row.partitions[0].eligible_leader_replicas or ())


def test_a_handover_during_which_somebody_moves_the_replicas_begins_anew(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = begin_handover()
    east = handover.three.east

    def move() -> None:
        (other,) = {1, 2, 3} - set(handover.placement.replicas)
        with as_admin(east) as client:
            reassign(client, {handover.partition: (other,)})
        wait_until(lambda: handover.placement.replicas == (other,), timeout_s=TIMEOUT_S, why=f"{other} alone has it")

    handover.disturb(monkeypatch, "claim_in_sync", move)
    with pytest.raises(MirrorError):
        handover.failback.drive(handover.run)
    handover.failback.drive(handover.run)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def test_a_claim_that_is_denied_names_the_right_and_the_last_way_out(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = begin_handover()
    right = next(
        required.to_acl(f"User:{CONTROL}")
        for required in REQUIRED_ACLS
        if required.principal == "control" and required.operation is Operation.CLUSTER_ACTION
    )

    with as_admin(handover.three.east) as admin:

        def revoke() -> None:
            delete_acls(admin, [right])
            wait_until_acls_absent(admin, [right])

        handover.disturb(monkeypatch, "claim_in_sync", revoke)
        try:
            handover.fail_in_align(
                MissingPermission, f"CLUSTER_ACTION.*Grant it, then resume; or delete {handover.topic}"
            )
            nothing_left(handover.mirrored, handover.topic)
            # It is never granted: the last way out.
            delete_topic(admin, handover.topic, admin.metadata([handover.topic]).topics[handover.topic].id)
            handover.failback.drive(handover.run)
        finally:
            create_acls(admin, [right])
            wait_until_acls_present(admin, [right])
    go_home(handover.failback, handover.run)
    assert content(read_all(handover.three.east, handover.topic)) == content(handover.primary)


def test_what_somebody_writes_during_a_handover_is_saved_before_it_is_discarded(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover, written = begin_handover(), list[Record]()
    east = handover.three.east
    handover.disturb(monkeypatch, "claim_in_sync", lambda: written.extend(produce(east, handover.topic, 3)))
    handover.fail_in_align(Refused, "has grown since its tail was salvaged")
    with as_admin(east) as client:
        end = list_offsets(client, [handover.partition], OffsetPoint.LOG_END)[handover.partition]
    assert end == written[-1].offset + 1, "nothing was truncated"
    handover.failback.drive(handover.run)
    aligned = next(s for s in handover.failback.read_status(handover.run)[1] if s.step == "align")
    assert aligned.evidence["records_grown_since"] == 3
    handover.check_end()


def test_a_replica_that_went_too_far_is_replaced_without_a_broker_being_started(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the throttle away."""
    handover = begin_handover()
    east = handover.three.east

    def set_free() -> None:
        placement = handover.placement
        with as_admin(east) as client:
            set_throttle_rate(client, placement.replicas[0], None)
            end = list_offsets(client, [handover.partition], OffsetPoint.LOG_END)
            wait_until(
                lambda: list_replica_ends(client, placement.replicas[0], [handover.partition]) == end,
                timeout_s=TIMEOUT_S,
                why="it has all",
            )

    handover.disturb(monkeypatch, "claim_in_sync", set_free)
    handover.fail_in_align(Refused, r"ends where it must not: .*\. Resume: another replica is made")
    handover.failback.drive(handover.run)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()


def test_an_election_by_somebody_else_does_no_harm(
    begin_handover: Callable[..., Handover], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = begin_handover()

    with as_admin(handover.three.east) as admin:
        partitions = [handover.partition]
        handover.disturb(monkeypatch, "claim_in_sync", partial(elect_unclean_leaders, admin, partitions))
        handover.disturb(monkeypatch, "elect_preferred_leaders", partial(elect_preferred_leaders, admin, partitions))
        handover.failback.drive(handover.run)
    nothing_left(handover.mirrored, handover.topic)
    handover.check_end()
