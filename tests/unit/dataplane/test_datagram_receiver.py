"""What tasks tell by datagram comes in through a port that anybody can send to: noise and strangers end nothing."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.copy.task_datagrams import MAX_DATAGRAM_BYTES, Datagram, DatagramKind, DriverChannel, seal_datagram
from mirror_core.dataplane.datagram_receiver import DatagramReceiver, build_handlers
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import ListenAddress
from tests.support.addresses import IPV6, resolve_to
from tests.support.checked_threads import beside
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

HERE = ListenAddress()
A = Partition("orders", 0)
SAID = b'{"task":0,"t":1,"rows":[["orders",0,10,null,10,1000,0,0]]}'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NOISE = (
    b"",
    b"\xff\xfe",
    b"MB",
    b"null",
    b"{}",
    b'{"task":' + b"[" * 1_100,
    b'{"of a later version":' + b"[" * 1_000,
    b"[" * 600 + b"]" * 500,
    b'{"task":' + b"9" * 1_000 + b"}",
    b'{"t":1e999}',
    b"MB\x01" + bytes(100),
    b"x" * 1_200,
)


@pytest.fixture(scope="module")
def channel() -> Iterator[DatagramReceiver]:
    """Not entered: what comes is given to it."""
    made = DatagramReceiver(
        HERE, {DatagramKind.PROGRESS: ProgressTracker().handle, DatagramKind.CLAIMS: ClaimBoard().handle}
    )
    made.address_for(1)
    yield made
    made.socket.close()


@given(datagram=st.binary(max_size=MAX_DATAGRAM_BYTES + 50) | st.sampled_from(NOISE))
def test_no_bytes_are_taken_for_a_task(channel: DatagramReceiver, datagram: bytes) -> None:
    assert channel.handle(datagram) is None


@given(sort=st.integers(0, 255), body=st.sampled_from(NOISE) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_body_ends_a_channel_even_with_the_token(channel: DatagramReceiver, sort: int, body: bytes) -> None:
    letter = Datagram(sort, 1, b"somebody", 1 + max(channel._last_numbers.values(), default=0), body)
    channel.handle(seal_datagram(channel.address_for(1).token, letter))


FIELDS = ("task", "t", "rows", "left", "wants")


@given(sort=st.sampled_from(DatagramKind), values=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
def test_no_values_end_it_either(channel: DatagramReceiver, sort: DatagramKind, values: dict[str, object]) -> None:
    whole: dict[str, object] = {"task": 0, "t": 1.0, "rows": [], "left": [], "wants": []}
    number = 1 + max(channel._last_numbers.values(), default=0)
    channel.handle(
        seal_datagram(
            channel.address_for(1).token, Datagram(sort, 1, b"somebody", number, json.dumps(whole | values).encode())
        )
    )


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_no_byte_of_it_can_be_changed_on_the_way(channel: DatagramReceiver, place: int, bit: int) -> None:
    number = 1 + max(channel._last_numbers.values(), default=0)
    whole = bytearray(
        seal_datagram(channel.address_for(1).token, Datagram(DatagramKind.PROGRESS, 1, b"somebody", number, SAID))
    )
    whole[place % len(whole)] ^= 1 << bit
    assert channel.handle(bytes(whole)) is None


def test_a_task_speaks_for_its_own_epoch_only_and_once() -> None:
    progress = ProgressTracker()
    channel = DatagramReceiver(HERE, {DatagramKind.PROGRESS: progress.handle})
    old, new = channel.address_for(1).token, channel.address_for(2).token
    letter = Datagram(DatagramKind.PROGRESS, 2, b"a task's", 5, SAID)
    assert channel.handle(seal_datagram(old, letter)) is None
    assert channel.handle(seal_datagram(new, letter)) is not None
    assert progress.totals().partitions == 1
    for again in (letter, letter._replace(number=4)):
        assert channel.handle(seal_datagram(new, again)) is None
    assert (
        channel.handle(seal_datagram(old, letter._replace(epoch=1))) is not None
    )  # overlapping: the one before still speaks
    channel.address_for(4)
    assert channel.handle(seal_datagram(old, letter._replace(epoch=1, number=9))) is None
    assert channel.handle(seal_datagram(new, letter._replace(number=9))) is not None
    newer = letter._replace(epoch=4, sender=b"the next")
    assert channel.handle(seal_datagram(channel.address_for(4).token, newer)) is not None
    assert set(channel._last_numbers) == {(2, b"a task's"), (4, b"the next")}  # what can't speak any more is forgotten
    channel.socket.close()


def test_the_token_is_in_no_datagram() -> None:
    at = DatagramReceiver(HERE, {})
    token = at.address_for(1).token
    at.socket.close()
    whole = seal_datagram(token, Datagram(DatagramKind.PROGRESS, 1, bytes(8), 1, SAID))
    assert token.encode() not in whole
    assert bytes.fromhex(token) not in whole


def test_a_channel_hears_on_in_a_flood_and_says_once_that_there_are_strangers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress, ended = ProgressTracker(), threading.Event()
    with (
        DatagramReceiver(HERE, {DatagramKind.PROGRESS: progress.handle}) as channel,
        closing(DriverChannel(1, channel.address_for(1))) as line,
    ):
        there = ("127.0.0.1", channel.address_for(1).port)

        def flood() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                while not ended.is_set():
                    for noise in NOISE:
                        stranger.sendto(noise, there)

        with beside(flood, ended.set):
            wait_until(lambda: channel.foreign_count > 1_000, timeout_s=20, why="noise arrives")

            def heard() -> bool:
                line.send(DatagramKind.PROGRESS, SAID)
                return progress.totals().partitions == 1

            wait_until(heard, timeout_s=20, why="a task is heard")
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().split(":")[0] for record in warned] == [
        format_sentence("datagrams_without_this_epochs_token")
    ]


def test_what_was_said_before_the_end_is_heard() -> None:
    progress = ProgressTracker()
    with (
        DatagramReceiver(HERE, {DatagramKind.PROGRESS: progress.handle}) as channel,
        closing(DriverChannel(1, channel.address_for(1))) as line,
    ):
        line.send(DatagramKind.PROGRESS, SAID)
    assert A in progress.partitions()


def test_who_was_held_up_hears_all_the_same_what_was_said_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.dataplane.datagram_receiver._CLOSE_TIMEOUT_S", 0.0)
    taken = list[bytes]()

    def take(letter: Datagram) -> bytes:
        wait_until(lambda: ends._is_closing, timeout_s=20, why="the end comes")
        taken.append(letter.body)
        return b""

    ends = DatagramReceiver(HERE, {DatagramKind.CLAIMS: take})
    with ends, closing(DriverChannel(1, ends.address_for(1))) as line:
        for body in (b"1", b"2"):
            line.send(DatagramKind.CLAIMS, body)
    assert taken == [b"1", b"2"]


def test_an_answer_is_for_who_asked_and_is_read_once() -> None:
    with DatagramReceiver(HERE, {DatagramKind.CLAIMS: lambda letter: b"given " + letter.body}) as channel:
        one, other = (DriverChannel(1, channel.address_for(1)) for _ in range(2))
        with closing(one), closing(other):
            one.send(DatagramKind.CLAIMS, b"1")
            assert wait_until(lambda: list(one.receive_responses()), timeout_s=10, why="an answer") == [b"given 1"]
            token = channel.address_for(1).token
            for sender, number in ((one._sender, 1), (other._sender, 2)):
                again = seal_datagram(token, Datagram(DatagramKind.RESPONSE, 1, sender, number, b"again"))
                channel.socket.sendto(again, one._sockets[0].getsockname())
            one.send(DatagramKind.CLAIMS, b"2")
            assert wait_until(lambda: list(one.receive_responses()), timeout_s=10, why="an answer") == [b"given 2"]


def test_a_driver_that_stops_asks_each_task_that_reports_to_end() -> None:
    progress = ProgressTracker()
    with (
        DatagramReceiver(HERE, build_handlers(ClaimBoard(), progress)) as channel,
        closing(DriverChannel(1, channel.address_for(1))) as old,
        closing(DriverChannel(2, channel.address_for(2))) as new,
    ):
        old.send(DatagramKind.PROGRESS, SAID)
        wait_until(lambda: A in progress.partitions(), timeout_s=10, why="a task is heard")
        assert not old.must_stop()
        channel.stop_tasks()

        def asked_to_end() -> bool:
            for line in (old, new):
                line.send(DatagramKind.PROGRESS, SAID.replace(b"10,null", b"20,null"))
            return old.must_stop() and new.must_stop()

        wait_until(asked_to_end, timeout_s=10, why="both tasks are asked to end")
        assert progress.partitions()[A].position == 20, "what they report is heard all the same"


def test_nobody_else_can_ask_a_task_to_end() -> None:
    with (
        DatagramReceiver(HERE, build_handlers(ClaimBoard(), None)) as channel,
        closing(DriverChannel(2, channel.address_for(2))) as line,
        closing(DriverChannel(2, channel.address_for(2))) as another,
    ):
        tokens = {epoch: channel.address_for(epoch).token for epoch in (1, 2)}
        sent = Datagram(DatagramKind.STOP, 2, line._sender, 1, b"")
        its_address = line._sockets[0].getsockname()
        for packet in (
            seal_datagram("no key", sent),
            seal_datagram(tokens[1], sent._replace(epoch=1)),
            seal_datagram(tokens[2], sent._replace(sender=another._sender)),
            seal_datagram(tokens[2], sent._replace(kind=DatagramKind.PROGRESS)),
            seal_datagram(tokens[2], sent)[:-1],
        ):
            channel.socket.sendto(packet, its_address)
        channel.socket.sendto(
            seal_datagram(tokens[2], sent._replace(kind=DatagramKind.RESPONSE, body=b"1")), its_address
        )
        assert wait_until(lambda: list(line.receive_responses()), timeout_s=10, why="all have arrived") == [b"1"]
        assert not line.must_stop()
        channel.socket.sendto(seal_datagram(tokens[2], sent), its_address)
        wait_until(line.must_stop, timeout_s=10, why="its own driver asks it to end")


def test_a_line_to_nowhere_says_so_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with DatagramReceiver(HERE, {}) as channel:
        at = channel.address_for(1)
    gone = DriverChannel(1, at)  # nobody listens there any more
    for _ in range(3):
        gone.send(DatagramKind.PROGRESS, SAID)
        assert list(gone.receive_responses()) == []
    gone.close()
    assert caplog.records == []
    nowhere = DriverChannel(1, type(at)(host="no.such.host.invalid", port=1, token="t"))
    nowhere.send(DatagramKind.PROGRESS, SAID)
    assert not nowhere.is_open
    assert "no.such.host.invalid:1 is told nothing" in caplog.text


def are_tasks_heard(listening: ListenAddress) -> bool:
    """Whether their datagrams arrive there, and the answers arrive at the task."""
    channel = DatagramReceiver(listening, {DatagramKind.CLAIMS: lambda letter: b"given " + letter.body})
    with channel, closing(DriverChannel(1, channel.address_for(1))) as line:

        def answered() -> list[bytes]:
            line.send(DatagramKind.CLAIMS, b"1")
            return list(line.receive_responses())

        return b"given 1" in wait_until(answered, timeout_s=10, why="an answer") and channel.foreign_count == 0


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
def test_tasks_are_heard_by_either_version_of_ip(host: str) -> None:
    assert are_tasks_heard(ListenAddress(bind=host, host=host))


@pytest.mark.parametrize("bind", ["127.0.0.1", IPV6])
@pytest.mark.parametrize("hosts", [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_each_address_of_the_drivers_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, bind: str, hosts: tuple[str, str]
) -> None:
    resolve_to(monkeypatch, "driver.test", *hosts)
    assert are_tasks_heard(ListenAddress(bind=bind, host="driver.test"))


def test_what_comes_to_two_addresses_of_the_driver_is_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "driver.test", "127.0.0.1", "127.0.0.2")
    assert are_tasks_heard(ListenAddress(bind="0.0.0.0", host="driver.test"))


def test_the_first_address_that_can_be_listened_on_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "driver.test", "192.0.2.1", "127.0.0.1")  # the first one is not this machine's
    assert are_tasks_heard(ListenAddress(bind="driver.test", host="127.0.0.1"))


def test_a_port_that_is_taken_is_said() -> None:
    with DatagramReceiver(HERE, {}) as channel:
        port = channel.address_for(1).port
        with pytest.raises(BadRequest, match=f"127.0.0.1, UDP port {port}: .*in use"):
            DatagramReceiver(ListenAddress(port=port), {})
