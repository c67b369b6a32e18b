"""A destination where the mirror may not write markers: gaps are hidden records, and nobody is ever handed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from mirror_core.engine.preflight import gaps_on
from mirror_core.kafka.config import load_config
from mirror_core.model.mirror import Gaps
from tests.brokers import Pair, new_topic, produce
from tests.logs import assert_equal, transaction, transactional, write
from tests.managed import managed
from tests.mirroring import new_mirror

pytestmark = pytest.mark.cluster


@pytest.fixture
def hosted(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    with managed(pair, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("rights", "gaps"),
    [
        ([], Gaps.HIDDEN),
        ([AclOperation.DESCRIBE, AclOperation.CREATE], Gaps.HIDDEN),
        ([AclOperation.CLUSTER_ACTION], Gaps.MARKERS),
        ([AclOperation.ALTER], Gaps.MARKERS),
    ],
)
def test_what_the_data_principal_may_do_decides_how_gaps_are_filled(
    pair: Pair, tmp_path: Path, rights: list[AclOperation], gaps: Gaps
) -> None:
    with managed(pair, tmp_path, *rights) as made:
        assert gaps_on(load_config(made.config_path).cluster("west")) is gaps


def test_transactions_are_copied_and_taken_up_again_in_the_middle_of_gaps(hosted: Pair, tmp_path: Path) -> None:
    topic = new_topic(hosted.east, partitions=2)
    one, two = transactional(hosted.east), transactional(hosted.east, compression_type="zstd")
    mirrored = new_mirror(hosted, tmp_path, topic)
    assert mirrored.link.mirror.gaps is Gaps.HIDDEN
    for turn in range(4):
        transaction(one, topic, 3, commit=turn % 2 == 0, partitions=(0, 1))
        produce(hosted.east, topic, 2, partition=turn % 2)
        one.begin_transaction()
        write(one, topic, 2, (0, 1))
        transaction(two, topic, 4, commit=turn % 2 == 1, partitions=(0, 1))
        one.abort_transaction(60)
        mirrored.copy()
    assert_equal(hosted, topic, records=2 * (2 * 3 + 2 * 4) + 4 * 2)
