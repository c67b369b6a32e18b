"""A destination where the mirror may not write markers: gaps are hidden records, and nobody is ever handed one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from mirror_core.copy import task as copy_task
from mirror_core.copy.batch_producer import InFlightBatch
from mirror_core.kafka.config import load_config
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink
from mirror_core.mirrors.mirror_creation import choose_gap_method, choose_reverse_gap_method, find_gap_method
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from tests.drill.tasks import Tasks
from tests.support.gap_assignments import assignment
from tests.support.gap_logs import assert_equal, bounds, transaction, transactional, write
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.managed_service import managed
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import PATIENCE_S, Progress
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def hosted(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    with managed(pair, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("rights", "gaps"),
    [
        ([], GapFilling.HIDDEN),
        ([AclOperation.DESCRIBE, AclOperation.CREATE], GapFilling.HIDDEN),
        ([AclOperation.CLUSTER_ACTION], GapFilling.MARKERS),
        ([AclOperation.ALTER], GapFilling.MARKERS),
    ],
)
def test_what_the_data_principal_may_do_decides_how_gaps_are_filled(
    pair: Pair, tmp_path: Path, rights: list[AclOperation], gaps: GapFilling
) -> None:
    with managed(pair, tmp_path, *rights) as made:
        assert find_gap_method(load_config(made.config_path).cluster("west")) is gaps


def test_hidden_records_can_be_chosen_and_go_home_so(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic, gaps=GapFilling.HIDDEN)
    assert mirrored.link.mirror.gaps is GapFilling.HIDDEN
    assert choose_reverse_gap_method(mirrored.link.mirror, mirrored.link) is GapFilling.HIDDEN
    assert (
        choose_reverse_gap_method(replace(mirrored.link.mirror, gaps=GapFilling.MARKERS), mirrored.link)
        is GapFilling.MARKERS
    )


def test_markers_cannot_be_chosen_where_they_may_not_be_written(hosted: Pair, tmp_path: Path) -> None:
    west = load_config(hosted.config_path).cluster("west")
    assert choose_gap_method(west, None) is GapFilling.HIDDEN
    with pytest.raises(Refused, match="grant it CLUSTER_ACTION"):
        choose_gap_method(west, GapFilling.MARKERS)
    forced = new_mirror(hosted, tmp_path, new_topic(hosted.east))
    assert choose_reverse_gap_method(forced.link.mirror, forced.link) is GapFilling.MARKERS, "nobody chose it"


def test_transactions_are_copied_and_taken_up_again_in_the_middle_of_gaps(hosted: Pair, tmp_path: Path) -> None:
    topic = new_topic(hosted.east, partitions=2)
    one, two = transactional(hosted.east), transactional(hosted.east, compression_type="zstd")
    mirrored = new_mirror(hosted, tmp_path, topic)
    assert mirrored.link.mirror.gaps is GapFilling.HIDDEN
    for turn in range(2):
        transaction(one, topic, 3, commit=turn % 2 == 0, partitions=(0, 1))
        produce(hosted.east, topic, 2, partition=turn % 2)
        one.begin_transaction()
        write(one, topic, 2, (0, 1))
        transaction(two, topic, 4, commit=turn % 2 == 1, partitions=(0, 1))
        one.abort_transaction(60)
        mirrored.copy()
    assert_equal(hosted, topic, records=2 * (3 + 4) + 2 * 2)


def test_whatever_is_cut_the_copy_and_its_receipts_are_exact(
    hosted: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, sent, cuts = new_topic(hosted.east), 0, 0
    mirrored = new_mirror(hosted, tmp_path, topic)
    mirrored.copy()  # creates the mirror topic
    producer = transactional(hosted.east)
    for turn in range(15):
        transaction(producer, topic, 1 + turn % 7, commit=turn % 3 != 0)
    send = ProduceLink.send

    def send_and_perhaps_cut(
        link: ProduceLink[InFlightBatch], rows: Sequence[ProduceBatch[InFlightBatch]], patience_s: float
    ) -> None:
        nonlocal sent, cuts
        send(link, rows, patience_s)
        sent += 1
        if cuts < 6 and sent % 2 == 0:
            cuts += 1
            link.connection.close()
            raise Unreachable("cut by the test")

    monkeypatch.setattr(ProduceLink, "send", send_and_perhaps_cut)
    now_ms = int(time.time() * 1000)
    made = assignment(mirrored, 1, now_ms, now_ms + 300_000)
    end = Offset(bounds(hosted.east, topic)[Partition(topic, 0)][1])
    report = copy_task.run(replace(made, partitions=tuple(replace(p, stop_offset=end) for p in made.partitions)))
    assert cuts == 6
    assert report.failures == ()
    assert_equal(hosted, topic)
    [receipt] = report.receipts
    assert receipt.records == len(read_all(hosted.east, topic))
    assert receipt.gaps == end - receipt.records


@pytest.mark.slow
def test_copiers_that_are_killed_and_two_at_once_leave_an_exact_copy(hosted: Pair, tmp_path: Path) -> None:
    topic, chance = new_topic(hosted.east, partitions=3), random.Random(5)
    mirrored = new_mirror(hosted, tmp_path, topic)
    mirrored.copy()
    producer = transactional(hosted.east)
    tasks = Tasks(mirrored, (topic,), tmp_path, chance)
    here = Progress(mirrored, "west", topic)

    def grows(before: int) -> bool:
        tasks.start()  # two at most; each ends by its own clock
        return here.total() > before

    with closing(tasks):
        for _ in range(2):
            before = here.total()
            for turn in range(15):
                transaction(producer, topic, 1 + turn % 5, commit=turn % 3 != 0, partitions=range(turn % 3 + 1))
                tasks.start()
            wait_until(partial(grows, before), timeout_s=PATIENCE_S, why="one of them copies")
            tasks.kill()
    assert tasks.failures == []
    mirrored.copy()
    assert_equal(hosted, topic)
