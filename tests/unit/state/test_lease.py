"""Who counts as the owner of a lease."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, cast

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest, LostOwnership, StateNotWritten
from mirror_core.model.mirror import Lease, is_lease_fresh
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import MAX_FRESH_AGE_S
from mirror_core.state import lease
from mirror_core.state import lease as lease_module
from mirror_core.state.lease import (
    HeldLease,
    find_live_lease,
    find_writers_left_ms,
    is_dead_local_owner,
    make_next_lease,
    make_owner_name,
    refuse_if_held,
)
from mirror_core.state.state_records import State, format_key
from mirror_core.state.writer import StateWriter, make_data_id
from tests.support.waiting import wait_until

MIRROR = MirrorName("m")


def make_lease(owner: str, *, age_s: float = 1.0, released: bool = False) -> Lease:
    now = int(time.time() * 1000)
    return Lease(
        mirror=MIRROR,
        owner=owner,
        generation=3,
        heartbeat_ms=now - int(age_s * 1000),
        writers_until_ms=now,
        released=released,
    )


def of_a_dead_process() -> str:
    made = "from mirror_core.state.lease import make_owner_name; print(make_owner_name())"
    return subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.strip()


def test_a_living_owner_is_respected_and_named() -> None:
    with pytest.raises(LostOwnership, match=r"another process copies it already .*generation 3"):
        refuse_if_held(State(leases={MIRROR: make_lease(make_owner_name())}), MIRROR, None)


def test_an_owner_of_another_host_is_respected() -> None:
    assert not is_dead_local_owner("elsewhere.example/1/abcd")
    with pytest.raises(LostOwnership):
        refuse_if_held(State(leases={MIRROR: make_lease("elsewhere.example/1/abcd")}), MIRROR, None)


def test_nobody_waits_for_a_process_of_this_host_that_is_dead() -> None:
    owner = of_a_dead_process()
    assert is_dead_local_owner(owner)
    refuse_if_held(State(leases={MIRROR: make_lease(owner)}), MIRROR, None)


def test_a_run_that_drains_is_no_process() -> None:
    assert not is_dead_local_owner("run:m-failover-20261121T030204-a93c")


@pytest.mark.parametrize(
    "held",
    [None, make_lease(make_owner_name(), age_s=MAX_FRESH_AGE_S + 1), make_lease(make_owner_name(), released=True)],
)
def test_what_is_old_or_given_back_belongs_to_nobody(held: Lease | None) -> None:
    assert not is_lease_fresh(held, int(time.time() * 1000))
    refuse_if_held(State(leases={MIRROR: held} if held else {}), MIRROR, None)


def test_a_login_that_is_refused_while_the_state_topic_is_not_written_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    held = HeldLease(
        StateWriter(load_config(path).cluster("west"), make_data_id(MIRROR), timeout_s=0.1),
        make_lease(make_owner_name()),
    )

    def refused(cluster: object) -> State:
        raise BadRequest("cluster west: authentication as 'mirror-control' failed")

    monkeypatch.setattr(lease, "read_complete_state", refused)
    monkeypatch.setattr(lease_module, "_RETRY_BOUNDS_S", (0.0, 0.0))
    with pytest.raises(StateNotWritten):
        held.put(held.lease)

    def said_so() -> bool:
        with pytest.raises(StateNotWritten) as unwritten:  # and no BadRequest
            held.put(held.lease)
        return "authentication as 'mirror-control' failed" in str(unwritten.value)

    wait_until(said_so, timeout_s=10, why="a new writer was tried")


HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@pytest.mark.parametrize("owner_ahead_ms", [0, 2 * HOUR_MS, -2 * HOUR_MS, -8_000])
@pytest.mark.parametrize("ahead_ms", [0, 2 * HOUR_MS, -2 * HOUR_MS])
@pytest.mark.parametrize("age_ms", [3_000, 60_000])
def test_a_lease_is_judged_by_its_owners_clock_however_wrong_both_are(
    monkeypatch: pytest.MonkeyPatch, ahead_ms: int, owner_ahead_ms: int, age_ms: int
) -> None:
    brokers_ms = 50 * HOUR_MS
    here_ms = brokers_ms + ahead_ms
    monkeypatch.setattr(lease_module, "now_ms", lambda: here_ms)
    beaten_ms = brokers_ms - age_ms
    held = Lease(
        mirror=MIRROR,
        owner="elsewhere.example/1/abcd",
        generation=3,
        heartbeat_ms=beaten_ms + owner_ahead_ms,
        writers_until_ms=beaten_ms + owner_ahead_ms + 30_000,
    )
    state = State(leases={MIRROR: held}, append_times={format_key(held): beaten_ms + 200})
    if owner_ahead_ms != -8_000:  # that may be time in flight
        assert (find_live_lease(state, MIRROR, ahead_ms) is held) is (age_ms < MAX_FRESH_AGE_S * 1000)
    left_ms = make_next_lease(state, MIRROR, "me", ahead_ms).writers_until_ms - here_ms
    assert 0 <= left_ms - max(0, 30_000 - age_ms) <= 200, "never too short: two would write"


@pytest.mark.parametrize("clock_ahead_ms", [None, 0])
def test_tasks_are_never_waited_for_longer_than_their_driver_let_them_write(
    monkeypatch: pytest.MonkeyPatch, clock_ahead_ms: int | None
) -> None:
    """Two hours behind the owner's clock, and nobody tells the time."""
    here_ms = 50 * HOUR_MS
    monkeypatch.setattr(lease_module, "now_ms", lambda: here_ms)
    beaten_ms = here_ms + 2 * HOUR_MS
    held = Lease(
        mirror=MIRROR,
        owner="elsewhere.example/1/abcd",
        generation=3,
        heartbeat_ms=beaten_ms,
        writers_until_ms=beaten_ms + 30_000,
    )
    state = State(leases={MIRROR: held})
    assert find_writers_left_ms(state, MIRROR, clock_ahead_ms) == 30_000
    assert find_writers_left_ms(State(), MIRROR, clock_ahead_ms) is None


