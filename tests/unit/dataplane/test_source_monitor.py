"""What the source is asked for at each look, and what is left alone where it takes long; what a look finds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import source_monitor
from mirror_core.dataplane.progress import ReportedEnds
from mirror_core.dataplane.source_monitor import OBSERVE_INTERVAL_S, SourceMonitor, SourceWatch
from mirror_core.decide.loss_bound import compute_loss
from mirror_core.kafka.client import ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.leader_epochs import EpochEnds
from mirror_core.kafka.log_offsets import OffsetPoint, OffsetsResult
from mirror_core.model.errors import ConnectionRefused, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.source_observation import TRANSACTION_OVER, ObservedTransaction, SourceObservation
from mirror_core.state.mirror_link import MirrorLink
from tests.support.loss_views import status
from tests.support.mirror_views import MIRROR
from tests.support.waiting import wait_until

ONE = {("id", 1, 1): ObservedTransaction(id="id", producer_id=1, state="Ongoing", parts=())}
LINK = cast(
    "Any",
    SimpleNamespace(
        source=None, mirror=replace(MIRROR, name=MirrorName("m"), topics=("a.*", "b"), exclude_topics=("ax",))
    ),
)


class Topics:
    """A source by its listing: `views` are all topics that it has."""

    opened_connections = 1

    def __init__(self, *views: TopicMetadata) -> None:
        self.views = {view.name: view for view in views}
        self.listings = 0

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        self.listings += topics is None
        found = self.views if topics is None else {t: self.views[t] for t in topics if t in self.views}
        return ClusterMetadata("E", 1, {}, dict(found), frozenset())


EMPTY = cast("Any", Topics())


@pytest.fixture(autouse=True)
def without_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ZooKeeper."""
    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: False)
    monkeypatch.setattr(source_monitor, "ClusterClient", lambda *_, **__: nullcontext(EMPTY))


