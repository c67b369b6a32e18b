"""What the driver remembers of its source, and when its heart holds."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.heartbeat_writer import HeartbeatWriter, find_fencing_run
from mirror_core.dataplane.observed_source import (
    MAX_LISTED_TRANSACTIONS,
    ObservedSource,
    TransactionKey,
    restore_observed,
)
from mirror_core.dataplane.progress import ReportedEnds
from mirror_core.dataplane.source_monitor import SourceWatch
from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import Plan, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    ObservedEnd,
    ObservedTopic,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import PartitionRecord, State
from tests.support.loss_views import status
from tests.support.memory_state import run_of
from tests.support.mirror_views import MIRROR
from tests.support.source_offsets import offsets

Statuses = Mapping[Partition, PartitionStatus]
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
HEARTBEAT = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)
M = MirrorName("m")
RUN = "m-failover-20261122T090000-a1b2"


@pytest.fixture
def memory() -> ObservedSource:
    return ObservedSource(M, {})


# -- the lookout ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_seen_now_stays_as_it_was_and_grows_old(memory: ObservedSource) -> None:
    memory.update_ends(1_000, offsets(a0=10, a1=20, b0=5), [])
    memory.update_ends(3_000, offsets(a0=12), [A1])
    found = memory.to_observation()
    assert found.at_ms == 3_000
    assert dict(found.get_ends()) == {
        A0: ObservedEnd(Offset(12), 3_000),
        A1: ObservedEnd(Offset(20), 1_000),
        B0: ObservedEnd(Offset(5), 1_000),
    }
    assert set(found.get_offline_partitions()) == {A1}
    memory.set_recorded({A0: status(A0)})
    memory.forget_unknown()
    memory.update_ends(4_000, offsets(a0=12), [])
    assert dict(memory.to_observation().get_ends()) == {A0: ObservedEnd(Offset(12), 4_000)}


def test_what_a_cut_off_broker_tells_hides_nothing_that_was_seen_since(memory: ObservedSource) -> None:
    memory.set_recorded({A0: status(A0)})
    memory.update_ends(1_000, offsets(a0=10), [])
    memory.update_ends(5_000, offsets(a0=15), [])
    memory.recovery_points.update_positions(offsets(a0=8))
    memory.update_ends(9_000, offsets(a0=10), [], {A0: 1_500})
    memory.recovery_points.update_positions(offsets(a0=12))
    assert dict(memory.to_observation().get_ends()) == {A0: ObservedEnd(Offset(15), 5_000)}
    assert memory.recovery_points.get_incomplete() == {A0}
    memory.update_ends(11_000, offsets(a0=10), [])
    assert dict(memory.to_observation().get_ends()) == {A0: ObservedEnd(Offset(10), 11_000)}, "it leads again"


def test_a_topic_that_was_seen_empty_before_it_was_taken_up_was_complete_then(memory: ObservedSource) -> None:
    full = replace(status(B0), destination_topic_id="d")
    memory.set_recorded({B0: full})
    memory.unrecorded = frozenset({A0, A1})
    memory.update_ends(1_000, offsets(a0=0, a1=4, b0=9), [])
    memory.update_ends(2_000, offsets(a0=6, a1=6, b0=9), [])
    waiting = {p: replace(status(p), destination_topic_id="") for p in (A0, A1)}
    memory.set_recorded({B0: full, **waiting})
    memory.update_ends(3_000, offsets(a0=7, a1=7, b0=9), [])
    assert dict(memory.to_observation().get_recovery_points()) == {}
    memory.set_recorded({p: status(p) for p in (A0, A1, B0)})
    memory.update_ends(4_000, offsets(a0=8, a1=8, b0=9), [])
    memory.recovery_points.update_positions(offsets(a0=5, a1=5))
    found = memory.to_observation()
    assert dict(found.get_recovery_points()) == {A0: ObservedEnd(Offset(0), 1_000)}
    assert set(found.list_once_complete()) == {A0}, "a-1 held records when it was first seen"


def test_a_topic_made_anew_was_not_seen_empty_by_the_look_at_the_one_before(memory: ObservedSource) -> None:
    first, second = (TopicMetadata("a", i, False, {0: Leader(1, 0)}, 1, 1) for i in ("x", "s"))
    memory.update_topics({"a": first}, 500)
    memory.update_ends(1_000, offsets(a0=0), [])
    memory.update_topics({"a": second}, 1_500)
    memory.update_ends(2_000, offsets(a0=6), [])
    memory.set_recorded({A0: status(A0)})
    memory.update_ends(3_000, offsets(a0=7), [])
    assert dict(memory.to_observation().get_recovery_points()) == {}


def test_a_copy_that_was_complete_when_a_process_ended_is_one_that_lags_in_the_next(memory: ObservedSource) -> None:
    statuses = {A0: status(A0), A1: status(A1)}
    memory.set_recorded(statuses)
    memory.update_ends(1_000, offsets(a0=10, a1=20), [])
    memory.recovery_points.update_positions(offsets(a0=10, a1=15))
    recorded = memory.to_observation().with_reported_ends({A0: 10, A1: 15})
    restored = restore_observed(recorded, statuses)
    restored.set_recorded(statuses)
    restored.update_ends(3_000, offsets(a0=12, a1=22), [])
    restored.recovery_points.update_positions(offsets(a0=10, a1=15))
    observation = restored.to_observation()
    assert dict(observation.get_recovery_points()) == {A0: ObservedEnd(Offset(10), 1_000)}
    assert set(observation.list_once_complete()) == {A0}


def test_a_topic_that_was_deleted_is_not_the_one_that_is_made_later_by_its_name(memory: ObservedSource) -> None:
    first, second = (TopicMetadata("a", i, False, {0: Leader(1, 0)}, 1, 1) for i in ("x", "s"))
    memory.update_topics({"a": first}, 500)
    memory.update_ends(1_000, offsets(a0=0), [])
    memory.update_topics({}, 1_500)
    memory.forget_unknown()
    memory.update_topics({"a": second}, 2_000)
    memory.update_ends(2_000, offsets(a0=6), [])
    memory.set_recorded({A0: status(A0)})
    memory.update_ends(3_000, offsets(a0=7), [])
    assert dict(memory.to_observation().get_recovery_points()) == {}


def test_a_copy_that_is_made_anew_while_no_process_runs_is_not_complete_as_before(memory: ObservedSource) -> None:
    memory.set_recorded({A0: status(A0)})
    memory.update_ends(1_000, offsets(a0=10), [])
    memory.recovery_points.update_positions(offsets(a0=10))
    recorded = memory.to_observation().with_reported_ends({A0: 10})
    statuses = {A0: replace(status(A0), destination_topic_id="another")}
    restored = restore_observed(recorded, statuses)
    restored.set_recorded(statuses)
    restored.update_ends(3_000, offsets(a0=10), [])
    assert restored.recovery_points.get_incomplete() == {A0}, "its position is looked at"
    restored.recovery_points.update_positions(offsets(a0=4))
    restored.update_ends(4_000, offsets(a0=12), [])
    restored.recovery_points.update_positions(offsets(a0=5))
    assert dict(restored.to_observation().get_recovery_points()) == {}


def driver_of(seen: ObservedSource, reported: ReportedEnds, recorded: Statuses, newest_epoch: int = 7) -> Any:
    watch, mirror = SourceWatch.__new__(SourceWatch), replace(MIRROR, topics=("a",))
    link: Any = SimpleNamespace(mirror=mirror, source=None, destination=None)
    driver: Any = Replication(link, SimpleNamespace, ReplicationOptions(), stop=threading.Event(), report_line=print)
    driver._epoch_number, driver._watch = newest_epoch, watch
    watch.monitor = cast("Any", SimpleNamespace(set_recorded=seen.set_recorded))
    watch.reported_ends, watch._link, watch._recorded = reported, link, dict(recorded)
    watch._copies = reported._copies = driver.results.copies
    return driver


def plan_of(recorded: Statuses) -> Any:
    return SimpleNamespace(state=SimpleNamespace(mirrors={}, partitions={MIRROR.name: recorded}))


def test_a_topic_that_the_first_plan_of_a_process_copies_anew_begins_as_never_complete() -> None:
    topic, old = ObservedTopic(topic="a", ends=(5,), reported=()), {A0: status(A0)}
    previous = SourceObservation(mirror=M, at_ms=1_000, topics=(topic,))
    restored, reported = restore_observed(previous, old), ReportedEnds(dict(previous.get_reported_ends()))
    new = {A0: replace(status(A0), destination_topic_id="u")}
    driver_of(restored, reported, old)._handle_replaced_copies(plan_of(new))
    restored.update_ends(2_000, offsets(a0=90), [])
    restored.recovery_points.update_positions(offsets(a0=6))
    assert not set(restored.to_observation().with_reported_ends(reported.get_ends()).list_once_complete())


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["at once", "after a while without a record"])
@pytest.mark.parametrize("ids", [("t", "u"), ("s", "u")], ids=["made again on the source", "recopied"])
def test_a_topic_that_is_copied_anew_begins_as_never_complete(ids: tuple[str, str], is_forgotten: bool) -> None:
    old = {A0: status(A0)}

    def view(source_id: str) -> dict[str, TopicMetadata]:
        return {"a": TopicMetadata("a", source_id, False, {0: Leader(1, 0)}, 1, 1)}

    seen, reported = ObservedSource(M, {}), ReportedEnds({A0: 5})
    driver = driver_of(seen, reported, old)
    source_id, destination_id = ids
    seen.set_recorded(old)
    seen.update_topics(view("s"), 500)
    seen.update_ends(1_000, offsets(a0=5), [])
    seen.recovery_points.update_positions(offsets(a0=5))
    assert set(seen.to_observation().with_reported_ends(reported.get_ends()).list_once_complete()) == {A0}
    new = {A0: replace(status(A0), source_topic_id=source_id, destination_topic_id=destination_id)}
    for statuses in [{}, new] if is_forgotten else [new]:
        driver._handle_replaced_copies(plan_of(statuses))
    seen.update_topics(view(source_id), 1_500)
    for end in (4, 90):
        seen.update_ends(2_000, offsets(a0=end), [])
        observation = seen.to_observation().with_reported_ends(reported.get_ends())
        assert not set(observation.list_once_complete()), "nothing is reported of the new one"
    seen.recovery_points.update_positions(offsets(a0=3))
    assert not set(seen.to_observation().list_once_complete())
    assert reported.take_comparison_start(A0) is None, "as of any partition whose copy begins"
    reported.add(A0, 7, 0, 90)
    assert reported.get_ends() == {}, "the last words of a task that copied the old one"
    reported.add(A0, 8, 0, 90)
    assert set(seen.to_observation().with_reported_ends(reported.get_ends()).list_once_complete()) == {A0}


SAME, SOURCE, COPY, BOTH = ("s", "d"), ("t", "d"), ("s", "u"), ("t", "u")
IDS = [SAME, SOURCE, COPY, BOTH]


def observed(memory: ObservedSource, *, is_old_version: bool = False) -> SourceObservation:
    """A0 complete at 10, A1 lags behind 20 that were complete at 15."""
    memory.set_recorded({p: status(p) for p in (A0, A1)})
    memory.update_topics({"a": TopicMetadata("a", "s", False, {0: Leader(1, 0), 1: Leader(1, 0)}, 1, 1)}, 500)
    memory.update_ends(1_000, offsets(a0=10, a1=15), [])
    memory.recovery_points.update_positions(offsets(a0=10, a1=15))
    memory.update_ends(2_000, offsets(a0=10, a1=20), [])
    observation = memory.to_observation().with_reported_ends({A0: 10, A1: 15})
    topics = tuple(replace(topic, copy_ids=None) if is_old_version else topic for topic in observation.topics)
    return replace(observation, topics=topics)


@pytest.mark.parametrize("ids", [*IDS, None], ids=["same", "source", "copy", "both", "not recorded"])
def test_what_is_stored_of_other_topics_says_nothing_of_the_recorded_ones(
    memory: ObservedSource, ids: tuple[str, str] | None
) -> None:
    state, source_id, destination_id = State(), *(ids or ("", ""))
    state.put(observed(memory))
    for p in (A0, A1) if ids else ():
        made_anew = replace(status(p), source_topic_id=source_id, destination_topic_id=destination_id)
        state.put(PartitionRecord(M, made_anew))
    seen = state.find_observation(M)
    assert seen is not None
    assert set(seen.list_once_complete()) == ({A0, A1} if ids == SAME else set())
    assert dict(seen.get_reported_ends()) == (offsets(a0=10, a1=15) if ids == SAME else {})
    is_same_source = ids is None or source_id == "s"
    assert {p for p, _ in seen.get_ends()} == ({A0, A1} if is_same_source else set())
    assert set(seen.get_partitions()) == {A0, A1}
    restored = restore_observed(seen, state.partitions.get(M, {}))
    restored.set_recorded(state.partitions.get(M, {}))
    assert set(restored.recovery_points.get_reached()) == ({A0, A1} if ids == SAME else set())


@pytest.mark.parametrize("ids", IDS, ids=["same", "source", "copy", "both"])
def test_what_an_older_version_stored_counts_as_it_did(memory: ObservedSource, ids: tuple[str, str]) -> None:
    seen = observed(memory, is_old_version=True)
    made_anew = replace(status(A0), source_topic_id=ids[0], destination_topic_id=ids[1])
    assert set(seen.without_other_topics({A0: made_anew}).list_once_complete()) == {A0}, "A1 is not recorded"
    new = replace(seen, topics=tuple(replace(topic, id="new") for topic in seen.topics))
    assert A0 not in dict(new.without_other_topics({A0: made_anew}).get_complete()), "the source's topic is another one"


def test_a_copy_of_another_topic_than_the_source_has_now_is_not_complete(memory: ObservedSource) -> None:
    memory.set_recorded({A0: status(A0)})
    memory.update_topics({"a": TopicMetadata("a", "new", False, {0: Leader(1, 0)}, 1, 1)}, 500)
    memory.update_ends(1_000, offsets(a0=4), [])
    seen = memory.to_observation().with_reported_ends({A0: 10})
    assert not list(seen.list_once_complete())
    assert dict(seen.get_reported_ends()) == {A0: 10}, "of the copy"


@pytest.mark.parametrize("ids", [("t", "u"), ("s", "u")], ids=["made again on the source", "recopied"])
def test_what_was_complete_before_a_recopy_is_not_reached_by_it(memory: ObservedSource, ids: tuple[str, str]) -> None:
    memory.set_recorded({A0: status(A0)})
    memory.update_topics({"a": TopicMetadata("a", "s", False, {0: Leader(1, 0)}, 1, 1)}, 500)
    memory.update_ends(1_000, offsets(a0=5), [])
    memory.recovery_points.update_positions(offsets(a0=5))
    source_id, destination_id = ids
    new = {A0: replace(status(A0), source_topic_id=source_id, destination_topic_id=destination_id)}
    memory.set_recorded(new, frozenset({A0}))
    memory.update_topics({"a": TopicMetadata("a", source_id, False, {0: Leader(1, 0)}, 1, 1)}, 1_500)
    memory.update_ends(2_000, offsets(a0=90), [])
    memory.recovery_points.update_positions(offsets(a0=6))
    assert not set(memory.to_observation().list_once_complete())


def test_the_rate_is_what_applications_wrote_in_the_last_minute(memory: ObservedSource) -> None:
    memory.update_ends(1_000, offsets(a0=1_000, b0=5), [])
    assert memory.to_observation().offsets_per_s is None, "one observation has no rate"
    memory.update_ends(3_000, offsets(a0=1_150, b0=55), [])
    assert memory.to_observation().offsets_per_s == 100.0
    memory.update_ends(5_000, {**offsets(a0=1_150), HEARTBEAT: Offset(7)}, [])
    memory.update_ends(7_000, {**offsets(a0=1_150, a1=9_999), HEARTBEAT: Offset(900)}, [])
    assert memory.to_observation().offsets_per_s == 200 / 6, "a new partition was not written just now"
    memory.update_ends(63_500, offsets(a0=1_150), [])
    assert memory.to_observation().offsets_per_s == 0.0, "what is older than a minute does not count"


def test_no_time_in_which_a_partition_was_not_observed_counts_in_the_rate(memory: ObservedSource) -> None:
    memory.update_ends(1_000, offsets(a0=0, b0=0), [])
    memory.update_ends(11_000, offsets(a0=1_000, b0=0), [])
    assert memory.to_observation().offsets_per_s == 100.0
    memory.begin_unobserved()
    memory.update_ends(611_000, offsets(a0=5_000, b0=0), [])
    assert memory.to_observation().offsets_per_s == 100.0, "no answer for ten minutes: the last minute is before them"
    memory.update_ends(621_000, offsets(a0=5_200, b0=0), [])
    assert memory.to_observation().offsets_per_s == 60.0
    memory.update_ends(821_000, offsets(a0=5_200, b0=0), [])
    assert memory.to_observation().offsets_per_s == 60.0, "nobody looked for more than a minute: a host asleep"
    memory.update_ends(831_000, offsets(a0=5_200), [B0])
    memory.update_ends(841_000, offsets(a0=5_200, b0=9_000), [])
    memory.update_ends(851_000, offsets(a0=5_200, b0=19_000), [], {B0: 700_000})
    memory.update_ends(861_000, offsets(a0=5_200, b0=29_000), [])
    assert memory.to_observation().offsets_per_s == 1_200 / 40, "what b-0 took was not observed when it took it"
    for at_ms in range(871_000, 951_000, 10_000):  # controllers hang: nobody knows how old these ends are
        memory.update_ends(at_ms, offsets(a0=5_200 + at_ms, b0=29_000), [], {A0: None, B0: None})
    assert memory.to_observation().offsets_per_s == 1_200 / 40
    memory.update_ends(951_000, offsets(a0=1_000_000, b0=29_000), [])
    memory.update_ends(961_000, offsets(a0=1_000_000, b0=30_000), [])
    assert memory.to_observation().offsets_per_s == 2_200 / 50


def test_a_partition_that_nobody_ever_led_is_told_without_an_end(memory: ObservedSource) -> None:
    memory.update_ends(1_000, offsets(a0=10), [A1])
    found = memory.to_observation()
    assert set(dict(found.get_ends())) == {A0}
    assert set(found.get_offline_partitions()) == {A1}


def test_a_topic_that_was_deleted_is_without_a_leader_only_until_that_is_certain(memory: ObservedSource) -> None:
    """Brokers tell no leader of either. An alert for it would never end."""
    memory.set_recorded({p: status(p) for p in (A0, B0)})
    memory.update_ends(1_000, offsets(a0=10), [B0])
    assert set(memory.to_observation().get_offline_partitions()) == {B0}
    memory.set_recorded({A0: status(A0), B0: replace(status(B0, "deleted"), kind=FailureKind.GONE)})
    memory.update_ends(2_000, offsets(a0=10), [B0])
    assert not set(memory.to_observation().get_offline_partitions())
    memory.topic_ids["b"] = "another topic"
    memory.update_ends(3_000, offsets(a0=10), [B0])
    assert set(memory.to_observation().get_offline_partitions()) == {B0}, "made anew, without a leader"


def key(name: str = "tx", started_ms: int = 100) -> TransactionKey:
    return name, 7, started_ms


def opened(firsts: Mapping[Partition, int | None], state: str = "Ongoing") -> ObservedTransaction:
    parts = tuple(
        PartitionTransaction(partition=p, first=None if f is None else Offset(f)) for p, f in sorted(firsts.items())
    )
    return ObservedTransaction(id="tx", producer_id=7, state=state, parts=parts)


def told(memory: ObservedSource) -> list[tuple[str, list[tuple[int | None, int | None]]]]:
    return [(t.state, [(part.first, part.end) for part in t.parts]) for t in memory.to_observation().transactions]


def test_a_transaction_is_remembered_after_its_end_until_all_of_it_is_copied(memory: ObservedSource) -> None:
    memory.update_open_transactions(1_000, {key(): opened({A0: 3, A1: None})})
    memory.set_ended_bounds(offsets(a0=9, a1=9))
    assert told(memory) == [("Ongoing", [(3, None), (None, None)])], "an open one has no bound"
    memory.update_open_transactions(2_000, {key(): opened({A1: 5}, "PrepareCommit")})
    assert told(memory) == [("PrepareCommit", [(3, None), (5, None)])], "a-0 has its marker, and is told no more"
    memory.update_open_transactions(2_500, {key(): opened({A1: None}, "PrepareCommit")})
    assert told(memory) == [("PrepareCommit", [(3, None), (5, None)])], "what was known stays known"
    memory.update_open_transactions(3_000, {})
    memory.set_ended_bounds(offsets(a0=10))
    assert told(memory) == [(TRANSACTION_OVER, [(3, 10), (5, None)])], "nobody led a-1"
    memory.update_open_transactions(4_000, {})
    memory.set_ended_bounds(offsets(a0=14, a1=11))
    assert told(memory) == [(TRANSACTION_OVER, [(3, 10), (5, 11)])], "what came since is not its"
    assert memory.get_ended_partitions() == {A0, A1}
    memory.forget_copied(offsets(a0=10, a1=10))
    assert len(told(memory)) == 1
    memory.forget_copied(offsets(a0=10, a1=11))
    assert told(memory) == []


def test_the_next_transaction_of_an_id_is_another_one(memory: ObservedSource) -> None:
    memory.update_open_transactions(1_000, {key(started_ms=100): opened({A0: 3})})
    memory.update_open_transactions(2_000, {key(started_ms=200): opened({A0: 8})})
    memory.set_ended_bounds(offsets(a0=9))
    assert told(memory) == [(TRANSACTION_OVER, [(3, 9)]), ("Ongoing", [(8, None)])]


def test_of_many_transactions_the_newest_are_named_and_the_others_counted(memory: ObservedSource) -> None:
    memory.update_open_transactions(
        1_000, {key(started_ms=n): opened({A0: n}) for n in range(MAX_LISTED_TRANSACTIONS + 5)}
    )
    found = memory.to_observation()
    assert len(found.transactions) == MAX_LISTED_TRANSACTIONS
    assert found.unlisted_transactions == 5
    assert found.transactions[-1].parts[0].first == MAX_LISTED_TRANSACTIONS + 4


# -- the heart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "run"),
    [
        (f"step/{RUN}/fence", RUN),
        (f"step/{RUN}/drain", RUN),
        (f"step/{RUN}/settle", RUN),
        (f"step/{RUN}/prove", None),
        (f"run/{RUN}", None),
        ("step/n-failover-20261122T090000-a1b2/fence", None),
        ("lease/m", None),
        ("step/", None),
    ],
)
def test_steps_behind_which_nobody_may_write_are_known_by_their_keys(written: str, run: str | None) -> None:
    assert find_fencing_run(written, M) == run


@pytest.fixture
def heart(tmp_path: Path) -> HeartbeatWriter:
    sides = {name: ClusterConfig(ClusterName(name), {}, {}) for name in ("east", "west")}
    mirror = Mirror(
        name=M,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="E",
        destination_id="W",
        topics=("a",),
        producer_id=1 << 62,
        desired=DesiredState.STARTED,
        created_ms=1,
    )
    config = Config(tmp_path / "mirrorbook.yaml", {})
    return HeartbeatWriter(MirrorLink(config, mirror, sides["east"], sides["west"]), "driver", lambda line: None)


def state(*steps: str, ended: bool = False) -> State:
    made = State()
    run = run_of(RUN, Plan(kind=RunKind.FAILOVER, mirror=M, mode=RunMode.PLANNED, steps=(), bound_facts=()))
    made.put(replace(run, state=RunState.ABORTED, ended_ms=9) if ended else run)
    for step in steps:
        made.put(StepRecord(run=RUN, step=step, state=StepState.STARTED, attempt=1, started_ms=1))
    return made


def test_the_heart_holds_from_the_fence_on_until_the_run_has_ended(heart: HeartbeatWriter) -> None:
    heart.update_runs(state("prove"))
    assert heart.fencing_run is None
    heart.update_runs(state("prove", "fence"))
    assert heart.fencing_run == RUN
    heart.update_runs(state("prove"))
    assert heart.fencing_run == RUN, "an older look at the state topic lets nothing go"
    heart.update_runs(state("prove", "fence", ended=True))
    assert heart.fencing_run is None
