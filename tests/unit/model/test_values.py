"""Values that travel: between threads, tasks, clusters and versions. What the rest of the house takes for granted."""

from __future__ import annotations

import pickle
import pkgutil
import time
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any

import msgspec
import pytest

from mirror_core import model
from mirror_core.model import errors
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.mirror import (
    DesiredState,
    FailureKind,
    GapFilling,
    Lease,
    Mirror,
    PartitionState,
    PartitionStatus,
    is_lease_fresh,
)
from mirror_core.model.names import MirrorName, Offset, Partition, format_reverse_name
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.model.run import FailbackStrategy, PlanStep, RunKind, RunMode, RunState, StepState
from mirror_core.model.sync_state import WRITING_ACTIONS, DriftRow, SyncAction, SyncCategory
from mirror_core.model.task_messages import (
    Assignment,
    DriverAddress,
    PartitionAssignment,
    PartitionFailure,
    Receipt,
    ReceiptPiece,
    TaskReport,
)
from mirror_core.model.text import format_bytes
from mirror_core.model.timing import now_ms

MODULES = [import_module(f"mirror_core.model.{found.name}") for found in pkgutil.iter_modules(model.__path__)]
VALUES: dict[str, type[Any]] = {
    kind.__name__: kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
}


@pytest.mark.parametrize("kind", VALUES.values(), ids=VALUES)
def test_values_can_neither_be_changed_nor_mixed_up(kind: type[Any]) -> None:
    """Threads share them; of five strings in a row two are soon exchanged; there are many: none has a dictionary."""
    value: object = object.__new__(kind)
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)
    assert not hasattr(value, "__dict__")
    if [field.default is field.default_factory is MISSING for field in fields(kind)].count(True) > 2:
        with pytest.raises(TypeError, match="positional"):
            kind(*fields(kind))


WORDS: dict[type[StrEnum], str] = {
    PartitionState: "UNKNOWN LOG_ALIGNMENT MIRRORING PAUSING PAUSED STOPPING STOPPED FAILED",
    FailureKind: "denied gone recreated replaced occupied foreign diverged corrupt gap-limit refused unkeyed recopying "
    "other",
    GapFilling: "markers hidden",
    DesiredState: "STARTED PAUSED STOPPED",
    RunKind: "failover failback",
    RunMode: "planned unplanned",
    FailbackStrategy: "none recreate handover offline replica",
    RunState: "RUNNING DONE ABORTING ABORTED",
    StepState: "STARTED DONE FAILED",
    ParityVerdict: "passed failed indeterminate",
    AclPurpose: "COPIED STAGED PROMOTED FENCE DEMOTED",
    SyncCategory: "topics configs acls groups",
    SyncAction: "create widen adopt set remove commit stage keep equal skip refuse",
}


@pytest.mark.parametrize(("kind", "words"), WORDS.items(), ids=lambda item: getattr(item, "__name__", ""))
def test_the_words_in_the_state_topic_and_in_json_stay_what_they_are(kind: type[StrEnum], words: str) -> None:
    """Old records hold them, scripts compare them: one that is changed makes what is stored unreadable."""
    for word in words.split():
        assert kind(word).name == word.upper().replace("-", "_")


@pytest.mark.parametrize("kind", [Resource, Pattern, Operation, Permission])
def test_kafkas_own_words_are_written_as_kafka_writes_them(kind: type[StrEnum]) -> None:
    assert [str(member) for member in kind] == [member.name for member in kind]


def test_a_mirrors_record_without_what_came_later_is_read_as_it_was_meant() -> None:
    old = (
        b'{"name":"m","source":"east","destination":"west","source_id":"E","destination_id":"W","topics":["a"],'
        b'"producer_id":4611686018427387904,"desired":"STARTED","created_ms":1}'
    )
    mirror = msgspec.json.decode(old, type=Mirror)
    assert (mirror.exclude_topics, mirror.groups, mirror.throttle) == ((), (".*",), None)
    assert mirror.gaps is GapFilling.MARKERS
    assert (mirror.desired, mirror.producer_id) == (DesiredState.STARTED, 1 << 62)


