"""A write to the state topic that fails: whose doing it was."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import LostOwnership, RemoteFault
from mirror_core.model.names import MirrorName
from mirror_core.state.writer import StateWriter, control_id


@pytest.fixture
def writer(tmp_path: Path) -> StateWriter:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    return StateWriter(load_config(path).cluster("west"), control_id(MirrorName("m")))


class Refusing(Producer):  # type: ignore[misc,no-any-unimported,unused-ignore]
    """Brokers that end each transaction with one error and refuse its abort with another."""

    def __init__(self, commit: KafkaError, abort: KafkaError) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        self.commit, self.abort = commit, abort

    def begin_transaction(self) -> None: ...

    def commit_transaction(self, *_: object) -> None:
        raise KafkaException(self.commit)

    def abort_transaction(self, *_: object) -> None:
        raise KafkaException(self.abort)


@pytest.mark.parametrize(
    ("abort", "expected"),
    [
        (KafkaError._FENCED, LostOwnership),
        (KafkaError.PRODUCER_FENCED, LostOwnership),
        (KafkaError._STATE, RemoteFault),
        (KafkaError._CONFLICT, RemoteFault),
    ],
)
def test_who_is_fenced_in_the_middle_of_a_commit_is_told_so(
    writer: StateWriter, abort: int, expected: type[Exception]
) -> None:
    """Seen on brokers: EndTxn beside a takeover is answered by an unknown error, and only the abort tells why."""
    unknown = KafkaError(KafkaError.UNKNOWN, "unknown", False, False, True)
    writer._producer = Refusing(unknown, KafkaError(abort))
    with pytest.raises(expected):
        writer.put()


def test_a_write_that_took_too_long_is_not_said_to_be_anothers_doing(writer: StateWriter) -> None:
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    writer._opened = time.monotonic() - 0.5
    quick = writer._refused(fenced)
    writer._opened -= 13.7
    slow = writer._refused(fenced)
    assert isinstance(quick, LostOwnership)
    assert isinstance(slow, LostOwnership), "it may be another's all the same: who acts on it must believe so"
    assert "took" not in str(quick).split("controls this mirror")[1]
    assert "the write took 14 s, and brokers end one after 10 s" in str(slow)
