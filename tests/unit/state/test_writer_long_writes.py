"""A write to the state topic that fails: whose doing it was."""

from __future__ import annotations

import struct
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from kio.schema.end_txn.v2.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from mirror_core.kafka.config import load_config
from mirror_core.kafka.transactional_producer import TransactionalProducer
from mirror_core.model.errors import LostOwnership, RemoteFault, Unreachable
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName
from mirror_core.state.writer import StateWriter, make_control_id

UNKNOWN, FENCED = ErrorCode.unknown_server_error, ErrorCode.producer_fenced


@pytest.fixture
def writer(tmp_path: Path) -> StateWriter:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    return StateWriter(load_config(path).cluster("west"), make_control_id(MirrorName("m")), timeout_s=0.3)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[ErrorCode]:
    """How brokers answer who asks for the end of a transaction: one after the other, and the last one for good."""
    codes: list[ErrorCode] = []

    def exchanged(*_: object) -> EndTxnResponse:
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        return EndTxnResponse(throttle_time=i32Timedelta.parse(timedelta(0)), error_code=code)

    monkeypatch.setattr(TransactionalProducer, "_find_coordinator", lambda self: (1, ErrorCode.none))
    monkeypatch.setattr(TransactionalProducer, "_call_broker", exchanged)
    monkeypatch.setattr(TransactionalProducer, "_add_partition", lambda self, deadline: None)
    return codes


def test_who_is_fenced_in_the_middle_of_a_commit_is_told_so(writer: StateWriter, ends: list[ErrorCode]) -> None:
    """Seen on brokers: the end beside a takeover is answered by an unknown error, and only the next one tells why."""
    ends += [UNKNOWN, UNKNOWN, FENCED]
    writer.timeout_s = 60.0  # it ends with the last answer
    with pytest.raises(LostOwnership):
        writer.put()


def test_an_unknown_error_that_stays_is_said(writer: StateWriter, ends: list[ErrorCode]) -> None:
    ends += [UNKNOWN]
    with pytest.raises(Unreachable, match=r"state topic __mirrorbook_state: cannot write: .*UNKNOWN_SERVER_ERROR"):
        writer.put()


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ii", 1, 0),
        struct.pack(">ih", 1, 5) + b"__m",
        struct.pack(">ihiihqqqihi", 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_of_ours(
    writer: StateWriter, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    frame = struct.pack(">i", 7) + answer  # the third would be well, were it not the answer to another request
    connection = SimpleNamespace(
        where="broker 1",
        send=lambda parts: None,
        next_id=lambda: 9,
        receive=lambda: bytearray(frame),
        renew_session=lambda: None,
    )
    monkeypatch.setattr(TransactionalProducer, "_add_partition", lambda self, deadline: None)
    monkeypatch.setattr(TransactionalProducer, "_abort", lambda self, timeout_s: None)
    monkeypatch.setattr(TransactionalProducer, "_find_leader", lambda self: 1)
    monkeypatch.setattr(
        TransactionalProducer, "_call_broker", lambda self, broker, limit_s, exchange: exchange(connection)
    )
    with pytest.raises(RemoteFault, match="broker 1: Produce answer"):
        writer.put(Lease(mirror=MirrorName("m"), owner="o", generation=1, heartbeat_ms=1, writers_until_ms=1))


def test_a_write_that_took_too_long_is_not_said_to_be_anothers_doing(writer: StateWriter) -> None:
    writer._open_since = time.monotonic() - 0.5
    quick = writer._make_lost_error("write")
    writer._open_since -= 13.7
    slow = writer._make_lost_error("write")
    assert isinstance(slow, LostOwnership), "it may be another's all the same: who acts on it must believe so"
    assert "took" not in str(quick).split("controls this mirror")[1]
    assert "the write took 14 s, and brokers end one after 10 s" in str(slow)
