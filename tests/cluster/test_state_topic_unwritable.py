"""The state topic takes nothing for a while: what copies goes on for as long as it says, and the driver stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import HeldByRun, LostOwnership, StateNotWritten
from mirror_core.model.names import ClusterName
from mirror_core.model.timing import now_ms, read_steady_s
from mirror_core.state.lease import HeldLease, LeaseRecovery, acquire_lease, make_owner_name, take_over_lease
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.state_topic import read_complete_state
from tests.support.data_errors import about_data
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

_DENIAL = (
    ResourceType.TOPIC,
    STATE_TOPIC,
    ResourcePatternType.LITERAL,
    "User:mirror-control",
    "*",
    AclOperation.WRITE,
    AclPermissionType.DENY,
)


AGAIN = "the state topic is written again"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has tried to write again, each time."""
    seen = list[str]()

    class Counted(LeaseRecovery):
        def _run(self) -> None:
            seen.append(self._lease.owner)
            super()._run()

    monkeypatch.setattr("mirror_core.state.lease.LeaseRecovery", Counted)
    return seen


@contextmanager
def unwritable(pair: Pair) -> Iterator[None]:
    """For the control principal, on the destination."""
    admin, denial, those = admin_client(pair.west), AclBinding(*_DENIAL), AclBindingFilter(*_DENIAL)
    admin.create_acls([denial])[denial].result(TIMEOUT_S)
    try:
        yield
    finally:
        admin.delete_acls([those])[those].result(TIMEOUT_S)


def copied(mirrored: Mirrored, topic: str) -> bool:
    east, west = mirrored.pair.east, mirrored.pair.west
    return bool(mirrored.statuses) and read_all(west, topic) == read_all(east, topic)


def test_what_copies_goes_on_and_so_does_the_driver(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    sent = produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored, epoch_s=120) as said:
        wait_until(lambda: copied(mirrored, topic), timeout_s=TIMEOUT_S, why="copying goes on")
        with unwritable(pair):
            wait_until(lambda: [s for s in said if "copying goes on for" in s], timeout_s=TIMEOUT_S, why="it is said")
            sent += produce(pair.east, topic, 10)
            wait_until(lambda: copied(mirrored, topic), timeout_s=TIMEOUT_S, why="copying goes on all the same")
        wait_until(lambda: AGAIN in said, timeout_s=TIMEOUT_S, why="it is over")
        sent += produce(pair.east, topic, 10)
        wait_until(lambda: copied(mirrored, topic), timeout_s=TIMEOUT_S, why="copying goes on after it")
    assert not [line for line in said if line.startswith("the data plane ended")]
    with about_data():
        assert read_all(pair.west, topic) == sorted(sent)


def test_no_task_begins_that_the_state_topic_does_not_know_of(pair: Pair, tmp_path: Path, tried: list[str]) -> None:
    topic = new_topic(pair.east)
    sent = produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)

    def stands() -> bool:
        lease = mirrored.state.leases[mirrored.name]
        return bool([s for s in said if "copying goes on for" in s]) and lease.writers_until_ms < now_ms()

    with driving(mirrored, epoch_s=1) as said:
        wait_until(lambda: copied(mirrored, topic), timeout_s=TIMEOUT_S, why="copying goes on")
        with unwritable(pair):
            wait_until(stands, timeout_s=TIMEOUT_S, why="the last task has ended")
            before = read_all(pair.west, topic)
            sent += produce(pair.east, topic, 10)
            wait_until(lambda: len(tried) > 1, timeout_s=TIMEOUT_S, why="it is tried again")
            with about_data():
                assert read_all(pair.west, topic) == before, "written by nobody who may"
        wait_until(lambda: copied(mirrored, topic) and AGAIN in said, timeout_s=TIMEOUT_S, why="copying goes on")
    assert not [line for line in said if line.startswith("the data plane ended")]
    with about_data():
        assert read_all(pair.west, topic) == sorted(sent)


@pytest.fixture
def lost(pair: Pair, tmp_path: Path) -> tuple[HeldLease, ClusterConfig]:
    """A lease whose writer has just failed, and the destination as somebody sees it who is not denied."""
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    lease = acquire_lease(mirrored.config.cluster("west"), mirrored.name, make_owner_name())
    with unwritable(pair), pytest.raises(StateNotWritten, match="TOPIC_AUTHORIZATION_FAILED"):
        wait_until(lambda: lease.put(lease.lease), timeout_s=TIMEOUT_S, why="it is denied")
    admin = pair.west.client_config("admin")
    return lease, ClusterConfig(ClusterName("west"), admin, admin)


def ends(lease: HeldLease) -> Callable[[], bool]:
    """Until it can be written, or can never be."""

    def ended() -> bool:
        try:
            lease.put(lease.lease)
        except StateNotWritten:
            return False
        return True

    return ended


def test_a_lease_that_nobody_took_is_written_again(lost: tuple[HeldLease, ClusterConfig]) -> None:
    lease, cluster = lost
    wait_until(ends(lease), timeout_s=TIMEOUT_S, why="it is written again")
    lease.renew(writers_end_s=read_steady_s() + 60)
    other = take_over_lease(cluster, lease.lease.mirror, make_owner_name())
    assert 0 <= other.lease.writers_until_ms - lease.lease.writers_until_ms < 5_000, "what was promised before is known"
    with pytest.raises(LostOwnership):
        lease.put(lease.lease)


def test_who_took_the_lease_meanwhile_is_not_disturbed(lost: tuple[HeldLease, ClusterConfig]) -> None:
    lease, cluster = lost
    other = take_over_lease(cluster, lease.lease.mirror, make_owner_name())
    with pytest.raises(LostOwnership, match=rf"its lease is {other.lease.owner} \(generation 2\)'s by now"):
        wait_until(ends(lease), timeout_s=TIMEOUT_S, why="it is seen")
    other.put(other.lease)


def test_who_took_the_lease_in_the_last_moment_has_it(
    lost: tuple[HeldLease, ClusterConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, cluster = lost
    taken = list[HeldLease]()

    def overtaken(where: ClusterConfig) -> State:
        seen = read_complete_state(where)
        taken.append(take_over_lease(cluster, lease.lease.mirror, make_owner_name()))
        return seen

    monkeypatch.setattr("mirror_core.state.lease.read_complete_state", overtaken)
    with pytest.raises(LostOwnership, match=r"its lease is .*generation 2"):
        wait_until(ends(lease), timeout_s=TIMEOUT_S, why="it is seen")
    (other,) = taken
    with pytest.raises(LostOwnership):
        other.put(other.lease)  # he was shut out, and so are we: nobody writes, and the next one may


def test_a_run_that_is_about_to_take_it_is_let_by(lost: tuple[HeldLease, ClusterConfig]) -> None:
    lease, _ = lost

    def held(state: State) -> None:
        raise HeldByRun("mirror m", ["a run"])

    lease.check_may_write = held
    with pytest.raises(HeldByRun):
        wait_until(ends(lease), timeout_s=TIMEOUT_S, why="it is seen")