def test_a_status_without_what_came_later_neither_failed_nor_stopped() -> None:
    old = b'{"partition":{"topic":"a","index":3},"state":"MIRRORING","source_topic_id":"s","destination_topic_id":"d"}'
    status = msgspec.json.decode(old, type=PartitionStatus)
    assert status.partition == Partition("a", 3)
    assert {status.reason, status.failed_at, status.kind, status.lmo, status.source_epoch} == {None}


def test_a_lease_is_held_until_somebody_says_otherwise() -> None:
    old = b'{"mirror":"m","owner":"x","generation":3,"heartbeat_ms":5,"writers_until_ms":6}'
    assert msgspec.json.decode(old, type=Lease).released is False


def test_an_entry_that_says_no_more_is_a_grant_by_name_from_any_host() -> None:
    acl = Acl(resource=Resource.TOPIC, name="orders", principal="User:app", operation=Operation.WRITE)
    assert (acl.pattern, acl.host, acl.permission) == (Pattern.LITERAL, "*", Permission.ALLOW)
    assert str(acl) == "ALLOW WRITE on TOPIC literal 'orders' for User:app from *"
    denied = Acl(
        resource=Resource.GROUP,
        name="g",
        pattern=Pattern.PREFIXED,
        principal="User:*",
        host="10.0.0.1",
        operation=Operation.READ,
        permission=Permission.DENY,
    )
    assert str(denied) == "DENY READ on GROUP prefixed 'g' for User:* from 10.0.0.1"
    assert sorted([acl, denied]) == [denied, acl], "they have an order, so that equal plans look equal"


def assignment() -> Assignment:
    return msgspec.json.decode(
        b'{"mirror":"m","source":"east","destination":"west","config_path":"c","producer_id":7,"partitions":'
        b'[{"partition":{"topic":"a","index":0},"source_topic_id":"s","destination_topic_id":"d"}],'
        b'"epoch":1,"task":2,"start_ms":3,"stop_ms":4}',
        type=Assignment,
    )


def test_a_task_that_is_told_no_more_copies_by_markers_to_the_end_of_its_time() -> None:
    told = assignment()
    assert told.gaps is GapFilling.MARKERS
    assert (told.throttle, told.driver_address) == (None, None)
    assert told.max_bytes_in_flight == 64 * 1024 * 1024
    (assigned,) = told.partitions
    assert (assigned.stop_offset, assigned.source_epoch) == (None, None)


def test_what_a_task_is_told_and_tells_survives_the_way_to_an_executor() -> None:
    receipt = Receipt(
        mirror=assignment().mirror, partition=Partition("a", 0), epoch=1, task=2, first=Offset(0), next=Offset(9),
        records=8, gaps=1, batches=2, bytes=90,
        pieces=(ReceiptPiece(first=Offset(0), next=Offset(9), records=8, digest="a" * 32),),
        source_topic_id="", destination_topic_id="", source_end=None, started_ms=3, ended_ms=4,
    )  # fmt: skip
    failure = PartitionFailure(partition=Partition("a", 1), reason="gone", offset=None)
    report = TaskReport(receipts=(receipt,), failures=(failure,), cpu_s=0.5)
    assert failure.kind is FailureKind.OTHER
    assert (report.aligned, report.retry_reason) == ((), "")
    claims = msgspec.json.decode(b'{"host":"h","port":1,"token":"t"}', type=DriverAddress)
    for value in (assignment(), assignment().partitions[0], report, claims):
        assert pickle.loads(pickle.dumps(value)) == value
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_the_way_home_is_a_mirror_of_its_own() -> None:
    assert format_reverse_name(MirrorName("orders")) == "orders-back"


@pytest.mark.parametrize(("age_ms", "fresh"), [(-1_000, True), (0, True), (9_999, True), (10_001, False)])
def test_a_lease_without_a_beat_for_ten_seconds_belongs_to_nobody(age_ms: int, fresh: bool) -> None:
    lease = Lease(mirror=MirrorName("m"), owner="x", generation=1, heartbeat_ms=50_000, writers_until_ms=0)
    assert is_lease_fresh(lease, 50_000 + age_ms) is fresh
    assert not is_lease_fresh(replace(lease, released=True), 50_000 + age_ms)
    assert not is_lease_fresh(None, 50_000 + age_ms)