class Source:
    """Counts how often it was asked, and takes so long for an answer."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.asked = 100.0, 0.0, 0

    def open(self, *_: object) -> dict[Any, ObservedTransaction]:
        self.asked += 1
        self.now += self.takes_s
        return dict(ONE)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    made = Source()
    monkeypatch.setattr(source_monitor, "_list_open_transactions", made.open)
    monkeypatch.setattr(
        source_monitor, "list_available_offsets", lambda *_, **__: OffsetsResult(offsets={}, offline=frozenset())
    )
    monkeypatch.setattr(source_monitor, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.mark.parametrize(("takes_s", "asked"), [(OBSERVE_INTERVAL_S / 2, 30), (2 * OBSERVE_INTERVAL_S, 2)])
def test_a_source_that_needs_long_to_tell_its_transactions_is_asked_for_them_seldom(
    source: Source, takes_s: float, asked: int
) -> None:
    look, source.takes_s = SourceMonitor(LINK, None), takes_s
    for _ in range(30):
        seen = look.observe(EMPTY, cast("Any", None))
        assert [one.id for one in seen.transactions] == ["id"], "what was seen last stays"
        source.now += OBSERVE_INTERVAL_S
    assert source.asked == asked


def set_clocks(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    monkeypatch.setattr(source_monitor, "now_ms", lambda: int(clock.now * 1000))
    steady = SimpleNamespace(now_ms=lambda: int(clock.now * 1000))
    monkeypatch.setattr(source_monitor, "SteadyClock", lambda: steady)


def test_what_was_not_asked_for_again_is_as_old_as_it_is(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clocks(monkeypatch, source)
    look, source.takes_s = SourceMonitor(LINK, None), 3.0
    first = look.observe(EMPTY, cast("Any", None))
    source.now += 5.0
    second = look.observe(EMPTY, cast("Any", None))
    assert first.transactions_ms == second.transactions_ms == 100_000
    assert (first.at_ms, second.at_ms) == (103_000, 108_000)


@pytest.mark.parametrize(
    ("took_s", "answered", "passes_s"),
    [
        pytest.param(9.0, False, 2.0, id="a broker hung, and is restarted"),
        pytest.param(3_600.0, True, 600.0, id="the machine was stopped meanwhile"),
    ],
)
def test_what_did_not_work_or_was_held_up_is_no_source_that_has_much_to_tell(
    monkeypatch: pytest.MonkeyPatch, took_s: float, answered: bool, passes_s: float
) -> None:
    clock, asked = SimpleNamespace(now=100.0), list[float]()

    def opened(*_: object) -> dict[Any, Any] | None:
        asked.append(clock.now)
        clock.now += took_s if len(asked) == 1 else 0.1
        return {} if answered or len(asked) > 1 else None

    monkeypatch.setattr(source_monitor, "_list_open_transactions", opened)
    monkeypatch.setattr(
        source_monitor, "list_available_offsets", lambda *_, **__: OffsetsResult(offsets={}, offline=frozenset())
    )
    monkeypatch.setattr(source_monitor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    look = SourceMonitor(LINK, None)
    look.observe(EMPTY, cast("Any", None))
    clock.now += passes_s
    look.observe(EMPTY, cast("Any", None))
    assert len(asked) == 2


# -- topics that no plan knew ------------------------------------------------------------------------------------------


class Logs(Topics):
    """The same, with logs: first and last offset of each partition."""

    def __init__(self, **logs: list[tuple[int, int]]) -> None:
        super().__init__()
        self.ids, self.broken = dict[str, str](), False
        self.set(**logs)

    def set(self, **logs: list[tuple[int, int]]) -> None:
        self.logs = {Partition(t, i): log for t, row in logs.items() for i, log in enumerate(row)}
        self.views = {
            name: TopicMetadata(name, self.ids.get(name, "s"), False, {i: Leader(1, 0) for i in range(len(row))}, 1, 1)
            for name, row in logs.items()
        }

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        if topics is None and self.broken:
            raise RemoteFault("topic x: metadata: unknown")
        return super().metadata(topics)


def offsets_of(source: Logs, partitions: Iterable[Partition], point: OffsetPoint, **_: object) -> OffsetsResult:
    known = {p: source.logs[p] for p in partitions if p in source.logs}
    return OffsetsResult({p: Offset(log[point is not OffsetPoint.START]) for p, log in known.items()}, frozenset())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(source_monitor, "_list_open_transactions", lambda *_: {})
    monkeypatch.setattr(source_monitor, "list_available_offsets", offsets_of)
    monkeypatch.setattr(source_monitor, "time", SimpleNamespace(monotonic=lambda: made.now))
    set_clocks(monkeypatch, made)
    return made


A0, A1, NEW0 = Partition("a", 0), Partition("a", 1), Partition("an", 0)
RECORDED = {A0: status(A0)}


def seen_by(look: SourceMonitor, source: Logs) -> SourceObservation:
    return look.observe(cast("Any", source), cast("Any", source))


def missing(sighting: SourceObservation) -> dict[Partition, int | None]:
    found = compute_loss(RECORDED, sighting, {A0: Offset(10)}, (), now_ms=sighting.at_ms)
    return {p: one.missing for p, one in found.partitions.items()}


def test_a_look_finds_added_partitions_and_topics_that_match_any_expression_and_no_exclusion(
    clock: SimpleNamespace,
) -> None:
    source, look = Logs(a=[(0, 12), (4, 9)], b=[(0, 3)], ax=[(0, 99)], other=[(0, 99)]), SourceMonitor(LINK, None)
    look.set_recorded(RECORDED)
    sighting = seen_by(look, source)
    assert missing(sighting) == {A0: 2, A1: 5, Partition("b", 0): 3}
    assert sighting.listed_ms == 100_000
    look.set_recorded({**RECORDED, A1: status(A1), Partition("b", 0): status(Partition("b", 0))})
    assert not any(row.starts or row.id for row in seen_by(look, source).topics), "the mirror has them by now"


def test_a_topic_that_is_gone_before_it_was_recorded_is_forgotten(clock: SimpleNamespace) -> None:
    source, look = Logs(a=[(0, 10)], an=[(0, 7)]), SourceMonitor(LINK, None)
    look.set_recorded(RECORDED)
    assert missing(seen_by(look, source)) == {A0: 0, NEW0: 7}
    source.set(a=[(0, 10)])
    clock.now += 1
    assert missing(seen_by(look, source)) == {A0: 0}


def test_a_topic_that_was_made_anew_under_its_name_is_told_with_its_id_and_nothing_of_the_old_one(
    clock: SimpleNamespace,
) -> None:
    source, look = Logs(a=[(0, 10), (0, 40)]), SourceMonitor(LINK, None)
    look.set_recorded({**RECORDED, A1: status(A1)})
    seen_by(look, source)
    source.ids["a"] = "anew"
    source.set(a=[(2, 6)])
    sighting = seen_by(look, source)
    assert sighting.get_new_topic_ids() == {"a": "anew"}
    found = compute_loss({**RECORDED, A1: status(A1)}, sighting, {A0: Offset(10), A1: Offset(40)}, (), now_ms=100_000)
    assert {p: one.missing for p, one in found.partitions.items()} == {A0: 4, A1: None}
    assert not list(sighting.get_recovery_points())


def test_where_a_listing_takes_long_topics_are_listed_seldom_and_the_sighting_says_when(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, look = Logs(a=[(0, 10)]), SourceMonitor(LINK, None)
    look.set_recorded(RECORDED)
    listing = Topics.metadata

    def slow(self: Topics, topics: Iterable[str] | None = None) -> ClusterMetadata:
        clock.now += 0.5 if topics is None else 0.0
        return listing(self, topics)

    monkeypatch.setattr(Topics, "metadata", slow)
    seen_by(look, source)
    source.set(a=[(0, 10), (0, 4)], an=[(0, 7)])
    clock.now += 1
    sighting = seen_by(look, source)
    assert missing(sighting) == {A0: 0, A1: 4}, "partitions of known topics are seen at each look"
    assert (source.listings, sighting.listed_ms) == (1, 100_000)
    clock.now += 4
    sighting = seen_by(look, source)
    assert missing(sighting) == {A0: 0, A1: 4, NEW0: 7}
    assert (source.listings, sighting.listed_ms) == (2, 105_500)


def test_a_listing_that_fails_hides_nothing_that_is_known_and_grows_old(clock: SimpleNamespace) -> None:
    source, look = Logs(a=[(0, 10)], an=[(0, 7)]), SourceMonitor(LINK, None)
    look.set_recorded(RECORDED)
    before = seen_by(look, source)
    source.broken = True
    clock.now += 1
    source.set(a=[(0, 12)], an=[(0, 9)])
    sighting = seen_by(look, source)
    assert (missing(sighting), sighting.listed_ms) == ({A0: 2, NEW0: 9}, 100_000)
    successor = SourceMonitor(LINK, before)
    successor.set_recorded(RECORDED)
    sighting = seen_by(successor, source)
    assert (missing(sighting), sighting.listed_ms) == ({A0: 2, NEW0: 9}, 100_000), "nor by another process"
    source.broken = False
    source.set(a=[(0, 12)])
    clock.now += 1
    assert missing(seen_by(successor, source)) == {A0: 2}


def test_a_partition_whose_end_nobody_tells_is_named_all_the_same(clock: SimpleNamespace) -> None:
    source, look = Logs(a=[(0, 10), (0, 4)]), SourceMonitor(LINK, None)
    look.set_recorded(RECORDED)
    del source.logs[A1]
    assert missing(seen_by(look, source)) == {A0: 0, A1: None}


@pytest.mark.parametrize(("told_under", "rewritten"), [(5, [(A0, 5, 100)]), (6, [])], ids=["lost", "moved"])
def test_an_end_that_a_newer_leader_told_is_none_of_the_older_one(
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    told_under: int,
    rewritten: list[tuple[Partition, int, int]],
) -> None:
    """The leader changes, at offset 100, between the metadata and the end: nothing is lost by that."""
    source, monitor = Logs(a=[(0, 120)]), SourceMonitor(LINK, None)
    monkeypatch.setattr(
        source_monitor,
        "list_available_offsets",
        lambda *arguments, **_: replace(offsets_of(*arguments), leader_epochs={A0: told_under}),
    )
    monkeypatch.setattr(source_monitor, "list_epoch_ends", lambda *_: EpochEnds({A0: Offset(100)}, {}))
    monitor.set_recorded({A0: replace(status(A0), source_epoch=5)})
    for epoch in (5, 6):
        source.views["a"] = replace(source.views["a"], partitions={0: Leader(1, epoch)})
        seen = seen_by(monitor, source)
    assert list(seen.get_rewritten()) == rewritten
    source.ids["a"] = "anew"
    source.set(a=[(0, 150)])
    recorded = {A0: replace(status(A0), source_epoch=5)}
    loss = compute_loss(recorded, seen_by(monitor, source), {A0: Offset(120)}, (), now_ms=100_000)
    assert loss.partitions[A0].missing == 150, "all of the topic that is there now"


def led(source: Logs, epoch: int, end: int) -> None:
    source.set(a=[(0, end)])
    source.views["a"] = replace(source.views["a"], partitions={0: Leader(1, epoch)})


@pytest.fixture
def told(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Where leader epochs end in the log that the source has now; leaders tell theirs with the ends."""
    ends: dict[int, int] = {}

    def offsets_and_epochs(source: Logs, *arguments: Any, **_: object) -> OffsetsResult:
        epochs = {Partition(t, i): leader.epoch for t, v in source.views.items() for i, leader in v.partitions.items()}
        return replace(offsets_of(source, *arguments), leader_epochs=epochs)

    def ends_of(_: object, epochs: dict[Partition, int], by_leader: object) -> EpochEnds:
        return EpochEnds({p: Offset(ends[epoch]) for p, epoch in epochs.items()}, {})

    monkeypatch.setattr(source_monitor, "list_available_offsets", offsets_and_epochs)
    monkeypatch.setattr(source_monitor, "list_epoch_ends", ends_of)
    monkeypatch.setattr(Logs, "mark_metadata_stale", lambda self: None, raising=False)
    return ends


