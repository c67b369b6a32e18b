"""A Kafka Streams application, exactly once, is moved over and home again: nothing but its address changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drill.applications import come_home, fail_over, words
from tests.drill.streams import (
    INPUT,
    OUTPUT,
    PATIENCE_S,
    assert_lines_are_there,
    counted,
    counting,
    miscounted,
)
from tests.support.kafka_clients import Pair, read_all, read_topics, read_topics_aiokafka
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import at_work
from tests.support.topic_equality import assert_same, ends
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


def test_exactly_once_stays_so_over_there_and_home_again(pair: Pair, tmp_path: Path) -> None:
    with counting(pair, tmp_path) as (application, lines):
        lines.start(pair.east)
        application.start(pair.east, "state")
        application.works_on(pair.east)
        mirrored = new_mirror(pair, tmp_path, "streams-.*", f"{application.name}-.*", groups=(application.name,))
        with at_work(mirrored, "local", tmp_path):
            application.works_on(pair.east)
            fail_over(mirrored)  # under both of them: neither was told
        lines.denied()
        application.stop()

        topics = [INPUT, OUTPUT, *application.internal]
        began = ends(pair.west, topics)
        lines.start(pair.west)
        application.start(pair.west, "state")
        application.works_on(pair.west)

        why = "its dead members there are gone: for a group that has some, nobody commits"
        wait_until(lambda: application.gone_from(pair.east), timeout_s=PATIENCE_S, why=why)
        come_home(mirrored)
        lines.denied()
        application.stop()
        ceased = ends(pair.west, topics)

        lines.start(pair.east)
        application.start(pair.east, "another")  # its state is made anew of the changelog
        application.works_on(pair.east)
        lines.stop()
        wanted = words(read_all(pair.east, INPUT)).total()
        wait_until(lambda: counted(pair.east) >= wanted, timeout_s=PATIENCE_S, why=f"all {wanted} words are counted")
        application.stop()

        mirrored.copy()
        for cluster in (pair.east, pair.west):
            for read in (read_topics, read_topics_aiokafka):
                found = read(cluster, (INPUT, OUTPUT))
                assert_lines_are_there(found, lines.acknowledged)
                wrong = miscounted(found)
                assert not wrong, f"{len(wrong)} words, such as {dict(list(wrong.items())[:3])}"
        assert_same(pair, topics, own=(began, ceased))
        print(f"{wanted} counts of {len(lines.acknowledged)} lines")
