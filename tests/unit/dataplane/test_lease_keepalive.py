"""What is looked at in a thread of its own while the lease is kept fresh, and may still be at it when the rest ends."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from mirror_core.dataplane.driver import LeaseKeepalive
from mirror_core.model.errors import Unreachable
from mirror_core.model.timing import read_steady_s
from mirror_core.state.lease import HeldLease
from tests.support.waiting import patience

LIMIT_S = patience(10.0)


class Lease:
    def beat(self) -> None:
        pass


class Client:
    """Its connections are opened when they are needed, as a ClusterClient's are."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = threading.Event()

    def close(self) -> None:
        self.opened = 0
        self.closed.set()


def test_what_late_work_opens_is_closed_when_it_has_ended() -> None:
    patience, client, wakes, awake = LeaseKeepalive(), Client(), threading.Event(), threading.Event()

    def look() -> None:
        wakes.wait(LIMIT_S)
        client.opened += 1
        awake.set()

    with pytest.raises(Unreachable, match="not over yet"), patience.close_after_work(client):
        patience.run_renewing(cast("HeldLease", Lease()), look, read_steady_s())
    assert not client.closed.is_set(), "it is still in use"
    wakes.set()
    assert client.closed.wait(LIMIT_S)
    assert awake.is_set()
    assert not client.opened


def test_what_nobody_uses_any_more_is_closed_at_once() -> None:
    patience, client = LeaseKeepalive(), Client()
    with patience.close_after_work(client):
        assert patience.run_renewing(cast("HeldLease", Lease()), lambda: 7) == 7
    assert client.closed.is_set()