@pytest.mark.parametrize("observed_under", [5, 6], ids=["agreed", "newer"])
def test_an_end_that_was_lost_while_nothing_observed_counts_for_the_next_process(
    told: dict[int, int], observed_under: int
) -> None:
    source, recorded = Logs(), {A0: replace(status(A0), source_epoch=5)}
    led(source, observed_under, 400)
    monitor = SourceMonitor(LINK, None)
    monitor.set_recorded(recorded)
    previous = seen_by(monitor, source)
    led(source, 8, 300)
    told.update({5: 200, 6: 200})
    successor = SourceMonitor(LINK, previous, recorded)
    assert list(seen_by(successor, source).get_rewritten()) == [(A0, 5, 200)]
    third = SourceMonitor(LINK, successor.newest_observation, recorded)
    led(source, 9, 450)
    told.update({8: 300})
    assert list(seen_by(third, source).get_rewritten()) == [(A0, 5, 200)]
    third.set_recorded({A0: replace(status(A0), source_epoch=9)})
    assert not list(seen_by(third, source).get_rewritten()), "both logs were compared"


def test_no_end_is_lost_where_the_leader_only_moved_while_nothing_observed(told: dict[int, int]) -> None:
    source, recorded = Logs(), {A0: replace(status(A0), source_epoch=5)}
    monitor = SourceMonitor(LINK, None)
    monitor.set_recorded(recorded)
    led(source, 6, 400)
    previous = seen_by(monitor, source)
    led(source, 8, 500)
    told.update({5: 100, 6: 400})
    assert not list(seen_by(SourceMonitor(LINK, previous, recorded), source).get_rewritten())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_source_that_was_restored_from_an_older_copy_counts_from_where_that_began(
    told: dict[int, int], *, is_restarted: bool
) -> None:
    """Its leader epochs are older than those that were seen."""
    source, recorded = Logs(), {A0: replace(status(A0), source_epoch=7)}
    monitor = SourceMonitor(LINK, None)
    monitor.set_recorded(recorded)
    led(source, 7, 400)
    previous = seen_by(monitor, source)
    if is_restarted:
        monitor = SourceMonitor(LINK, previous, recorded)
    led(source, 4, 260)
    told.update({3: 200})
    assert list(seen_by(monitor, source).get_rewritten()) == [(A0, 7, 200)]
    led(source, 4, 500)
    loss = compute_loss(recorded, seen_by(monitor, source), {A0: Offset(400)}, (), now_ms=100_000)
    assert loss.partitions[A0].missing == 300
    led(source, 7, 500)
    told.update({7: 500})
    assert not list(seen_by(monitor, source).get_rewritten()), "the leader that was seen before is back"