def test_tasks_are_waited_for_where_the_broker_that_stored_the_promise_is_behind_the_one_that_tells_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here_ms = 50 * HOUR_MS
    monkeypatch.setattr(lease_module, "now_ms", lambda: here_ms)
    held = Lease(
        mirror=MIRROR,
        owner="elsewhere.example/1/abcd",
        generation=3,
        heartbeat_ms=here_ms - 4_000,
        writers_until_ms=here_ms + 26_000,
    )
    state = State(leases={MIRROR: held}, append_times={format_key(held): here_ms - 4_000 - HOUR_MS})
    assert find_writers_left_ms(state, MIRROR, 0) == 26_000


def test_a_lease_is_judged_as_before_where_nobody_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "now_ms", lambda: 50 * HOUR_MS)
    held = Lease(mirror=MIRROR, owner="a/1/b", generation=1, heartbeat_ms=50 * HOUR_MS - 3_000, writers_until_ms=7)
    state = State(leases={MIRROR: held}, append_times={format_key(held): 40 * HOUR_MS})
    assert find_live_lease(state, MIRROR, None) is held
    assert find_live_lease(State(leases={MIRROR: held}), MIRROR, clock_ahead_ms=2 * HOUR_MS) is held, (
        "the brokers' clock is the owner's"
    )


@pytest.mark.parametrize(
    ("leader_ahead_ms", "controller_ahead_ms", "ahead_ms"),
    [
        (0, 0, 0),
        (72 * HOUR_MS, 0, 0),
        (0, 72 * HOUR_MS, 0),
        (0, -HOUR_MS, -HOUR_MS),
        (72 * HOUR_MS, None, 72 * HOUR_MS),
    ],
)
def test_deletions_are_held_by_the_earlier_clock_of_two_brokers(
    monkeypatch: pytest.MonkeyPatch, leader_ahead_ms: int, controller_ahead_ms: int | None, ahead_ms: int
) -> None:
    """A lead of the state topic that goes to a broker whose clock is days ahead ends no hold."""
    here_ms, held = 200 * HOUR_MS, Lease(mirror=MIRROR, owner="o", generation=1, heartbeat_ms=1, writers_until_ms=2)
    monkeypatch.setattr(lease_module, "now_ms", lambda: here_ms)
    measured = None if controller_ahead_ms is None else -controller_ahead_ms
    monkeypatch.setattr(lease_module, "measure_clock_ahead_ms", lambda cluster, timeout_s: measured)
    state = State(leases={MIRROR: held}, append_times={format_key(held): here_ms + leader_ahead_ms})
    assert lease_module.read_hold_clock_ms(cast("Any", None), state, MIRROR) == here_ms + ahead_ms
    assert lease_module.read_hold_clock_ms(cast("Any", None), State(leases={MIRROR: held}), MIRROR) is None
