"""Parallel requests to several brokers.

A request to all coordinators is complete, or an error: an entry that moves between them would be in no response.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from mirror_core.kafka.client import ClusterClient, ClusterMetadata, Leader
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.text import format_address

BrokerResult = TypeVar("BrokerResult")
Address = tuple[str, int]
_GRACE_S: Final = 0.5
_FAIL_FAST_S: Final = 0.5
_FAIL_FAST_ROUND_TRIPS: Final = 8
"""With `_FAIL_FAST_S`, enough for TLS, SCRAM and a request."""
_TIMED_OUT_PAUSE_S: Final = 10.0
"""An epoch's plan makes five fan-outs: a broker that timed out is skipped for this long."""


class BrokerTimeout(Unreachable):
    """The broker used up the whole time limit without an answer."""


class BrokerResponsePending(Unreachable):
    """With more time it may answer."""


def call_brokers(
    client: ClusterClient, calls: Mapping[int, Callable[[Connection], BrokerResult]], *, wait_full_timeout: bool = False
) -> dict[int, BrokerResult | RemoteFault]:
    """Each broker's result or fault (malformed responses included). Raises other errors.

    In fail-fast mode slow brokers yield `BrokerResponsePending`, unless `wait_full_timeout`.
    """
    results: dict[int, BrokerResult | RemoteFault] = {}
    in_flight: dict[int, tuple[Address, Future[tuple[Connection, BrokerResult]]]] = {}
    fail_fast_s = _FAIL_FAST_S + _FAIL_FAST_ROUND_TRIPS * client.round_trip_s  # includes connections in use
    pool = ThreadPoolExecutor(max(1, len(calls)), thread_name_prefix="ask")
    for broker, send in calls.items():
        try:
            if time.monotonic() - client.timed_out_at.get(broker, -math.inf) < _TIMED_OUT_PAUSE_S:
                raise BrokerTimeout(f"cluster {client.name}, broker {broker}: it gave no answer a moment ago")
            address = client.address(broker)
        except Unreachable as error:
            results[broker] = error
            continue
        in_flight[broker] = (
            address,
            pool.submit(copy_context().run, _call_broker, client, address, client.borrow_connection(address), send),
        )
    pool.shutdown(wait=False)  # a hanging broker keeps its thread, not us
    full_deadline, errors = time.monotonic() + client.timeout_s + _GRACE_S, list[MirrorError]()
    deadline = (
        min(full_deadline, time.monotonic() + fail_fast_s)
        if client.fail_fast and not wait_full_timeout
        else full_deadline
    )
    for broker, (address, future) in in_flight.items():
        try:
            connection, results[broker] = future.result(max(0.0, deadline - time.monotonic()))
            client.return_connection(address, connection)
            client.timed_out_at.pop(broker, None)
        except TimeoutError:
            future.add_done_callback(partial(_record_late_result, client, broker))
            where = f"cluster {client.name}, broker {format_address(*address)}"
            if deadline < full_deadline:
                results[broker] = BrokerResponsePending(f"{where}: no answer yet")
                continue
            results[broker] = BrokerTimeout(f"{where}: no answer within {client.timeout_s:g} s")
            client.timed_out_at[broker] = time.monotonic()
        except RemoteFault as error:
            results[broker] = error
            if isinstance(error, BrokerTimeout):
                client.timed_out_at[broker] = time.monotonic()
        except MirrorError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _call_broker(
    client: ClusterClient, address: Address, connection: Connection | None, send: Callable[[Connection], BrokerResult]
) -> tuple[Connection, BrokerResult]:
    began_at = time.monotonic()
    try:
        if connection is not None:
            with suppress(Unreachable):
                return _send_or_close(connection, send)
        return _send_or_close(client.open(address), send)
    except Unreachable as error:
        raise BrokerTimeout(str(error)) if time.monotonic() - began_at >= client.timeout_s else error from None


def _send_or_close(
    connection: Connection, send: Callable[[Connection], BrokerResult]
) -> tuple[Connection, BrokerResult]:
    try:
        return connection, send(connection)
    except BaseException:
        connection.close()
        raise


def _record_late_result(client: ClusterClient, broker: int, future: Future[tuple[Connection, BrokerResult]]) -> None:
    if (error := future.exception()) is None:
        future.result()[0].close()
    elif isinstance(error, BrokerTimeout):
        client.timed_out_at[broker] = time.monotonic()


_PROPAGATION_PAUSE_S: Final = 0.02


def wait_for_propagation(
    client: ClusterClient, shows_change: Callable[[Connection], bool], within_s: float, *, retry_timeouts: bool = False
) -> Mapping[int, RemoteFault | None]:
    """Late brokers, each with its error if it answered with one.

    Brokers answer from their own metadata, which follows the controller's order. `shows_change` runs in several
    threads. Only timeouts are retried, with `retry_timeouts` at once.
    """
    deadline = time.monotonic() + within_s
    waiting = dict[int, RemoteFault | None].fromkeys(client.brokers())
    wrong = dict[int, RemoteFault | None]()
    while waiting:
        asked_at = time.monotonic()
        for broker in waiting if retry_timeouts and asked_at <= deadline else ():
            client.timed_out_at.pop(broker, None)
        results = call_brokers(client, dict.fromkeys(waiting, shows_change))
        waiting = {
            broker: result if isinstance(result, RemoteFault) else None
            for broker, result in results.items()
            if result is not True
        }
        wrong |= {broker: error for broker, error in waiting.items() if error and not isinstance(error, Unreachable)}
        waiting = {broker: error for broker, error in waiting.items() if broker not in wrong}
        live_brokers = client.brokers() if waiting else ()
        waiting = {
            broker: error for broker, error in waiting.items() if broker in live_brokers
        }  # dead brokers leave the list
        if asked_at > deadline:
            break
        time.sleep(_PROPAGATION_PAUSE_S if waiting else 0)
    return {**waiting, **wrong}


TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
_COORDINATOR_PAUSE_S: Final = 0.1
CoordinatorResult = TypeVar("CoordinatorResult")


class CoordinatorMoving(Unreachable):
    """A coordinator is loading, or has moved."""


def call_coordinators(
    client: ClusterClient, topic: str, call: Callable[[int], CoordinatorResult]
) -> dict[int, CoordinatorResult]:
    """Repeats all calls if a coordinator moved meanwhile; CoordinatorMoving after the client's limit."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        metadata_before = client.metadata([topic])
        try:
            results = {broker: call(broker) for broker in sorted(metadata_before.brokers)}
            if _find_leaders(metadata_before, topic) == _find_leaders(client.metadata([topic]), topic):
                return results
            moving_error = CoordinatorMoving(f"cluster {client.name}: coordinators are moving (leaders of {topic})")
        except CoordinatorMoving as error:
            moving_error = error
        if time.monotonic() > deadline:
            raise moving_error
        time.sleep(_COORDINATOR_PAUSE_S)


def _find_leaders(metadata: ClusterMetadata, topic: str) -> Mapping[int, Leader]:
    described = metadata.topics.get(topic)
    return described.partitions if described else {}