def test_a_restored_source_counts_no_more_once_both_logs_were_compared(told: dict[int, int]) -> None:
    source, recorded = Logs(), {A0: replace(status(A0), source_epoch=7)}
    monitor = SourceMonitor(LINK, None)
    monitor.set_recorded(recorded)
    led(source, 7, 400)
    seen_by(monitor, source)
    led(source, 4, 200)
    told.update({3: 200})
    assert list(seen_by(monitor, source).get_rewritten()) == [(A0, 7, 200)]
    monitor.set_recorded({A0: replace(status(A0), source_epoch=4)})
    led(source, 4, 410)
    assert not list(seen_by(monitor, source).get_rewritten())
    told.update({4: 410})
    led(source, 5, 420)
    assert not list(seen_by(monitor, source).get_rewritten())


def test_a_source_that_refuses_connections_is_dated_by_the_first_until_it_accepts_one(
    clock: SimpleNamespace,
) -> None:
    source, monitor = Logs(a=[(0, 10)]), SourceMonitor(LINK, None, generation=7)
    monitor.record_failure(ConnectionRefused("before it was ever observed"))
    assert monitor.pop_observation() is None
    seen_by(monitor, source)
    monitor.pop_observation()
    for error, recorded in (
        (Unreachable("timed out"), "nothing new"),
        (ConnectionRefused("first"), (102_000, 7)),
        (ConnectionRefused("second"), "nothing new"),
        (Unreachable("timed out: perhaps it takes writes"), (None, None)),
        (ConnectionRefused("third"), (105_000, 7)),
    ):
        clock.now += 1
        monitor.record_failure(error)
        observation = monitor.pop_observation()
        seen = "nothing new" if observation is None else (observation.refused_ms, observation.refused_generation)
        assert seen == recorded, str(error)
    assert seen_by(monitor, source).refused_ms is None


