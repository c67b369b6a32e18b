"""Receipts and copies that were made anew: what vouched for the old one says nothing of the new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.decide.parity_result import ParityRow
from mirror_core.kafka.topics import delete_topic
from mirror_core.mirrors import partition_recovery
from mirror_core.mirrors.receipt_maintenance import compact_receipts
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ALTERED_KIND, ParityVerdict
from mirror_core.parity.certificate_check import (
    RECREATED_REASON,
    REPLACED_REASON,
    CertificateTask,
    LocalCertificateRunner,
)
from mirror_core.state.writer import StateWriter, make_control_id
from tests.cluster.copied import TOMORROW, Copied, copied, unproved
from tests.support.broker_faults import alter, damaged, in_place_of
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.kafka_clients import Pair, replace_topic
from tests.support.mirrored_topics import replicate
from tests.support.parity_topics import content, send

pytestmark = pytest.mark.cluster


def fail(made: Copied, kind: FailureKind) -> None:
    assert replicate(made.mirrored.link).failed
    assert {status.kind for status in made.mirrored.statuses.values()} == {kind}


def recopy(made: Copied) -> None:
    """Delete the mirror topic, as an operator does who was asked: the next epoch copies it anew."""
    link = made.mirrored.link
    partition_recovery.recover_partitions(
        link, plan_recovery(link, made.mirrored.state, None, RecoveryAction.RECOPY), lambda line: None
    )


@about_data()
def test_a_copy_made_anew_is_proved_by_its_own_receipts_and_not_by_those_of_the_one_before(
    pair: Pair, tmp_path: Path
) -> None:
    """Both copies hold the same records: what the old receipts say is true, and of another log."""
    made = copied(pair, tmp_path, content(100), content(30))
    partition, mirrored = Partition(made.topic, 0), made.mirrored
    compact_receipts(mirrored.link, made.receipts, TOMORROW)
    send(pair.west, made.topic, content(1))
    fail(made, FailureKind.FOREIGN)
    recopy(made)
    nothing = made.proved()
    assert (nothing.verdict, nothing.records, nothing.findings) == (ParityVerdict.INDETERMINATE, 0, ())
    mirrored.copy()
    assert unproved(made.scope) == {partition: [(0, 130)]}
    assert (made.proved().verdict, made.proved().records) == (ParityVerdict.INDETERMINATE, 0)

    send(pair.east, made.topic, content(20))
    mirrored.copy(str(made.receipts.path))
    assert (made.proved().verdict, made.proved().records) == (ParityVerdict.INDETERMINATE, 20)
    assert made.rebuilt().uncovered == {}
    found = made.proved()
    assert (found.verdict, found.reasons, found.records) == (ParityVerdict.PASSED, (), 150)
    before = made.scope.certified
    done = compact_receipts(mirrored.link, made.receipts, TOMORROW)
    assert (done.pieces_left_out, done.troubled) == (2, {}), "of both rounds of the old copy"
    assert made.scope.certified == before
    assert (made.proved().verdict, made.proved().verified_ends) == (ParityVerdict.PASSED, {partition: 150})

    alter(pair.west, partition, 41, in_place_of(b"\xfe value 41", b"\xfe value 14"))
    found = made.proved()
    assert (found.verdict, found.verified_ends) == (ParityVerdict.FAILED, {partition: 0})
    assert [(one.partition, one.offset, one.kind) for one in found.findings] == [(partition, 0, ALTERED_KIND)]


@about_data()
@pytest.mark.parametrize("value", [b"other", None])
def test_a_topic_that_is_made_anew_while_it_is_read_is_not_called_altered_and_not_proved(
    pair: Pair, tmp_path: Path, value: bytes | None
) -> None:
    """A recopy, as a rule, which goes on beside a proof that takes hours."""
    made = copied(pair, tmp_path, content(100))
    partition = Partition(made.topic, 0)

    def run(tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]:
        replace_topic(pair.west, made.topic)
        send(pair.west, made.topic, [replace(one, value=value or one.value) for one in content(100)])
        return LocalCertificateRunner().run(tasks)

    found = made.proved(run=run)
    assert (found.verdict, found.findings, found.records) == (ParityVerdict.INDETERMINATE, (), 0)
    assert found.verified_ends == {partition: 0}
    assert RECREATED_REASON in found.reasons[0]


@about_data()
def test_a_batch_that_cannot_be_read_is_found_by_its_place_also_without_the_source(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100), content(30))
    partition = Partition(made.topic, 0)
    with damaged(pair.west, partition, b"\xfe value 27"):
        found = made.proved()
    assert (found.verdict, found.findings) == (ParityVerdict.INDETERMINATE, ())
    assert [(one.partition, one.offset, one.kind) for one in found.damage_findings] == [
        (partition, 100, "unreadable on west")
    ]
    assert made.proved().damage_findings == ()


@about_data()
def test_a_copy_of_another_source_topic_of_the_same_name_is_not_held_against_receipts_of_the_first(
    pair: Pair, tmp_path: Path
) -> None:
    """And between the two, whatever is deleted and wherever a recopy is killed, nothing passes for proved."""
    made = copied(pair, tmp_path, content(100), content(30))
    partition, mirrored = Partition(made.topic, 0), made.mirrored
    replace_topic(pair.east, made.topic)
    other = [replace(one, value=b"other") for one in content(60)]
    send(pair.east, made.topic, other)
    fail(made, FailureKind.RECREATED)
    assert unproved(made.scope) == {partition: [(0, 130)]}

    seen = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    with (
        StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as writer,
        as_admin(pair.west) as client,
    ):
        partition_recovery.record_recopy(mirrored.link, writer, seen.costs[0])
        delete_topic(client, made.topic, seen.costs[0].destination_id or "")
    assert unproved(made.scope) == {partition: [(0, 130)]}, "it is FAILED, and no longer there"
    assert made.proved().reasons[0].startswith("of 1 of 1 partitions not all is vouched for, 130 offsets together")

    recopy(made)
    mirrored.copy(str(made.receipts.path))
    found = made.proved()
    assert (found.verdict, found.findings, found.verified_ends) == (ParityVerdict.PASSED, (), {partition: 60})
    done = compact_receipts(mirrored.link, made.receipts, TOMORROW)
    assert (done.pieces_left_out, *done.files.values()) == (2, (3, 1))
    assert (made.proved().verdict, made.proved().verified_ends) == (ParityVerdict.PASSED, {partition: 60})

    replace_topic(pair.west, made.topic)
    send(pair.west, made.topic, other[:7])
    scope = made.scope
    assert (unproved(scope), [*scope.ends]) == ({partition: [(0, 60)]}, [])
    found = made.proved(scope)
    assert (found.verdict, found.findings) == (ParityVerdict.INDETERMINATE, ())
    assert found.reasons[1].endswith(REPLACED_REASON)
    assert made.rebuilt().uncovered == {partition: (f"[0, 60): {REPLACED_REASON}",)}, (
        "said, and neither compared nor vouched for"
    )