def test_partitions_sort_by_topic_and_then_by_number() -> None:
    mixed = [Partition("b", 0), Partition("a", 10), Partition("a", 9)]
    assert [str(partition) for partition in sorted(mixed)] == ["a-9", "a-10", "b-0"]
    assert len({Partition("a", 1), Partition("a", 1)}) == 1


def test_a_range_to_compare_is_of_a_living_topic_that_keeps_its_records_unless_said() -> None:
    asked = ParityRange(partition=Partition("a", 0), start=Offset(0), end=Offset(1))
    assert (asked.stopped_at, asked.compacted, asked.removes_unkeyed) == (None, False, False)
    result = ParityResult(verdict=ParityVerdict.PASSED, records=1, chunks=1)
    assert (result.findings, result.reasons, result.report, result.seconds) == ((), (), "", 0)
    assert dict(result.verified_ends) == {}


def test_a_step_can_be_taken_back_unless_said() -> None:
    assert PlanStep(name="fence", action="deny").reversible


def test_only_actions_that_write_count_as_changes() -> None:
    assert {str(action) for action in SyncAction if action not in WRITING_ACTIONS} == {
        "keep",
        "equal",
        "skip",
        "refuse",
    }
    row = DriftRow(part=SyncCategory.TOPICS, subject="a", source="", destination="", action=SyncAction.CREATE)
    assert row.done is False, "a plan is not an action"
    assert row.reason == ""


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        (errors.MirrorError, 1, False),
        (errors.BadRequest, 2, False),
        (errors.Refused, 3, False),
        (errors.Indeterminate, 4, False),
        (errors.LostOwnership, 5, False),
        (errors.RemoteFault, 1, False),
        (errors.Unreachable, 1, True),
        (errors.MissingPermission, 2, False),
        (errors.PartitionFailed, 1, False),
    ],
)
def test_the_class_of_an_error_decides_what_scripts_and_airflow_do(
    kind: type[errors.MirrorError], code: int, retryable: bool
) -> None:
    assert (kind.exit_code, kind.retryable) == (code, retryable)
    assert issubclass(kind, errors.MirrorError)


def test_what_a_cluster_did_to_us_is_told_apart_from_what_we_were_asked() -> None:
    faults = (errors.Unreachable, errors.MissingPermission, errors.PartitionFailed)
    assert all(issubclass(kind, errors.RemoteFault) for kind in faults)
    assert not issubclass(errors.BadRequest, errors.RemoteFault)


def test_a_refusal_carries_every_reason() -> None:
    refused = errors.Refused("failover of m", (reason for reason in ("not fenced", "lag unknown")), "not_ready")
    assert refused.summary == "failover of m"
    assert refused.reasons == ("not fenced", "lag unknown")
    assert str(refused) == "failover of m:\n  - not fenced\n  - lag unknown"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (999_940, "999.9 kB"),
        (2_000_000_000, "2.0 GB"),
        (3_000_000_000_000, "3.0 TB"),
        (4_321_000_000_000_000, "4,321.0 TB"),
    ],
)
def test_bytes_are_said_as_people_say_them(value: int, words: str) -> None:
    assert format_bytes(value) == words


def test_the_clock_counts_milliseconds_since_1970() -> None:
    before = time.time() * 1000
    assert before - 1 <= now_ms() <= time.time() * 1000


def test_the_ledger_says_whose_an_entry_is() -> None:
    stored = (
        b'{"mirror":"m","cluster":"west","purpose":"STAGED","acl":{"resource":"TOPIC","name":"a","principal":"User:x",'
        b'"operation":"WRITE"}}'
    )
    entry = msgspec.json.decode(stored, type=LedgerEntry)
    assert (entry.purpose, entry.acl.operation, entry.acl.host) == (AclPurpose.STAGED, Operation.WRITE, "*")


def test_a_partition_may_be_copied_up_to_a_given_offset() -> None:
    assigned = PartitionAssignment(
        partition=Partition("a", 0), source_topic_id="s", destination_topic_id="d", stop_offset=Offset(0)
    )
    assert assigned.stop_offset == 0, "offset 0 is an end, too"
