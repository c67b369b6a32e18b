"""The old source comes back, with writers that were never told: it is fenced at once, and stays so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.slipped import slipped_in
from mirror_core.decide.standing import Action, Judgement, Standing
from mirror_core.kafka.acls import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.mirrors import standing
from mirror_core.mirrors.standing import look_after
from mirror_core.model.acl import Permission
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Mode, RunState
from mirror_core.model.standing import Debt, Owed
from mirror_core.runbook.failback import Failback
from mirror_core.state.records import Forget
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.fence import deny, lift_fence
from tests.administering import restore_rights, rights_of
from tests.brokers import Pair, grant, produce
from tests.cluster.test_failover import app_topic, denied
from tests.cluster.test_unplanned import begin
from tests.harm import Harm, killed, suspended, woken_at_once
from tests.mirroring import Mirrored, new_mirror
from tests.threads import beside
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster
TIMEOUT_S = 90.0


@dataclass
class Watched:
    """A watcher in a thread, and what it has told."""

    told: list[Judgement] = field(default_factory=list)

    def all_told(self) -> str:
        return "\n".join(line for found in self.told for line in (*found.lines, *found.alarms))


@dataclass
class Stubborn:
    """A producer that retries for ever, and how it was answered."""

    acked: list[int] = field(default_factory=list)
    refused: int = 0


@contextmanager
def watching(mirrored: Mirrored) -> Iterator[Watched]:
    stop, watched = threading.Event(), Watched()

    with beside(partial(standing.watch, mirrored.link, stop, watched.told.append), stop.set, name="watching"):
        yield watched


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


def copied(pair: Pair, folder: Path, *topics: str) -> Mirrored:
    mirrored = new_mirror(pair, folder, *topics)
    mirrored.copy()
    return mirrored


def promoted(mirrored: Mirrored) -> Debt:
    run = begin(mirrored.failover)
    assert mirrored.failover.drive(run.id).state is RunState.DONE
    return debt_of(mirrored)


def debt_of(mirrored: Mirrored) -> Debt:
    return mirrored.state.debts[mirrored.name]


def end_of(mirrored: Mirrored, partition: Partition) -> Offset:
    with ClusterClient(mirrored.link.source) as client:
        return list_offsets(client, [partition], Point.LOG_END)[partition]


def stands(pair: Pair, folder: Path, topic: str) -> Mirrored:
    """A mirror that was failed over while its source hung, and whose fence stands there by now."""
    produce(pair.east, topic, 20)
    mirrored = copied(pair, folder, topic)
    with suspended(pair.east):
        promoted(mirrored)
    found = wait_until(lambda: stood(look_after(mirrored.link)), timeout_s=TIMEOUT_S, why="east answers again")
    assert found is not None
    assert found.action is Action.FENCE
    return mirrored


def stood(found: Judgement) -> Judgement | None:
    return found if found.standing is Standing.STANDS else None


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
        assert promoted(mirrored).paid_ms is None
        before = len(safe.acked), len(plain.acked)
        with watching(mirrored) as watched:
            wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="the watcher sees that east is silent")
            harmed.close()
            back_ms = now_ms()
            wait_until(lambda: debt_of(mirrored).paid_ms, timeout_s=TIMEOUT_S, why="the fence is up")
            refused = safe.refused, plain.refused
            wait_until(  # librdkafka asks the broker again once a second
                lambda: safe.refused > refused[0] + 3 and plain.refused > refused[1] + 3,
                timeout_s=TIMEOUT_S,
                why="both go on, and are refused",
            )
            debt = debt_of(mirrored)
            end = debt.ends.by_partition()[partition]
            assert end_of(mirrored, partition) == end, "nothing was written behind the fence"
            assert max(safe.acked + plain.acked) < end
            late = len(safe.acked) - before[0], len(plain.acked) - before[1]
            print(f"fenced {(debt.paid_ms or 0) - back_ms} ms after it answered a test; {late} were acknowledged")
            assert slipped_in(debt, mirrored.statuses) == {partition: (len(sent), end)}
            named = f"{partition} [{len(sent)}, {end})"
            wait_until(
                lambda: named in watched.all_told(), timeout_s=TIMEOUT_S, why="the watcher names what slipped in"
            )
            assert look_after(mirrored.link).action is Action.NOTHING
    assert denied(pair.east, topic)


def test_denials_that_somebody_took_away_are_put_up_again(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    paid_ms = debt_of(mirrored).paid_ms
    ours = {a for a in rights_of(pair.east) if a.name == topic and a.permission is Permission.DENY}
    assert ours
    restore_rights(pair.east, rights_of(pair.east) - ours)
    assert not denied(pair.east, topic)

    found = look_after(mirrored.link)

    assert found.action is Action.FENCE
    assert "taken away and is put up again: cluster east, broker 1: 1 denial(s) gone" in found.alarms[0]
    assert ours <= rights_of(pair.east)
    assert denied(pair.east, topic)
    assert debt_of(mirrored).paid_ms == paid_ms
    written = look_after(mirrored.link)  # whoever looked before may have died before anybody was told
    assert written.alarms[0] == found.alarms[0]
    assert "that no fence stopped" in written.alarms[1], "what was written while it was down"
    standing.said(mirrored.link, written.once)
    assert look_after(mirrored.link).alarms == written.alarms[1:]
    assert debt_of(mirrored).unsaid == ()


@pytest.mark.slow
def test_a_super_user_that_writes_behind_the_fence_is_reported(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored, partition = stands(pair, tmp_path, topic), Partition(topic, 0)
    assert look_after(mirrored.link) == replace(look_after(mirrored.link), alarms=())
    end = debt_of(mirrored).ends.by_partition()[partition]
    produce(pair.east, topic, 3, user="admin")

    found = look_after(mirrored.link)

    assert found.alarms == (
        f"cluster east has taken 3 offset(s) that no fence stopped: {partition} [{end}, {end + 3}). Either a super "
        "user, or a cluster without a fence: stop that writer",
    )
    assert debt_of(mirrored).trouble == f"somebody writes there all the same: {partition}"
    assert look_after(mirrored.link).action is Action.NOTHING, "it is recorded once"
    assert look_after(mirrored.link).alarms == found.alarms, "and said at every look"


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
    fenced = look_after(mirrored.link)
    assert fenced.action is Action.FENCE
    standing.said(mirrored.link, fenced.once)
    end = debt_of(mirrored).ends.by_partition()[partition]
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    Producer({**pair.east.client_config("admin"), **settings}).init_transactions(30)  # its coordinator aborts it
    wait_until(lambda: end_of(mirrored, partition) > end, timeout_s=TIMEOUT_S, why="the marker is written")
    found = look_after(mirrored.link)
    assert (found.standing, found.alarms) == (Standing.STANDS, ())


@pytest.mark.slow
def test_a_fence_that_an_abort_had_to_leave_is_lifted(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    failover, before = mirrored.failover, rights_of(pair.east)
    run = begin(failover, Mode.PLANNED)
    for name in ("prove", "fence"):
        failover.step(run.id, name)
    with ExitStack() as harmed:
        harmed.enter_context(killed(pair.east))
        failover.abort(run.id)
        assert debt_of(mirrored).owed is Owed.UNFENCE
        with watching(mirrored) as watched:
            wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="the watcher sees that east is silent")
            harmed.close()
            wait_until(lambda: mirrored.name not in mirrored.state.debts, timeout_s=TIMEOUT_S, why="it is lifted")
    assert rights_of(pair.east) == before
    assert not denied(pair.east, topic)
    assert look_after(mirrored.link).standing is Standing.NOTHING


@pytest.mark.slow
def test_a_failback_that_holds_the_mirror_is_not_disturbed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    produce(pair.east, topic, 3, user="admin")
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    failback.begin(failback.plan().hash)
    with StateWriter(mirrored.link.destination, control_id(mirrored.name)) as conductor:
        found = look_after(mirrored.link)
        assert found.action is Action.NOTHING
        (alarm,) = found.alarms
        assert "east has taken 3 offset(s) that no fence stopped" in alarm
        assert found.held
        conductor.put(conductor.state.debts[mirrored.name])  # LostOwnership, had it been taken over


def lifted_by_another(mirrored: Mirrored) -> None:
    """What a failback does until it lets go of the fence."""
    with (
        StateWriter(mirrored.link.destination, control_id(mirrored.name)) as other,
        ClusterClient(mirrored.link.source) as source,
    ):
        lift_fence(mirrored.link.mirror, other, source)
        other.put(Forget(other.state.debts[mirrored.name]))


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

    monkeypatch.setattr("mirror_core.sync.ledger.create_acls", late)
    with pytest.raises(LostOwnership):
        look_after(mirrored.link)
    assert slept
    assert rights_of(pair.east) == before
    assert mirrored.name not in mirrored.state.debts


@pytest.mark.slow
def test_a_watcher_that_slept_before_it_lifted_a_fence_leaves_the_next_runs_fence(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    failover = mirrored.failover
    run = begin(failover, Mode.PLANNED)
    for name in ("prove", "fence"):
        failover.step(run.id, name)
    with suspended(pair.east):
        failover.abort(run.id)
    slept = list[int]()

    def late(*arguments: object) -> None:
        if not slept:
            slept.append(1)
            with (
                StateWriter(mirrored.link.destination, control_id(mirrored.name)) as other,
                ClusterClient(mirrored.link.source) as source,
            ):
                other.put(Forget(other.state.debts[mirrored.name]))
                deny(mirrored.link, other, source, [topic])
        delete_acls(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mirror_core.sync.ledger.delete_acls", late)
    with pytest.raises(LostOwnership):
        look_after(mirrored.link)
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
            wait_until(lambda: debt_of(mirrored).paid_ms, timeout_s=TIMEOUT_S, why="the fence is up")
            wait_until(
                lambda: all(w.told[-1].standing is Standing.STANDS for w in (one, two)),
                timeout_s=TIMEOUT_S,
                why="both see it",
            )
    assert denied(pair.east, topic)


def test_a_failback_and_a_watcher_at_the_same_time(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    mirrored = stands(pair, tmp_path, topic)
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    assert "its fence stands since" in failback.plan().figures["standing fence"]
    with watching(mirrored) as watched:
        wait_until(lambda: watched.told, timeout_s=TIMEOUT_S, why="it looks")
        run = failback.begin(failback.plan().hash)
        failback.drive(run.id)
        assert mirrored.name not in mirrored.state.debts, "forgotten when the fence was lifted"
        home = failback.home()
        home.drive(home.begin(home.plan(Mode.PLANNED).hash).id)
        back = home.link
        assert stood(look_after(back)), "west is fenced until it is a mirror's destination again"
        assert failback.drive(run.id).state is RunState.DONE
    assert look_after(back).standing is Standing.NOTHING
    assert look_after(mirrored.link).standing is Standing.NOTHING
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
    home = failback.home()
    home.drive(home.begin(home.plan(Mode.PLANNED).hash).id)
    ours = {a for a in rights_of(pair.west) if a.name == topic and a.principal == "User:*"}
    restore_rights(pair.west, rights_of(pair.west) - ours)
    with StateWriter(home.link.destination, control_id(home.link.mirror.name)) as conductor:
        found = look_after(home.link)
        assert found.action is Action.FENCE
        assert denied(pair.west, topic), "applications are home, and may write on west, too"
        conductor.put(conductor.state.debts[home.link.mirror.name])  # LostOwnership, had it been taken over
