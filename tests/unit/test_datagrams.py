"""What tasks tell by datagram comes in through a port that anybody on the machine can send to: noise ends nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.copy.datagrams import Address, Datagrams
from mirror_core.copy.handover import Board
from mirror_core.dataplane.progress import Listener, Progress
from tests.waiting import wait_until

SENDER: Address = ("127.0.0.1", 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NOISE = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b'"rows"',
    b'{"token":"\xc3\xa9"}',
    b'{"token":"\\ud800"}',
    b'{"token":' + b"[" * 60_000,
    b'{"of a later version":' + b"[" * 60_000,
    b'{"token":"\xc3\xa9","task":0,"epoch":1,"t":1,"rows":[],"left":[],"wants":[]}',
    b"[" * 60_000 + b"]" * 5_000,
    b'{"token":"x","epoch":' + b"9" * 60_000 + b"}",
    b'{"token":"x","t":1e999}',
    b"x" * 65_507,
)


def progress() -> Datagrams:
    return Listener(Progress())


@pytest.fixture(params=[Board, progress], ids=["claims", "progress"])
def make(request: pytest.FixtureRequest) -> Callable[[], Datagrams]:
    found: Callable[[], Datagrams] = request.param
    return found


@pytest.fixture(scope="module")
def listeners() -> Iterator[tuple[Datagrams, ...]]:
    """Not entered: what comes is given to them."""
    both = (Board(), progress())
    yield both
    for listener in both:
        listener.socket.close()


@given(datagram=st.binary(max_size=300) | st.sampled_from(NOISE) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_taken_for_a_task(listeners: tuple[Datagrams, ...], datagram: bytes) -> None:
    for listener in listeners:
        assert listener.received(datagram, SENDER) is False


FIELDS = ("token", "task", "epoch", "t", "rows", "left", "wants")


@given(values=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=7))
def test_no_values_end_a_listener_even_with_the_token(
    listeners: tuple[Datagrams, ...], values: dict[str, object]
) -> None:
    for listener in listeners:
        whole = {"task": 0, "epoch": 1, "t": 1.0, "rows": [], "left": [], "wants": []}
        listener.received(json.dumps({**whole, **values, "token": listener.at.token}).encode(), SENDER)


def test_what_is_asked_for_twice_is_given_once() -> None:
    board = Board()
    board.take(json.dumps({"token": board.at.token, "epoch": 1, "left": [["t", 0, 8]], "wants": []}).encode())
    twice = {"token": board.at.token, "epoch": 2, "left": [], "wants": [["t", 0], ["t", 0]]}
    given_once = board.take(json.dumps(twice).encode())
    board.socket.close()
    assert given_once is not None
    assert len(given_once) == 1


def test_a_listener_hears_on_after_noise_and_says_once_that_there_was_some(
    make: Callable[[], Datagrams], caplog: pytest.LogCaptureFixture
) -> None:
    with make() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for noise in NOISE:
            sender.sendto(noise, (listener.host, listener.port))
        wait_until(lambda: listener.foreign == len(NOISE), timeout_s=10, why="noise arrives, all of it")
    assert [r.getMessage().split(":")[1] for r in caplog.records] == [
        " datagrams of a stranger are ignored; the first is from 127.0.0.1"
    ]
