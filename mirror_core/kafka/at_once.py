"""Parallel requests to several brokers: a broker that hangs costs one time limit and hides no other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.text import format_address

Answer = TypeVar("Answer")
Address = tuple[str, int]

_GRACE_S: Final = 0.5
_LATE_S: Final = 0.5
_LATE_TRIPS: Final = 8
"""With `_FAIL_FAST_S`, the wait in fail-fast mode: enough for TLS, SCRAM and a request."""
_SILENT_S: Final = 10.0
"""A broker that timed out is skipped for this long: an epoch's plan makes five fan-outs."""


class Silent(Unreachable):
    """The broker used up the whole time limit without an answer."""


class Late(Unreachable):
    """With more time it may answer."""


def ask_brokers(
    client: ClusterClient, asked: Mapping[int, Callable[[Connection], Answer]], *, at_leisure: bool = False
) -> dict[int, Answer | RemoteFault]:
    """Each broker's result or fault (malformed responses included). Raises other errors.

    In fail-fast mode slow brokers yield `BrokerResponsePending`, unless `wait_full_timeout`.
    """
    found: dict[int, Answer | RemoteFault] = {}
    asking: dict[int, tuple[Address, Future[tuple[Connection, Answer]]]] = {}
    within_s = _LATE_S + _LATE_TRIPS * client.round_trip_s  # includes connections in use
    pool = ThreadPoolExecutor(max(1, len(asked)), thread_name_prefix="ask")
    for broker, send in asked.items():
        try:
            if time.monotonic() - client.silent.get(broker, -math.inf) < _SILENT_S:
                raise Silent(f"cluster {client.name}, broker {broker}: it gave no answer a moment ago")
            address = client.address(broker)
        except Unreachable as error:
            found[broker] = error
            continue
        asking[broker] = address, pool.submit(copy_context().run, _ask, client, address, client.lend(address), send)
    pool.shutdown(wait=False)  # a hanging broker keeps its thread, not us
    last, wrong = time.monotonic() + client.timeout_s + _GRACE_S, list[MirrorError]()
    deadline = min(last, time.monotonic() + within_s) if client.hurry and not at_leisure else last
    for broker, (address, one) in asking.items():
        try:
            connection, found[broker] = one.result(max(0.0, deadline - time.monotonic()))
            client.give_back(address, connection)
            client.silent.pop(broker, None)
        except TimeoutError:
            one.add_done_callback(partial(_ended, client, broker))
            where = f"cluster {client.name}, broker {format_address(*address)}"
            if deadline < last:
                found[broker] = Late(f"{where}: no answer yet")
                continue
            found[broker] = Silent(f"{where}: no answer within {client.timeout_s:g} s")
            client.silent[broker] = time.monotonic()
        except RemoteFault as error:
            found[broker] = error
            if isinstance(error, Silent):
                client.silent[broker] = time.monotonic()
        except MirrorError as error:
            wrong.append(error)
    if wrong:
        raise wrong[0]
    return found


def _ask(
    client: ClusterClient, address: Address, connection: Connection | None, send: Callable[[Connection], Answer]
) -> tuple[Connection, Answer]:
    began = time.monotonic()
    try:
        if connection is not None:
            with suppress(Unreachable):
                return _asked(connection, send)
        return _asked(client.open(address), send)
    except Unreachable as error:
        raise Silent(str(error)) if time.monotonic() - began >= client.timeout_s else error from None


def _asked(connection: Connection, send: Callable[[Connection], Answer]) -> tuple[Connection, Answer]:
    try:
        return connection, send(connection)
    except BaseException:
        connection.close()
        raise


def _ended(client: ClusterClient, broker: int, late: Future[tuple[Connection, Answer]]) -> None:
    if (error := late.exception()) is None:
        late.result()[0].close()
    elif isinstance(error, Silent):
        client.silent[broker] = time.monotonic()
