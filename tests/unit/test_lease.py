"""Who counts as the owner of a lease."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.clock import FRESH_S
from mirror_core.model.errors import BadRequest, LostOwnership, Unwritten
from mirror_core.model.mirror import Lease, is_fresh
from mirror_core.model.names import MirrorName
from mirror_core.state import lease as lease_module
from mirror_core.state import regaining
from mirror_core.state.lease import HeldLease, copier, died_here, new_owner, next_lease, refuse_if_held
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter, data_id
from tests.waiting import wait_until

MIRROR = MirrorName("m")


def lease(owner: str, *, age_s: float = 1.0, released: bool = False) -> Lease:
    now = int(time.time() * 1000)
    return Lease(
        mirror=MIRROR,
        owner=owner,
        generation=3,
        beat_ms=now - int(age_s * 1000),
        writers_until_ms=now,
        released=released,
    )


def of_a_dead_process() -> str:
    made = "from mirror_core.state.lease import new_owner; print(new_owner())"
    return subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.strip()


def test_a_living_owner_is_respected_and_named() -> None:
    with pytest.raises(LostOwnership, match=r"another process copies it already .*generation 3"):
        refuse_if_held(State(leases={MIRROR: lease(new_owner())}), MIRROR)


def test_an_owner_of_another_host_is_respected() -> None:
    assert not died_here("elsewhere.example/1/abcd")
    with pytest.raises(LostOwnership):
        refuse_if_held(State(leases={MIRROR: lease("elsewhere.example/1/abcd")}), MIRROR)


def test_nobody_waits_for_a_process_of_this_host_that_is_dead() -> None:
    owner = of_a_dead_process()
    assert died_here(owner)
    refuse_if_held(State(leases={MIRROR: lease(owner)}), MIRROR)


def test_a_run_that_drains_is_no_process() -> None:
    assert not died_here("run:m-failover-20261121T030204-a93c")


@pytest.mark.parametrize("held", [None, lease(new_owner(), age_s=FRESH_S + 1), lease(new_owner(), released=True)])
def test_what_is_old_or_given_back_belongs_to_nobody(held: Lease | None) -> None:
    assert not is_fresh(held, int(time.time() * 1000))
    refuse_if_held(State(leases={MIRROR: held} if held else {}), MIRROR)


def test_a_login_that_is_refused_while_the_state_topic_is_not_written_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    held = HeldLease(StateWriter(load_config(path).cluster("west"), data_id(MIRROR), timeout_s=0.1), lease(new_owner()))

    def refused(cluster: object) -> State:
        raise BadRequest("cluster west: authentication as 'mirror-control' failed")

    monkeypatch.setattr(regaining, "read_whole", refused)
    monkeypatch.setattr(lease_module, "_AGAIN_S", (0.0, 0.0))
    with pytest.raises(Unwritten):
        held.put(held.lease)

    def said_so() -> bool:
        with pytest.raises(Unwritten) as unwritten:  # and no BadRequest
            held.put(held.lease)
        return "authentication as 'mirror-control' failed" in str(unwritten.value)

    wait_until(said_so, timeout_s=10, why="a new writer was tried")


HOUR_MS: Final = 3_600_000


@pytest.mark.parametrize("owner_ahead_ms", [0, 2 * HOUR_MS, -2 * HOUR_MS])
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
        beat_ms=beaten_ms + owner_ahead_ms,
        writers_until_ms=beaten_ms + owner_ahead_ms + 30_000,
    )
    state = State(leases={MIRROR: held}, appended_ms={MIRROR: beaten_ms + 200})
    assert (copier(state, MIRROR, ahead_ms) is held) is (age_ms < FRESH_S * 1000)
    left_ms = next_lease(state, MIRROR, "me", ahead_ms).writers_until_ms - here_ms
    assert abs(left_ms - max(0, 30_000 - age_ms)) <= 200


def test_a_lease_is_judged_as_before_where_nobody_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "now_ms", lambda: 50 * HOUR_MS)
    held = Lease(mirror=MIRROR, owner="a/1/b", generation=1, beat_ms=50 * HOUR_MS - 3_000, writers_until_ms=7)
    state = State(leases={MIRROR: held}, appended_ms={MIRROR: 40 * HOUR_MS})
    assert copier(state, MIRROR) is held
    assert copier(State(leases={MIRROR: held}), MIRROR, ahead_ms=2 * HOUR_MS) is held, (
        "the brokers' clock is the owner's"
    )
