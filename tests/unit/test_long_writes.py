"""A write to the state topic that took longer than brokers let a transaction live."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import MirrorName
from mirror_core.state.writer import StateWriter, control_id


def test_a_write_that_took_too_long_is_not_said_to_be_anothers_doing(tmp_path: Path) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    writer = StateWriter(load_config(path).cluster("west"), control_id(MirrorName("m")))
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    writer._opened = time.monotonic() - 0.5
    quick = writer._refused(fenced)
    writer._opened -= 13.7
    slow = writer._refused(fenced)
    assert isinstance(quick, LostOwnership)
    assert isinstance(slow, LostOwnership), "it may be another's all the same: who acts on it must believe so"
    assert "took" not in str(quick).split("controls this mirror")[1]
    assert "the write took 14 s, and brokers end one after 10 s" in str(slow)