def test_looks_that_failed_do_not_lower_the_rate_of_appends(clock: SimpleNamespace) -> None:
    monitor = SourceMonitor(LINK, None)
    seen_by(monitor, Logs(a=[(0, 0)]))
    clock.now += 10
    assert seen_by(monitor, Logs(a=[(0, 1_000)])).offsets_per_s == 100.0
    for error in (Unreachable("timed out"), ConnectionRefused("down")):
        clock.now += 60
        monitor.record_failure(error)
    clock.now += 10
    assert seen_by(monitor, Logs(a=[(0, 1_005)])).offsets_per_s == 100.0
    clock.now += 10
    assert seen_by(monitor, Logs(a=[(0, 1_405)])).offsets_per_s == 70.0


class OfOneBroker(Topics):
    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        return replace(super().metadata(topics), brokers={1: ("host", 1)})


def test_a_listing_of_cut_off_brokers_hides_no_topic_that_was_seen_since(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clocks(monkeypatch, source)
    ages_ms = {1: 0}
    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: True)
    monkeypatch.setattr(source_monitor, "fetch_metadata_ages_ms", lambda _: ages_ms)
    topics = cast("Any", OfOneBroker(TopicMetadata("a", "i", False, {0: Leader(1, 0)}, 1, 1)))
    monitor = SourceMonitor(LINK, None)
    first = monitor.observe(topics, cast("Any", None))
    topics.views.clear()
    source.now += 10.0
    ages_ms[1] = 60_000
    second = monitor.observe(topics, cast("Any", None))
    assert first.listed_ms == second.listed_ms == first.transactions_ms == second.transactions_ms == 100_000
    assert [topic.topic for topic in second.topics] == ["a"]


def test_transactions_that_a_cut_off_broker_does_not_list_have_not_ended(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clocks(monkeypatch, source)
    ages_ms, listed = {1: 0}, [ONE, {}, {}]
    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: True)
    monkeypatch.setattr(source_monitor, "fetch_metadata_ages_ms", lambda _: ages_ms)
    monkeypatch.setattr(source_monitor, "_list_open_transactions", lambda *_: listed.pop(0))
    monitor, topics = SourceMonitor(LINK, None), cast("Any", OfOneBroker())
    first = monitor.observe(topics, cast("Any", None))
    source.now += 10.0
    ages_ms[1] = 5_000
    second = monitor.observe(topics, cast("Any", None))
    assert second.transactions == first.transactions, "it knows what was so 5 s ago"
    assert second.transactions_ms == first.transactions_ms == 100_000
    ages_ms[1] = 0
    third = monitor.observe(topics, cast("Any", None))
    assert [one.state for one in third.transactions] == [TRANSACTION_OVER]
    assert third.transactions_ms == 110_000


@pytest.mark.parametrize(
    ("replies", "listed_ms"),
    [
        ([RemoteFault("UNKNOWN_SERVER_ERROR"), RemoteFault("UNKNOWN_SERVER_ERROR")], 110_000),
        ([{1: 0}, RemoteFault("UNKNOWN_SERVER_ERROR")], 100_000),
        ([Unreachable("timed out"), Unreachable("timed out")], None),
        ([{1: 0}, Unreachable("timed out")], 100_000),
        ([RemoteFault("UNKNOWN_SERVER_ERROR"), Unreachable("timed out")], 100_000),
    ],
    ids=["never tell", "tell no more", "always silent", "silent now", "silent after an error"],
)
def test_controllers_that_answer_but_never_tell_leave_no_end_without_a_time(
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    replies: Sequence[Mapping[int, int] | RemoteFault],
    listed_ms: int | None,
) -> None:
    """Silence may mean that the broker which was asked is cut off from them. An answer does not."""
    set_clocks(monkeypatch, source)
    answers = list(replies)

    def fetch(_: object) -> Mapping[int, int]:
        answer = answers.pop(0)
        if isinstance(answer, RemoteFault):
            raise answer
        return answer

    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: True)
    monkeypatch.setattr(source_monitor, "fetch_metadata_ages_ms", fetch)
    monkeypatch.setattr(Topics, "mark_metadata_stale", lambda _: None, raising=False)
    monitor, topics = SourceMonitor(LINK, None), cast("Any", OfOneBroker())
    monitor.observe(topics, cast("Any", None))
    source.now += 10.0
    assert monitor.observe(topics, cast("Any", None)).listed_ms == listed_ms


