"""Tasks whose configuration leads to another cluster: what it holds proves nothing, and is not saved or shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirror_core.model.errors import RemoteFault
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity.certificate_check import CertificateTask, LocalCertificateRunner
from mirror_core.parity.record_scan import RecordScanOptions, plan_record_scan, read_record_scan
from mirror_core.parity.salvage import SalvageTask, salvage_records, write_locally
from tests.cluster.copied import copied
from tests.support.comparisons import write_misled_configuration
from tests.support.kafka_clients import Pair
from tests.support.parity_topics import content, copy_bytes, send, twin_topics, whole

pytestmark = pytest.mark.cluster


def test_receipts_vouch_for_nothing_that_tasks_read_elsewhere(pair: Pair, tmp_path: Path) -> None:
    """The source's batches are those of the receipts."""
    made, misled = copied(pair, tmp_path, content(50)), str(write_misled_configuration(pair))

    def run(tasks: Sequence[CertificateTask]) -> object:
        return LocalCertificateRunner().run([replace(task, config_path=misled) for task in tasks])

    assert made.proved().verdict is ParityVerdict.PASSED
    found = made.proved(run=run)  # type: ignore[arg-type]  # rows
    assert (found.verdict, found.findings, found.records) == (ParityVerdict.INDETERMINATE, (), 0)


def twins(pair: Pair) -> str:
    topic = twin_topics(pair)
    send(pair.east, topic, content(20))
    copy_bytes(pair, topic, 20)
    return topic


@pytest.mark.parametrize("is_compared", [False, True])
def test_what_another_cluster_holds_is_not_saved(pair: Pair, tmp_path: Path, is_compared: bool) -> None:
    topic, misled = twins(pair), str(write_misled_configuration(pair))
    east, west = pair.identities

    def write(tasks: Sequence[SalvageTask], folder: Path) -> None:
        write_locally([replace(task, config_path=misled) for task in tasks], folder)

    cluster, against = (east, west) if is_compared else (west, None)
    with pytest.raises(RemoteFault, match=west.id):
        salvage_records(pair.config_path, cluster, [whole(topic, 20)], tmp_path / "tail", against, write=write)
    assert not (tmp_path / "tail").exists()


def test_what_another_cluster_holds_is_not_shown_as_a_table(pair: Pair) -> None:
    topic, misled = twins(pair), str(write_misled_configuration(pair))
    options = RecordScanOptions(config=str(pair.config_path), cluster="west", subscribe=topic)
    assert sum(batch.num_rows for batch in read_record_scan(plan_record_scan(options))) == 20
    elsewhere = plan_record_scan(msgspec.structs.replace(options, executorsConfig=misled))
    with pytest.raises(RemoteFault, match=pair.identities[1].id):
        list(read_record_scan(elsewhere))
