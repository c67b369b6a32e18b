"""A Spark Structured Streaming application is moved over and home again: its checkpoint holds on either cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drill.applications import come_home, fail_over
from tests.drill.structured import SOME, assert_handled_once, streaming
from tests.support.kafka_clients import Pair, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import at_work
from tests.support.topic_equality import assert_same

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.drill, pytest.mark.heavy]


def test_a_checkpoint_holds_over_there_and_home_again(pair: Pair, tmp_path: Path) -> None:
    with streaming(pair, tmp_path) as (application, lines):
        lines.start(pair.east)
        application.start(pair.east)
        mirrored = new_mirror(pair, tmp_path, application.topic)
        with at_work(mirrored, "local", tmp_path):
            application.works(SOME)
            fail_over(mirrored)  # under it: it was not told
        lines.denied()
        application.stop()

        lines.start(pair.west)
        application.start(pair.west)
        application.works(application.handled() + SOME)
        come_home(mirrored)
        lines.denied()
        application.stop()

        lines.start(pair.east)
        application.start(pair.east)
        application.works(application.handled() + SOME)
        lines.stop()
        application.stop()

        written = read_all(pair.east, application.topic)
        assert {record.value for record in written} >= set(lines.acknowledged)
        assert_handled_once(application, written)
        mirrored.copy()
        assert_same(pair, [application.topic])
        print(f"{len(written)} lines, of which {len(lines.acknowledged)} were acknowledged")
