"""Connections that are cut after markers were sent: nobody knows how many of them will be appended, and when."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from mirror_core.kafka.connection import CLIENT_ID
from mirror_core.kafka.marker_link import MarkerLink
from mirror_core.model.errors import Unreachable
from mirror_core.wire import txn_markers
from tests.support.gap_logs import assert_equal, transaction, transactional
from tests.support.kafka_clients import Pair, new_topic
from tests.support.mirrored_topics import new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PARTITIONS = 6
CUTS = 6
"""In this test; hundreds were survived by hand. Each costs a second of quiet."""
RESET = struct.pack("ii", 1, 0)


class Cutter:
    """Cuts the connection between a request for markers and its answer, politely or by a reset: at every third one."""

    def __init__(self, seed: int, limit: int) -> None:
        self.chance = random.Random(seed)
        self.limit = limit
        self.calls = self.cuts = 0

    def __call__(self, link: MarkerLink, entries: Iterable[txn_markers.MarkerEntry]) -> None:
        self.calls += 1
        if self.cuts >= self.limit or self.calls % 3:
            ASK(link, entries)
            return
        self.cuts += 1
        link.connection.send([txn_markers.encode_request(entries, link.connection.next_id(), CLIENT_ID)])
        if self.chance.random() < 0.5:
            link.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        link.connection.close()
        raise Unreachable("cut by the test")


ASK = MarkerLink.send_markers


@pytest.mark.parametrize("seed", [1])
def test_no_marker_too_many_and_none_too_few_whatever_is_cut(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    topic = new_topic(pair.east, partitions=PARTITIONS)
    producer = transactional(pair.east)
    chance = random.Random(seed)
    for _ in range(40):
        chosen = sorted(chance.sample(range(PARTITIONS), 3))
        # A committed one leaves a gap of one offset, an aborted one a wide gap.
        transaction(producer, topic, chance.choice([1, 3, 20]), commit=chance.random() < 0.6, partitions=chosen)
    cutter = Cutter(seed, CUTS)
    monkeypatch.setattr(MarkerLink, "send_markers", lambda link, entries: cutter(link, entries))
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    assert cutter.cuts == CUTS
    assert_equal(pair, topic)
