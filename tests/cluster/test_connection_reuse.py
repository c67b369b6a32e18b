"""Connections are kept while a run is at work: for the same principal, until the broker closes them, and no longer."""

from __future__ import annotations

import pytest
from kio.schema.metadata.v12.response import MetadataResponse

from mirror_core.kafka.client import _BROKERS_ONLY_REQUEST, ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.model.errors import Unreachable
from tests.support.broker_faults import killed, suspended
from tests.support.kafka_clients import TIMEOUT_S, Pair

pytestmark = pytest.mark.cluster


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Connections that are opened from now on. One that was kept is waited for, however slow."""
    monkeypatch.setattr("mirror_core.kafka.client._POOLED_TIMEOUT_S", TIMEOUT_S)
    made, usual = list[Connection](), Connection.__init__

    def opens(self: Connection, *given: object, **named: object) -> None:
        usual(self, *given, **named)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Connection, "__init__", opens)
    return made


def look(config: ClusterConfig, principal: Principal = Principal.CONTROL) -> None:
    with ClusterClient(config, principal) as client:
        assert client.brokers() == (1,)


@pytest.fixture
def east(pair: Pair) -> ClusterConfig:
    return load_config(pair.config_path).cluster("east")


def test_a_run_signs_in_once_and_leaves_nothing_open(east: ClusterConfig, opened: list[Connection]) -> None:
    with CONNECTION_POOL.keep_connections():
        look(east)
        with CONNECTION_POOL.keep_connections():
            look(east)
        look(east)
        assert len(opened) == 1
        assert opened[0].sock.fileno() >= 0
    assert opened[0].sock.fileno() == -1


def test_nothing_is_kept_where_no_run_is_at_work(east: ClusterConfig, opened: list[Connection]) -> None:
    look(east)
    assert opened[0].sock.fileno() == -1
    look(east)
    assert len(opened) == 2


def test_two_at_a_time_have_a_connection_each(east: ClusterConfig, opened: list[Connection]) -> None:
    with CONNECTION_POOL.keep_connections():
        with ClusterClient(east) as one, ClusterClient(east) as other:
            assert one.brokers() == other.brokers()
        assert len(opened) == 2


def test_a_principal_goes_on_with_its_own_only(east: ClusterConfig, opened: list[Connection]) -> None:
    with CONNECTION_POOL.keep_connections():
        look(east)
        look(east, Principal.DATA)
        assert len(opened) == 2
        look(east, Principal.DATA)
        assert len(opened) == 2


def test_one_that_the_broker_has_closed_is_not_used(pair: Pair, east: ClusterConfig, opened: list[Connection]) -> None:
    with CONNECTION_POOL.keep_connections():
        look(east)
        with killed(pair.east):
            pass
        before = len(opened)
        look(east)
        assert len(opened) > before
        assert opened[0].sock.fileno() == -1


def test_one_with_an_answer_to_come_answers_nobody_else(
    pair: Pair, east: ClusterConfig, opened: list[Connection]
) -> None:
    """The next question would get the answer to the last one."""
    with CONNECTION_POOL.keep_connections():
        look(east)
        connection = CONNECTION_POOL.acquire(next(iter(CONNECTION_POOL._idle)))
        assert connection is opened[0]
        with suspended(pair.east), pytest.raises(Unreachable):
            connection.call(_BROKERS_ONLY_REQUEST, MetadataResponse, timeout_s=0.1)
        CONNECTION_POOL.release("whose", connection)
        assert CONNECTION_POOL.acquire("whose") is None
        assert connection.sock.fileno() == -1
