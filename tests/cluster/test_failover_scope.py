"""Nothing is promoted but what was proved, and everything that is promoted is fenced, whatever happens meanwhile."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from mirror_core.kafka.acl_requests import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import delete_topics
from mirror_core.model.acl import Acl
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync import acl_ledger
from mirror_core.sync.fence_acls import build_denials, deny_writes, lift_fence
from tests.support.failover_runs import acls, app_topic, begin, denied
from tests.support.kafka_clients import Pair, admin_client, produce, read_all
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.scoped_failovers import copied, through
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_topic_that_has_failed_as_a_whole_is_fenced_like_any_other(pair: Pair, tmp_path: Path) -> None:
    prefix = "t-" + secrets.token_hex(4)
    well, failed = app_topic(pair, prefix=prefix), app_topic(pair, prefix=prefix)
    for topic in (well, failed):
        produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    mirrored.copy()
    produce(pair.west, failed, 1)
    produce(pair.east, failed, 5)
    assert [*replicate(mirrored.link).failed] == [Partition(failed, 0)]

    assert mirrored.failover.drive(begin(mirrored.failover)).state is RunState.DONE

    for topic in (well, failed):
        assert not denied(pair.west, topic)
        assert denied(pair.east, topic), "promoted, and its source still takes writes"


def test_a_topic_without_a_copy_forbids_a_planned_failover_and_holds_no_unplanned_one_up(
    pair: Pair, tmp_path: Path
) -> None:
    prefix = "t-" + secrets.token_hex(4)
    kept, gone = app_topic(pair, prefix=prefix), app_topic(pair, prefix=prefix)
    sent = produce(pair.east, kept, 10)
    produce(pair.east, gone, 10)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    mirrored.copy()
    with ClusterClient(mirrored.config.cluster("west")) as client:
        delete_topics(client, [gone])
    assert [*replicate(mirrored.link).failed] == [Partition(gone, 0)]

    (reason,) = mirrored.failover.decide(RunMode.PLANNED).reasons
    assert (reason.code, reason.subject) == ("topic_without_copy", gone), "nothing of it would be there"
    assert f"`mirrorbook mirror recover {mirrored.name} --topics {gone} --action recopy`" in str(reason)
    run = mirrored.failover.begin(mirrored.failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED).id
    assert mirrored.failover.drive(run).state is RunState.DONE

    assert read_all(pair.west, kept) == sent
    found = mirrored.statuses
    assert found[Partition(kept, 0)].lmo == 10
    assert not found[Partition(gone, 0)].lmo, "an end of a log that is not there"
    assert {s.state for s in found.values()} == {PartitionState.STOPPED}
    assert denied(pair.east, kept)


@pytest.mark.parametrize("behind", [pytest.param("prove", marks=pytest.mark.slow), "parity"])
def test_a_topic_that_is_widened_during_the_run_is_not_promoted_without_its_new_partition(
    pair: Pair, tmp_path: Path, behind: str
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, behind)
    admin = admin_client(pair.east)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)

    def widened() -> bool:
        with ClusterClient(mirrored.config.cluster("east")) as client:
            return len(client.metadata([topic]).topics[topic].partitions) == 2

    wait_until(widened, timeout_s=30, why="the source knows its new partition")
    with pytest.raises(Refused, match=f"topic {topic} on the source: approved was absent, now it is 2 partition"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic)
    mirrored.failover.abort(run)
    assert not denied(pair.east, topic)


def test_records_that_nobody_could_keep_out_behind_the_fence_forbid_the_promotion(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    produce(pair.east, topic, 1)  # a super user, whom no denial stops

    with pytest.raises(Refused, match=f"{topic}-0 on east: log end 11, drained up to 10"):
        mirrored.failover.drive(run)

    assert denied(pair.west, topic)
    mirrored.failover.abort(run)
    assert mirrored.state.runs[run].state is RunState.ABORTED


def test_denials_that_somebody_took_away_forbid_the_promotion(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "parity")
    with ClusterClient(mirrored.config.cluster("east")) as client:
        delete_acls(client, build_denials([topic]))

        def gone() -> bool:
            return not any(a.name == topic and a.permission == "DENY" for a in acls(mirrored, "east"))

        wait_until(gone, timeout_s=30, why="the denial is gone")
    with pytest.raises(Refused, match=r"broker 1: 1 denial gone"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic)
    mirrored.failover.abort(run)


def test_a_partition_that_fails_after_the_approval_is_not_promoted_as_healthy(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "prove")
    produce(pair.west, topic, 1)
    produce(pair.east, topic, 1)
    with pytest.raises(MirrorError, match=topic):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic)
    mirrored.failover.abort(run)


def test_a_fence_that_is_put_up_after_somebody_elses_abort_is_withdrawn(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conductor sleeps between its ledger and the action; meanwhile the run is given up."""
    mirrored, topic = copied(pair, tmp_path)
    before = acls(mirrored, "east")
    link = mirrored.link
    with StateWriter(link.destination, make_control_id(mirrored.name)) as sleeper, ClusterClient(link.source) as source:

        def late(client: ClusterClient, wanted: list[Acl]) -> None:
            with StateWriter(link.destination, make_control_id(mirrored.name)) as other:
                lift_fence(link.mirror, other, client)
            create_acls(client, wanted)

        monkeypatch.setattr(acl_ledger, "create_acls", late)
        with pytest.raises(LostOwnership):
            deny_writes(link, sleeper, source, [topic])
    wait_until(lambda: acls(mirrored, "east") == before, timeout_s=30, why="the denial of nobody is gone")
    assert not denied(pair.east, topic)


def test_a_run_cannot_do_without_the_scope_that_it_began_with(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = begin(mirrored.failover)
    kept = {c.kind: c.value for c in mirrored.state.checkpoints.values() if c.run == run}
    assert sorted(kept) == ["FailoverScope", "RunHeartbeat"]
    assert f'"{topic}"' in kept["FailoverScope"]
    assert mirrored.failover.decide(RunMode.PLANNED).reasons != ()
