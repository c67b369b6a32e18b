"""Connections opened ahead: to brokers that answer what they are asked, and to one that only takes connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy import background
from mirror_core.copy.background import ConnectionOpener, wait_for_connections
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import AuthenticationFailed, Unreachable
from mirror_core.model.names import ClusterName
from tests.support.checked_threads import beside
from tests.support.fake_metadata import FETCH, NEWEST_FETCH, answer_metadata

HANGS, WELL = 1, 2
ENOUGH_S = 5.0
LATE_S = 20.0


@pytest.fixture
def addresses() -> Iterator[dict[int, tuple[str, int]]]:
    with ExitStack() as opened:
        listeners = {broker: opened.enter_context(socket.create_server(("127.0.0.1", 0))) for broker in (HANGS, WELL)}
        well = listeners[WELL]
        opened.enter_context(beside(partial(answer_metadata, well, 3), partial(well.shutdown, socket.SHUT_RDWR)))
        yield {broker: listener.getsockname() for broker, listener in listeners.items()}


def known(ahead: ConnectionOpener, broker: int) -> Future[Connection]:
    begun = ahead.get_opening(broker)
    assert begun is not None
    return begun


def test_who_takes_a_connection_and_answers_nothing_is_not_connected(addresses: dict[int, tuple[str, int]]) -> None:
    """Whoever finds a place there would wait for it, and all else with it."""
    config = ClusterConfig(ClusterName("east"), {}, {})
    client = cast("ClusterClient", SimpleNamespace(name="east", config=config))
    with closing(ConnectionOpener(client)) as ahead:
        ahead.set_brokers(ClusterMetadata("", 1, addresses, {}, frozenset()))
        ahead.start_opening(addresses)
        wait_for_connections([{known(ahead, WELL)}], ENOUGH_S)
        assert ahead.find_unconnected([WELL]) == {}
        assert list(ahead.find_unconnected([HANGS, WELL])) == [HANGS]
        assert not ahead.has_failed(HANGS), "not yet"
        with closing(ahead.connect(WELL)) as connection:
            assert connection.newest_versions == {FETCH: NEWEST_FETCH}


def test_the_last_reason_is_told_while_the_next_attempt_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, held = list[int](), threading.Event()

    def open_one(self: ConnectionOpener, address: tuple[str, int]) -> Connection:
        tries.append(1)
        if len(tries) > 1:
            held.wait()
        raise AuthenticationFailed("certificate refused")

    monkeypatch.setattr(ConnectionOpener, "_open", open_one)
    client = cast("ClusterClient", SimpleNamespace(name="east"))
    with closing(ConnectionOpener(client)) as ahead:
        ahead.set_brokers(ClusterMetadata("", 1, {WELL: ("127.0.0.1", 1)}, {}, frozenset()))
        ahead.start_opening([WELL])
        wait([known(ahead, WELL)])
        assert ahead.find_unconnected([WELL]) == {WELL: "certificate refused"}
        assert ahead.find_unconnected([WELL]) == {WELL: "certificate refused"}, "not only that there is no answer yet"
        assert ahead.has_failed(WELL)
        held.set()


def test_nobody_is_asked_where_a_broker_is_that_leads_nothing_any_more() -> None:
    client = cast("ClusterClient", SimpleNamespace(name="east"))
    with closing(ConnectionOpener(client)) as ahead:
        ahead.set_brokers(ClusterMetadata("", 1, {}, {}, frozenset()))
        words = "cluster east: broker 2 is not in the cluster now"
        assert ahead.find_unconnected([WELL]) == {WELL: words}
        assert ahead.has_failed(WELL)
        for connect in (ahead.connect, ahead.make_opener):
            with pytest.raises(Unreachable, match=words):
                connect(WELL)


def test_one_that_hangs_is_not_waited_for_when_another_is_there() -> None:
    hangs, here, there = Future[Connection](), Future[Connection](), Future[Connection]()
    late = threading.Timer(LATE_S, hangs.set_result, [cast("Connection", None)])
    late.start()
    for one in (here, there):
        threading.Timer(LATE_S / 100, one.set_result, [cast("Connection", None)]).start()
    wait_for_connections([{hangs}, {hangs, here}, {here, there}], 2 * LATE_S)
    assert here.done()
    assert there.done()
    assert not hangs.done()
    late.cancel()


def test_one_that_takes_not_twice_as_long_as_the_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far away a whole round would be made for it alone."""
    first, second = Future[Connection](), Future[Connection]()
    now, waits = [100.0], list[float]()

    def passes(pending: set[Future[Connection]], limit_s: float, *when: str) -> tuple[object, object]:
        waits.append(limit_s)
        if not first.done():
            now[0] += 0.5
            first.set_result(cast("Connection", None))
        return wait(pending, 0.0, *when)

    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(background, "wait", passes)
    wait_for_connections([{first}, {second}], LATE_S)
    assert waits == [LATE_S, pytest.approx(0.5 + 0.1)]
    waits.clear()
    wait_for_connections([{first}, {second}], LATE_S)
    assert waits == [pytest.approx(0.1)], "there at once: a little"


def test_one_that_failed_is_none_that_is_there() -> None:
    failed, late = Future[Connection](), Future[Connection]()
    failed.set_exception(Unreachable("refused"))
    threading.Timer(0.3, late.set_result, [cast("Connection", None)]).start()
    wait_for_connections([{failed}, {late}], LATE_S)
    assert late.done()


def test_what_is_connected_already_is_all_that_it_takes() -> None:
    wait_for_connections([set(), {Future[Connection]()}], 2 * LATE_S)
    wait_for_connections([], 2 * LATE_S)
