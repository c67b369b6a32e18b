"""A comparison of both logs that takes longer than an epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirror_core.copy.log_ends import LogEndRequest, LogEndRequests, UnknownLogEnd
from mirror_core.copy.log_inspection import DivergenceFinder
from mirror_core.decide.gaps_and_resume import NO_KNOWN_OFFSET
from mirror_core.model.names import Partition
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

COMPARED_S = 5.0


def test_it_ends_in_a_longer_epoch_and_holds_up_nothing_else(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an unclean election; cut short, it begins anew."""
    topic, begun, ended = new_topic(pair.east, 2), list[float](), list[float]()
    long, other = Partition(topic, 0), Partition(topic, 1)
    seen = threading.Event()  # others are copied: no comparison ends before
    mirrored = new_mirror(pair, tmp_path, topic)

    def agreed(
        asking: LogEndRequests, wanted: Mapping[Partition, LogEndRequest], unsure: dict[Partition, UnknownLogEnd]
    ) -> dict[Partition, int]:
        return {long: NO_KNOWN_OFFSET} if long in wanted and not ended else {}

    def compare(
        divergence: DivergenceFinder, partition: Partition, position: int, agreed_end: int, doubted_from: int | None
    ) -> None:
        begun.append(time.monotonic())

        def is_over() -> bool:
            divergence._check_cancelled()
            return seen.is_set() and time.monotonic() >= begun[-1] + COMPARED_S

        wait_until(is_over, timeout_s=TIMEOUT_S, why="others are not copied while it compares")
        ended.append(time.monotonic())

    for partition in (long, other):
        produce(pair.east, topic, 10, partition=partition.index)
    mirrored.copy()
    monkeypatch.setattr(LogEndRequests, "_fetch_agreed_ends", agreed)
    monkeypatch.setattr(DivergenceFinder, "find_first_divergence", compare)
    with driving(mirrored, epoch_s=1.5) as said:
        wait_until(lambda: begun, timeout_s=TIMEOUT_S, why="it is not compared")
        for partition in (long, other):
            produce(pair.east, topic, 10, partition=partition.index)
        wait_until(lambda: len(read_all(pair.west, topic)) == 30, timeout_s=TIMEOUT_S, why="others are not copied")
        assert not ended
        seen.set()
        wait_until(
            lambda: len(read_all(pair.west, topic)) == 40, timeout_s=TIMEOUT_S, why="the comparison does not end"
        )
        wait_until(
            lambda: any("epochs last 1.5 s again" in line for line in said), timeout_s=TIMEOUT_S, why="epochs stay long"
        )
    assert len(begun) > 1, "nothing was cut short"
    # Said again, if one had not come to compare before its epoch was over.
    longer = next(line for line in said if "epochs last longer" in line)
    assert longer.split(":")[0] == format_sentence("comparing_logs_longer_than_epoch", "1 partition", "1.5")
    assert read_all(pair.east, topic) == read_all(pair.west, topic)