def test_controllers_that_hang_hold_up_no_look_and_hide_no_silent_source(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, source_dies = threading.Event(), threading.Event()

    class Client(OfOneBroker):
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def clone(self) -> Client:
            return self

        def mark_metadata_stale(self) -> None: ...

        def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
            if source_dies.is_set():
                raise Unreachable("timed out")
            return super().metadata(topics)

    def hang(_: object) -> Mapping[int, int]:
        answers.wait()
        raise Unreachable("timed out")

    monkeypatch.setattr(source_monitor, "ClusterClient", lambda *_, **__: Client())
    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: True)
    monkeypatch.setattr(source_monitor, "fetch_metadata_ages_ms", hang)
    monkeypatch.setattr(source_monitor, "_list_open_transactions", lambda *_: {})
    monkeypatch.setattr(source_monitor, "list_available_offsets", lambda *_, **__: OffsetsResult({}, frozenset()))
    monitor = SourceMonitor(cast("Any", SimpleNamespace(mirror=LINK.mirror, source=None, destination=None)), None)
    monitor.start()
    try:
        wait_until(lambda: monitor.has_observed, timeout_s=30, why="brokers answer, controllers do not")
        assert monitor.newest_observation is not None
        assert monitor.newest_observation.listed_ms is None, "the broker may be cut off from them"
        assert not monitor.pop_interruption()
        source_dies.set()
        wait_until(monitor.pop_interruption, timeout_s=30, why="the source is silent, too")
    finally:
        monitor.close()
        answers.set()


def test_controllers_that_hang_do_not_hold_up_a_copy_that_ends(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, has_ended = threading.Event(), threading.Event()
    monkeypatch.setattr(source_monitor, "supports_describe_quorum", lambda _: not answers.wait())
    monkeypatch.setattr(source_monitor, "fetch_metadata_ages_ms", lambda _: {})
    watch, kept = SourceWatch.__new__(SourceWatch), list[SourceObservation]()
    watch.monitor, watch.reported_ends = SourceMonitor(LINK, None), ReportedEnds({})
    watch.heartbeat_writer = cast("Any", SimpleNamespace(allow=lambda _: None))
    lease = cast("Any", SimpleNamespace(lease=None, put=kept.append))

    def end() -> None:
        watch.observe_once(lease, cast("Any", OfOneBroker()), cast("Any", None))
        has_ended.set()

    threading.Thread(target=end, daemon=True).start()
    try:
        wait_until(has_ended.is_set, timeout_s=30, why="the last look waits a moment only")
        assert [observation.listed_ms for observation in kept] == [None], "the broker may be cut off from them"
    finally:
        watch.monitor.close()
        answers.set()


def test_filters_that_change_are_listed_at_the_next_look(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a listing takes long."""
    monkeypatch.setattr(source_monitor, "_LISTING_PAUSE_FACTOR", float("inf"))
    source, mirror = Logs(a=[(0, 10)], z=[(0, 777)]), LINK.mirror
    link = MirrorLink(config=cast("Any", None), mirror=mirror, source=cast("Any", None), destination=cast("Any", None))
    look = SourceMonitor(link, None)
    look.set_recorded(RECORDED)
    seen_by(look, source)
    for changed in (replace(mirror, topics=(*mirror.topics, "z")), replace(mirror, topics=("a.*",))):
        look.set_mirror(changed)
        clock.now += 1
        sighting = seen_by(look, source)
        assert (sighting.listed_by, sighting.listed_ms) == (changed.topic_filters, int(clock.now * 1000))
        is_carried = "z" in changed.topics
        assert missing(sighting) == ({A0: 0, Partition("z", 0): 777} if is_carried else {A0: 0})
    listings = source.listings
    seen_by(look, source)
    assert source.listings == listings
