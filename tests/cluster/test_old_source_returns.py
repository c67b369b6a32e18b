"""The old source comes back, with writers that were never told: it is fenced at once, and stays so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.fence_state import FenceNextAction, FenceState, find_late_ranges
from mirror_core.kafka.acl_requests import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.mirrors import fence_watcher
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.acl import Permission
from mirror_core.model.errors import LostOwnership
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.fence_acls import deny_writes
from tests.support.broker_faults import Harm, killed, suspended, woken_at_once
from tests.support.checked_threads import beside
from tests.support.cluster_admin import restore_rights, rights_of
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, grant, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.pending_fences import TIMEOUT_S, copied, debt_of, lifted_by_another, promoted, stood, watching
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@dataclass
class Stubborn:
    """A producer that retries for ever, and how it was answered."""

    acked: list[int] = field(default_factory=list)
    refused: int = 0


@contextmanager
def never_told(pair: Pair, topic: str, **properties: object) -> Iterator[Stubborn]:
    """A producer that goes on and on, whatever it is answered."""
    stop, found = threading.Event(), Stubborn()

    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            found.acked.append(offset)
        elif error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            found.refused += 1

    def loop() -> None:
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "linger.ms": 0, "log_level": 0}
        producer = Producer({**pair.east.client_config("app"), **quick, **properties})
        while not stop.is_set():
            try:
                if len(producer) < 100:
                    producer.produce(topic, b"never told", partition=0, on_delivery=delivered)
            except KafkaException:  # librdkafka knows for a while that it may not
                stop.wait(0.02)
            producer.poll(0.005)
        producer.purge()
        producer.flush(10)

    with beside(loop, stop.set, name="never told"):
        yield found


def end_of(mirrored: Mirrored, partition: Partition) -> Offset:
    with ClusterClient(mirrored.link.source) as client:
        return list_offsets(client, [partition], OffsetPoint.LOG_END)[partition]


def stands(pair: Pair, folder: Path, topic: str) -> Mirrored:
    """A mirror that was failed over while its source hung, and whose fence stands there by now."""
    produce(pair.east, topic, 20)
    mirrored = copied(pair, folder, topic)
    with suspended(pair.east):
        promoted(mirrored)
    found = wait_until(lambda: stood(check_fence(mirrored.link)), timeout_s=TIMEOUT_S, why="east answers again")
    assert found is not None
    assert found.action is FenceNextAction.APPLY
    return mirrored


@pytest.mark.parametrize("harm", [killed, pytest.param(woken_at_once, marks=pytest.mark.slow)])
def test_a_source_that_comes_back_with_writers_is_fenced_and_what_slipped_in_is_named(
    pair: Pair, tmp_path: Path, harm: Harm
) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored, partition = copied(pair, tmp_path, topic), Partition(topic, 0)
    with (
        ExitStack() as harmed,
        never_told(pair, topic, **{"enable.idempotence": True}) as safe,
        never_told(pair, topic, **{"acks": 1, "retries": 1_000_000}) as plain,
    ):
        wait_until(lambda: safe.acked and plain.acked, timeout_s=TIMEOUT_S, why="both write")
        harmed.enter_context(harm(pair.east))
        assert promoted(mirrored).applied_at_ms is None
        before = len(safe.acked), len(plain.acked)
        with watching(mirrored) as watched:
            wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="the watcher sees that east is silent")
            harmed.close()
            back_ms = now_ms()
            wait_until(lambda: debt_of(mirrored).applied_at_ms, timeout_s=TIMEOUT_S, why="the fence is up")
            refused = safe.refused, plain.refused
            wait_until(  # librdkafka asks the broker again once a second
                lambda: safe.refused > refused[0] + 3 and plain.refused > refused[1] + 3,
                timeout_s=TIMEOUT_S,
                why="both go on, and are refused",
            )
            debt = debt_of(mirrored)
            end = debt.log_ends.to_mapping()[partition]
            assert end_of(mirrored, partition) == end, "nothing was written behind the fence"
            assert max(safe.acked + plain.acked) < end
            late = len(safe.acked) - before[0], len(plain.acked) - before[1]
            print(f"fenced {(debt.applied_at_ms or 0) - back_ms} ms after it answered a test; {late} were acknowledged")
            assert find_late_ranges(debt, mirrored.statuses) == {partition: (len(sent), end)}
            named = f"{partition} [{len(sent)}, {end})"
            wait_until(
                lambda: named in watched.all_told(), timeout_s=TIMEOUT_S, why="the watcher names what slipped in"
            )
            assert check_fence(mirrored.link).action is FenceNextAction.NOTHING
    assert denied(pair.east, topic)


def test_denials_that_somebody_took_away_are_put_up_again(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    paid_ms = debt_of(mirrored).applied_at_ms
    ours = {a for a in rights_of(pair.east) if a.name == topic and a.permission is Permission.DENY}
    assert ours
    restore_rights(pair.east, rights_of(pair.east) - ours)
    assert not denied(pair.east, topic)

    found = check_fence(mirrored.link)

    assert found.action is FenceNextAction.APPLY
    assert format_sentence("fence_put_up_again", "east", 1, 1) in found.alarms[0]
    assert ours <= rights_of(pair.east)
    assert denied(pair.east, topic)
    assert debt_of(mirrored).applied_at_ms == paid_ms
    written = check_fence(mirrored.link)  # whoever looked before may have died before anybody was told
    assert written.alarms[0] == found.alarms[0]
    assert "that no fence stopped" in written.alarms[1], "what was written while it was down"
    fence_watcher.record_reported(mirrored.link, written.one_time_alarms)
    assert check_fence(mirrored.link).alarms == written.alarms[1:]
    assert debt_of(mirrored).unreported == ()


@pytest.mark.slow
def test_a_super_user_that_writes_behind_the_fence_is_reported(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored, partition = stands(pair, tmp_path, topic), Partition(topic, 0)
    assert check_fence(mirrored.link) == replace(check_fence(mirrored.link), standing_alarms=(), one_time_alarms=())
    end = debt_of(mirrored).log_ends.to_mapping()[partition]
    produce(pair.east, topic, 3, user="admin")

    found = check_fence(mirrored.link)

    assert found.alarms == (format_sentence("offsets_that_no_fence_stopped", "east", 3, partition, end, end + 3),)
    assert debt_of(mirrored).trouble == Finding("fence_bypassed", "east", partitions=[partition])
    assert check_fence(mirrored.link).action is FenceNextAction.NOTHING, "it is recorded once"
    assert check_fence(mirrored.link).alarms == found.alarms, "and said at every look"


@pytest.mark.slow
def test_what_is_left_of_a_transaction_is_no_writer(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    transaction = f"tx-{topic}"
    grant(pair.east, "app", ResourceType.TRANSACTIONAL_ID, transaction, [AclOperation.WRITE])
    produce(pair.east, topic, 20)
    mirrored, partition = copied(pair, tmp_path, topic), Partition(topic, 0)
    settings = {"transactional.id": transaction, "transaction.timeout.ms": 300_000, "log_level": 0}
    producer = Producer({**pair.east.client_config("app"), **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", partition=0)
    producer.flush(30)
    with killed(pair.east):
        promoted(mirrored)
    fenced = check_fence(mirrored.link)
    assert fenced.action is FenceNextAction.APPLY
    fence_watcher.record_reported(mirrored.link, fenced.one_time_alarms)
    end = debt_of(mirrored).log_ends.to_mapping()[partition]
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    Producer({**pair.east.client_config("admin"), **settings}).init_transactions(30)  # its coordinator aborts it
    wait_until(lambda: end_of(mirrored, partition) > end, timeout_s=TIMEOUT_S, why="the marker is written")
    found = check_fence(mirrored.link)
    assert (found.state, found.alarms) == (FenceState.APPLIED, ())


@pytest.mark.slow
def test_a_fence_that_an_abort_had_to_leave_is_lifted(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    failover, before = mirrored.failover, rights_of(pair.east)
    run = begin(failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        failover.run_step(run.id, name)
    with ExitStack() as harmed:
        harmed.enter_context(killed(pair.east))
        failover.abort(run.id)
        assert debt_of(mirrored).action is FenceAction.LIFT
        with watching(mirrored) as watched:
            wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="the watcher sees that east is silent")
            harmed.close()
            wait_until(
                lambda: mirrored.name not in mirrored.state.pending_fences, timeout_s=TIMEOUT_S, why="it is lifted"
            )
    assert rights_of(pair.east) == before
    assert not denied(pair.east, topic)
    assert check_fence(mirrored.link).state is FenceState.NONE


@pytest.mark.slow
def test_a_failback_that_holds_the_mirror_is_not_disturbed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    produce(pair.east, topic, 3, user="admin")
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    failback.begin(failback.plan().hash)
    with StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as conductor:
        found = check_fence(mirrored.link)
        assert found.action is FenceNextAction.NOTHING
        (alarm,) = found.alarms
        assert "east has taken 3 offsets that no fence stopped" in alarm
        assert found.is_held_by_run
        conductor.put(conductor.state.pending_fences[mirrored.name])  # LostOwnership, had it been taken over


@pytest.mark.slow
def test_a_watcher_that_slept_before_it_fenced_changes_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    before = rights_of(pair.east)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    with suspended(pair.east):
        promoted(mirrored)
    slept = list[int]()

    def late(*arguments: object) -> None:
        if not slept:
            slept.append(1)
            lifted_by_another(mirrored)
        create_acls(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mirror_core.sync.acl_ledger.create_acls", late)
    with pytest.raises(LostOwnership):
        check_fence(mirrored.link)
    assert slept
    assert rights_of(pair.east) == before
    assert mirrored.name not in mirrored.state.pending_fences


@pytest.mark.slow
def test_a_watcher_that_slept_before_it_lifted_a_fence_leaves_the_next_runs_fence(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        failover.run_step(run.id, name)
    with suspended(pair.east):
        failover.abort(run.id)
    slept = list[int]()

    def late(*arguments: object) -> None:
        if not slept:
            slept.append(1)
            with (
                StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as other,
                ClusterClient(mirrored.link.source) as source,
            ):
                other.put(Tombstone(other.state.pending_fences[mirrored.name]))
                deny_writes(mirrored.link, other, source, [topic])
        delete_acls(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mirror_core.sync.acl_ledger.delete_acls", late)
    with pytest.raises(LostOwnership):
        check_fence(mirrored.link)
    assert slept
    wait_until(lambda: denied(pair.east, topic), timeout_s=TIMEOUT_S, why="the other one's fence is back")


@pytest.mark.slow
def test_two_watchers_agree(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    with ExitStack() as harmed:
        harmed.enter_context(killed(pair.east))
        promoted(mirrored)
        with watching(mirrored) as one, watching(mirrored) as two:
            wait_until(lambda: one.told and two.told, timeout_s=TIMEOUT_S, why="both see that east is silent")
            harmed.close()
            wait_until(lambda: debt_of(mirrored).applied_at_ms, timeout_s=TIMEOUT_S, why="the fence is up")
            wait_until(
                lambda: all(w.told[-1].state is FenceState.APPLIED for w in (one, two)),
                timeout_s=TIMEOUT_S,
                why="both see it",
            )
    assert denied(pair.east, topic)


def test_a_failback_and_a_watcher_at_the_same_time(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    assert failback.plan().figures[FigureKey.FENCE_STATE] == "applied"
    with watching(mirrored) as watched:
        wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="it looks")
        run = failback.begin(failback.plan().hash)
        failback.drive(run.id)
        assert mirrored.name not in mirrored.state.pending_fences, "forgotten when the fence was lifted"
        home = failback.make_reverse_failover()
        home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id)
        back = home.link
        assert stood(check_fence(back)), "west is fenced until it is a mirror's destination again"
        assert failback.drive(run.id).state is RunState.DONE
    assert check_fence(back).state is FenceState.NONE
    assert check_fence(mirrored.link).state is FenceState.NONE
    assert not denied(pair.east, topic)
    assert denied(pair.west, topic)
    produce(pair.east, topic, 5)
    mirrored.copy()


@pytest.mark.slow
def test_a_reverse_mirrors_fence_is_raised_again_while_its_failback_is_conducted(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    home = failback.make_reverse_failover()
    home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id)
    ours = {a for a in rights_of(pair.west) if a.name == topic and a.principal == "User:*"}
    restore_rights(pair.west, rights_of(pair.west) - ours)
    with StateWriter(home.link.destination, make_control_id(home.link.mirror.name)) as conductor:
        found = check_fence(home.link)
        assert found.action is FenceNextAction.APPLY
        assert denied(pair.west, topic), "applications are home, and may write on west, too"
        conductor.put(conductor.state.pending_fences[home.link.mirror.name])  # LostOwnership, had it been taken over
