"""Figures under names: unknown is absent, estimates need something to go by, and asking never disturbs copying."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing
from dataclasses import replace

import httpx
import pytest
import typer
from prometheus_client import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from mirror_core.cli.http_server import parse_address, serve_metrics
from mirror_core.copy.driver_messages import ProgressSender
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.task_datagrams import Datagram, DatagramKind, DriverChannel, open_datagram, seal_datagram
from mirror_core.dataplane import prometheus_collector
from mirror_core.dataplane.counters import CopiedCounts, Counters, RetriedWork
from mirror_core.dataplane.datagram_receiver import DatagramReceiver
from mirror_core.dataplane.heartbeat_writer import HeartbeatOutcome
from mirror_core.dataplane.metric_names import METRICS
from mirror_core.dataplane.progress import TASK_PROGRESS_DECODER, PartitionFigures, ProgressTracker
from mirror_core.dataplane.prometheus_collector import MetricsCollector, build_families
from mirror_core.decide.deletion_hold import EarlyDeletion
from mirror_core.decide.gaps_and_resume import FILLED_STEP_OFFSETS, ResumePoint
from mirror_core.decide.loss_bound import compute_loss
from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import NeverCopied, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.task_messages import ListenAddress, PartitionAssignment
from tests.support.metric_reports import MIRROR, counters, report, status


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_collector, "now_ms", lambda: 1_000_000)


A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def figures(
    lag: int | None,
    time_lag_s: float | None = None,
    source_age_s: float | None = None,
    to_seed: int | None = 0,
) -> PartitionFigures:
    return PartitionFigures(
        position=Offset(100),
        source_end=None if lag is None else Offset(100 + lag),
        lag=lag,
        time_lag_s=time_lag_s,
        source_age_s=source_age_s,
        to_seed=to_seed,
    )


def value(found: list[Metric], name: str, **labels: str) -> float | None:
    """The one sample of this name with these labels, besides the mirror; None when there is none."""
    wanted = {"mirror": "m", **labels}
    values = [s.value for metric in found for s in metric.samples if s.name == name and s.labels == wanted]
    assert len(values) <= 1, f"{name} {labels} is there more than once"
    return values[0] if values else None


def text(collector: Collector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    found: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return found.decode()


# -- lags ----------------------------------------------------------------------------------------------------------


def test_lags_of_a_topic_add_up_and_the_worst_time_counts() -> None:
    told = counters(status(A0), status(A1), status(B0)).snapshot()
    seen = {A0: figures(5, 2.0, 100.0), A1: figures(7, 0.5, 200.0), B0: figures(0, 0.0, 50.0)}
    found = build_families(MIRROR, told, seen)
    assert value(found, "mirrorbook_lag_offsets", topic="a") == 12
    assert value(found, "mirrorbook_lag_seconds", topic="a") == 2.0
    assert value(found, "mirrorbook_source_seen_timestamp_seconds", topic="a") == 800.0
    assert value(found, "mirrorbook_lag_unknown_partitions", topic="a") == 0
    assert value(found, "mirrorbook_lag_offsets", topic="b") == 0


@pytest.mark.parametrize("other", [None, figures(None, None, 200.0)], ids=["nothing heard of it", "its end is unknown"])
def test_one_unknown_partition_makes_its_topic_unknown_and_no_other(other: PartitionFigures | None) -> None:
    told = counters(status(A0), status(A1), status(B0)).snapshot()
    seen = {A0: figures(5, 2.0, 100.0), B0: figures(1, 1.0, 50.0)} | ({A1: other} if other else {})
    found = build_families(MIRROR, told, seen)
    for name in ("offsets", "seconds", "estimated_records", "estimated_bytes"):
        assert value(found, f"mirrorbook_lag_{name}", topic="a") is None
    assert value(found, "mirrorbook_lag_unknown_partitions", topic="a") == 1
    assert value(found, "mirrorbook_source_seen_timestamp_seconds", topic="a") == (800.0 if other else None)
    assert value(found, "mirrorbook_lag_offsets", topic="b") == 1


def test_a_backlog_of_unknown_age_has_offsets_and_no_seconds() -> None:
    found = build_families(MIRROR, counters(status(A0)).snapshot(), {A0: figures(5, None, 100.0)})
    assert value(found, "mirrorbook_lag_offsets", topic="a") == 5
    assert value(found, "mirrorbook_lag_seconds", topic="a") is None


def test_nobody_is_called_because_the_lag_of_a_paused_topic_is_unknown() -> None:
    counting = counters()
    counting.set_recorded([status(A0), status(B0)], None, {}, ("a",))
    found = build_families(MIRROR, counting.snapshot(), {A0: figures(None, None, 200.0), B0: figures(0, 0.0, 50.0)})
    assert value(found, "mirrorbook_lag_unknown_partitions", topic="a") is None
    assert value(found, "mirrorbook_lag_unknown_partitions", topic="b") == 0
    assert value(found, "mirrorbook_partitions", topic="a", state=PartitionState.MIRRORING) == 1


@pytest.mark.parametrize(("other", "left"), [(0, 500), (20, 520), (None, None)])
def test_what_is_left_to_seed_adds_up_where_all_of_it_is_known(other: int | None, left: int | None) -> None:
    seen = {A0: figures(None, to_seed=500), A1: figures(3, to_seed=other), B0: figures(0)}
    found = build_families(MIRROR, counters(status(A0), status(A1), status(B0)).snapshot(), seen)
    assert value(found, "mirrorbook_unseeded_offsets", topic="a") == left
    assert value(found, "mirrorbook_unseeded_offsets", topic="b") == 0


def test_estimates_follow_what_was_copied_and_are_absent_before() -> None:
    counting = counters(status(A0))
    seen = {A0: figures(10, 1.0, 100.0)}
    found = build_families(MIRROR, counting.snapshot(), seen)
    assert value(found, "mirrorbook_lag_estimated_records", topic="a") is None
    assert value(found, "mirrorbook_lag_estimated_bytes", topic="a") is None
    counting.count_epoch([report(A0, 0, 50, 4000)], 30.0)  # 100 offsets with 50 records
    found = build_families(MIRROR, counting.snapshot(), seen)
    assert value(found, "mirrorbook_lag_estimated_records", topic="a") == 5
    assert value(found, "mirrorbook_lag_estimated_bytes", topic="a") == 400
    nothing = build_families(MIRROR, counters(status(A0)).snapshot(), {A0: figures(0, 0.0, 100.0)})
    assert value(nothing, "mirrorbook_lag_estimated_bytes", topic="a") == 0, "no lag takes no bytes: that is known"


@pytest.mark.parametrize("state", [PartitionState.FAILED, PartitionState.STOPPED, PartitionState.PAUSED])
def test_what_is_not_copied_has_a_state_and_no_lag(state: PartitionState) -> None:
    found = build_families(MIRROR, counters(status(A0, state)).snapshot(), {A0: figures(5, 2.0, 100.0)})
    assert value(found, "mirrorbook_partitions", topic="a", state=state) == 1
    assert value(found, "mirrorbook_lag_offsets", topic="a") is None
    assert value(found, "mirrorbook_lag_unknown_partitions", topic="a") is None


# -- what the driver counts ----------------------------------------------------------------------------------------


def test_states_are_counted_by_topic_and_failed_is_said_even_when_it_is_none() -> None:
    told = counters(status(A0), status(A1, PartitionState.FAILED), status(B0)).snapshot()
    found = build_families(MIRROR, told, {})
    assert value(found, "mirrorbook_partitions", topic="a", state="MIRRORING") == 1
    assert value(found, "mirrorbook_partitions", topic="a", state="FAILED") == 1
    assert value(found, "mirrorbook_partitions", topic="b", state="FAILED") == 0
    assert value(found, "mirrorbook_partitions", topic="b", state="PAUSED") is None


def test_receipts_add_up_by_topic() -> None:
    counting = Counters()
    counting.count_epoch([report(A0, 0, 50, 4000), report(A1, 0, 10, 100, retry="broker 1 went away")], 30.2)
    counting.count_epoch([report(A0, 100, 5, 40), report(B0, 7, 1, 9)], 3.0)
    told = counting.snapshot()
    assert told.copied == {
        "a": CopiedCounts(offsets=130, records=65, gaps=65, batches=9, bytes=4140),
        "b": CopiedCounts(offsets=2, records=1, gaps=1, batches=3, bytes=9),
    }
    assert told.cpu_s == 2.0
    found = build_families(MIRROR, told, {})
    assert value(found, "mirrorbook_copied_records_total", topic="a") == 65
    assert value(found, "mirrorbook_filled_offsets_total", topic="a") == 65
    assert value(found, "mirrorbook_retries_total", what="task") == 1
    assert value(found, "mirrorbook_retries_total", what="plan") == 0
    name = "mirrorbook_epoch_duration_seconds"
    assert [value(found, f"{name}_bucket", le=le) for le in ("1.0", "10.0", "29.0", "31.0", "+Inf")] == [0, 1, 1, 2, 2]
    assert value(found, f"{name}_count") == 2
    assert value(found, f"{name}_sum") == pytest.approx(33.2)


def test_an_epoch_longer_than_every_bucket_is_counted_in_the_last() -> None:
    counting = Counters()
    counting.count_epoch([], 5000.0)
    found = build_families(MIRROR, counting.snapshot(), {})
    assert value(found, "mirrorbook_epoch_duration_seconds_bucket", le="120.0") == 0
    assert value(found, "mirrorbook_epoch_duration_seconds_bucket", le="+Inf") == 1


def test_a_throttle_is_said_and_no_throttle_is_absent() -> None:
    counting = counters(status(A0))
    assert value(build_families(MIRROR, counting.snapshot(), {}), "mirrorbook_throttle_bytes_per_second") is None
    counting.set_recorded([status(A0)], throttle=50_000, known_ms={})
    assert value(build_families(MIRROR, counting.snapshot(), {}), "mirrorbook_throttle_bytes_per_second") == 50_000


@pytest.mark.parametrize("what", RetriedWork)
def test_retries_are_counted_by_kind(what: RetriedWork) -> None:
    counting = Counters()
    counting.count_retry(what)
    found = build_families(MIRROR, counting.snapshot(), {})
    assert {w: value(found, "mirrorbook_retries_total", what=w) for w in RetriedWork} == {
        w: w is what for w in RetriedWork
    }


def test_without_a_lease_there_is_no_heartbeat() -> None:
    found = build_families(MIRROR, Counters().snapshot(), {})
    assert value(found, "mirrorbook_heartbeat_timestamp_seconds") is None
    assert value(found, "mirrorbook_data_plane_info", source="east", destination="west") == 1


# -- if the source died now ----------------------------------------------------------------------------------------


def test_what_was_last_seen_of_the_source_counts_however_long_ago() -> None:
    seen = SourceObservation(mirror=MIRROR.name, at_ms=900_000, topics=(ObservedTopic(topic="a", ends=(107, 103)),))
    told = replace(
        counters(status(A0), status(A1)).snapshot(),
        observation=seen,
        heartbeat_ms=899_500,
        heartbeats={HeartbeatOutcome.ACKNOWLEDGED: 3, HeartbeatOutcome.HELD: 1},
    )
    found = build_families(MIRROR, told, {A0: figures(None), A1: figures(None)})
    assert value(found, "mirrorbook_source_looked_at_timestamp_seconds") == 900
    assert value(found, "mirrorbook_missing_known_offsets") == 10
    assert value(found, "mirrorbook_source_heartbeat_timestamp_seconds") == 899.5
    assert value(found, "mirrorbook_heartbeats_total", outcome="held") == 1
    assert value(found, "mirrorbook_source_leaderless_partitions", topic="a") is None
    cut = replace(
        told, recorded={A0: status(A0), A1: status(A1)}, early_deletions={A1: EarlyDeletion(Offset(20), Offset(60))}
    )
    lost = build_families(MIRROR, cut, {A0: figures(None), A1: figures(None)})
    assert value(lost, "mirrorbook_missing_known_offsets") == 50, "the copy of a-1 lacks its beginning, too"
    nowhere = build_families(MIRROR, told, {A0: figures(None)})
    assert value(nowhere, "mirrorbook_missing_known_offsets") is None, "where the copy of a-1 stands is not known"


@pytest.mark.parametrize(
    ("ages_ms", "offline", "failed", "seen_s"),
    [
        ((), (), (), 900),
        ((0, 40_000), (), (), 860),
        ((0, 40_000), (1,), (), 900),
        ((0, 40_000), (), (A1,), 900),
        ((5_000, 40_000), (0,), (A1,), None),
    ],
    ids=["new", "silent or cut off", "nobody leads it", "not copied", "no end counts"],
)
def test_the_source_was_looked_at_when_the_oldest_end_of_the_bound_was_seen(
    ages_ms: tuple[int, ...], offline: tuple[int, ...], failed: tuple[Partition, ...], seen_s: float | None
) -> None:
    row = ObservedTopic(topic="a", ends=(107, 103), ages_ms=ages_ms, offline=offline)
    statuses = {p: status(p, PartitionState.FAILED if p in failed else PartitionState.MIRRORING) for p in (A0, A1)}
    observation = SourceObservation(mirror=MIRROR.name, at_ms=900_000, topics=(row,))
    counts = replace(counters(*statuses.values()).snapshot(), observation=observation)
    found = build_families(MIRROR, counts, {})
    assert value(found, "mirrorbook_source_looked_at_timestamp_seconds") == seen_s
    bound = compute_loss(statuses, observation, {A0: Offset(1), A1: Offset(1)}, (), now_ms=1_000_000)
    assert bound.observed_s == (None if seen_s is None else 1_000 - seen_s)


def test_what_has_no_copy_is_missing_as_a_whole_and_unknown_where_nobody_knows_how_much_it_is() -> None:
    new = ObservedTopic(topic="b", ends=(30,), starts=((0, 5),))
    rewritten = ObservedTopic(topic="a", ends=(107, 103), rewritten=((1, 0, 90),))
    copied = replace(status(A1), source_epoch=0)
    seen = SourceObservation(mirror=MIRROR.name, at_ms=900_000, topics=(rewritten, new))

    def missing(observation: SourceObservation, *statuses: PartitionStatus) -> float | None:
        told = replace(counters(status(A0), *statuses).snapshot(), observation=observation)
        found = build_families(MIRROR, told, {A0: figures(None), A1: figures(None)})
        return value(found, "mirrorbook_missing_known_offsets")

    assert missing(seen, copied) == 7 + 13 + 25
    assert missing(replace(seen, topics=(rewritten, replace(new, starts=()))), copied) is None
    assert missing(seen, status(A1, PartitionState.FAILED)) is None, "its copy's end is not known here"


def test_partitions_that_nobody_leads_are_counted() -> None:
    rows = ObservedTopic(topic="a", ends=(107, None, 5), offline=(1, 2)), ObservedTopic(topic="b", ends=(1,))
    told = replace(counters().snapshot(), observation=SourceObservation(mirror=MIRROR.name, at_ms=1, topics=rows))
    found = build_families(MIRROR, told, {})
    assert value(found, "mirrorbook_source_leaderless_partitions", topic="a") == 2
    assert value(found, "mirrorbook_source_leaderless_partitions", topic="b") is None


def test_what_the_source_holds_and_the_copy_does_not_is_told_since_when() -> None:
    told = replace(counters(status(A0), status(A1)).snapshot(), incomplete_since_ms={A0: 90_000, A1: 70_000, B0: 1_000})
    found = build_families(MIRROR, told, {})
    assert value(found, "mirrorbook_not_whole_since_timestamp_seconds", topic="a") == 70
    assert value(found, "mirrorbook_not_whole_since_timestamp_seconds", topic="b") is None, "no task copies it"


def test_what_a_comparison_beside_the_copying_found_is_told_once_there_was_one() -> None:
    counting = counters()
    assert value(build_families(MIRROR, counting.snapshot(), {}), "mirrorbook_findings") is None
    counting.set_findings(0)
    assert value(build_families(MIRROR, counting.snapshot(), {}), "mirrorbook_findings") == 0


# -- as Prometheus reads it ----------------------------------------------------------------------------------------


def test_of_filled_offsets_the_fullest_partition_of_a_topic_is_told() -> None:
    fuller = replace(status(A1), filled_gap_offsets=3 * FILLED_STEP_OFFSETS)
    found = build_families(
        MIRROR, counters(replace(status(A0), filled_gap_offsets=FILLED_STEP_OFFSETS), fuller, status(B0)).snapshot(), {}
    )
    assert value(found, "mirrorbook_filled_offsets_of_a_partition", topic="a") == 3 * FILLED_STEP_OFFSETS
    assert value(found, "mirrorbook_filled_offsets_of_a_partition", topic="b") is None


def test_what_was_never_copied_is_told_by_topic_as_the_state_topic_has_it() -> None:
    first, last = (
        NeverCopied(offsets=n, since_ms=1_000, newest_ms=at_ms, first=Offset(0), next=Offset(n))
        for n, at_ms in ((30, 9_500), (7, 2_000))
    )
    counting = counters(replace(status(A0), never_copied=first), replace(status(A1), never_copied=last), status(B0))
    found = build_families(MIRROR, counting.snapshot(), {})
    assert value(found, "mirrorbook_never_copied_offsets_total", topic="a") == 37
    assert value(found, "mirrorbook_never_copied_timestamp_seconds", topic="a") == 9.5
    assert value(found, "mirrorbook_never_copied_offsets_total", topic="b") is None
    counting.set_recorded([status(A0)], None, {})  # copied anew
    assert (
        value(build_families(MIRROR, counting.snapshot(), {}), "mirrorbook_never_copied_offsets_total", topic="a")
        is None
    )


def test_what_is_served_is_openmetrics_with_the_names_types_and_labels_of_the_table() -> None:
    counting = counters(status(A0), status(B0, PartitionState.FAILED))
    counting.count_epoch([report(A0, 0, 50, 4000)], 30.0)
    counting.set_findings(2)
    progress = ProgressTracker(lambda: 1000.0)
    rows = [["a", 0, 10, 12, 10, 100, 0, 0]]
    progress.update(TASK_PROGRESS_DECODER.decode(json.dumps({"task": 0, "t": 1000, "rows": rows})), 1)
    served_text = text(MetricsCollector(MIRROR, counting, progress))
    read = {m.name: m for m in text_string_to_metric_families(served_text)}  # type: ignore[no-untyped-call]
    assert set(read) == {described.family for described in METRICS}
    for described in METRICS:
        family = read[described.family]
        assert family.type == described.kind
        assert described.kind != "counter" or described.name.endswith("_total")
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {"mirror", *described.labels}
    empty = {name for name, family in read.items() if not family.samples}
    assert empty == {
        "mirrorbook_source_looked_at_timestamp_seconds",  # nobody watches the source here
        "mirrorbook_source_leaderless_partitions",
        "mirrorbook_missing_known_offsets",
        "mirrorbook_not_whole_since_timestamp_seconds",
        "mirrorbook_source_heartbeat_timestamp_seconds",
        "mirrorbook_heartbeats",
        "mirrorbook_heartbeat_timestamp_seconds",
        "mirrorbook_lease_generation",
        "mirrorbook_throttle_bytes_per_second",
        "mirrorbook_filled_offsets_of_a_partition",  # fewer than a step
        "mirrorbook_never_copied_offsets",  # nothing was
        "mirrorbook_never_copied_timestamp_seconds",
        "mirrorbook_lag_seconds",  # behind when it was first looked at: since when is not known
    }


# -- the endpoint --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9465", ("127.0.0.1", 9465)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9465", ("0.0.0.0", 9465)),
        ("metrics.example:80", ("metrics.example", 80)),
        ("[::1]:9465", ("::1", 9465)),
    ],
)
def test_addresses(given: str, expected: tuple[str, int]) -> None:
    assert parse_address(given) == expected


@pytest.mark.parametrize(
    "given", ["", "x", ":9465", "host", "host:", "host:x", "65536", "-1", "::1:9465", "a b:1", "h:1:2"]
)
def test_what_is_no_address_is_turned_down(given: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not \[HOST:\]PORT"):
        parse_address(given)


def ask(said: list[str], accept: str = "*/*") -> httpx.Response:
    return httpx.get(said[0].removeprefix("metrics: "), headers={"Accept": accept}, trust_env=False)


def test_it_answers_in_the_format_that_is_asked_for_until_it_is_left() -> None:
    said: list[str] = []
    with serve_metrics(
        ("127.0.0.1", 0), MetricsCollector(MIRROR, counters(status(A0)), ProgressTracker()), said.append
    ):
        plain, open_metrics = ask(said), ask(said, "application/openmetrics-text; version=1.0.0")
        assert plain.headers["content-type"].startswith("text/plain")
        assert 'mirrorbook_partitions{mirror="m",state="FAILED",topic="a"} 0.0' in plain.text
        assert "python_info" not in plain.text
        assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert open_metrics.text.endswith("# EOF\n")
    with pytest.raises(httpx.ConnectError):
        ask(said)


def test_somebody_who_connects_and_says_nothing_keeps_nobody_waiting() -> None:
    said: list[str] = []
    with serve_metrics(
        ("127.0.0.1", 0), MetricsCollector(MIRROR, counters(status(A0)), ProgressTracker()), said.append
    ):
        port = httpx.URL(said[0].removeprefix("metrics: ")).port
        assert port is not None
        silent = socket.create_connection(("127.0.0.1", port))
        assert ask(said).status_code == 200
    silent.close()


def test_an_address_that_cannot_be_had_is_named_with_the_reason() -> None:
    nothing = MetricsCollector(MIRROR, Counters(), ProgressTracker())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(BadRequest, match=rf"127\.0\.0\.1:{port}: Address already in use: give --metrics another"),
            serve_metrics(("127.0.0.1", port), nothing, print),
        ):
            pytest.fail("it was entered")
    with (
        pytest.raises(BadRequest, match=r"served on 192\.0\.2\.1:0: Cannot assign requested address"),
        serve_metrics(("192.0.2.1", 0), nothing, print),
    ):
        pytest.fail("it was entered")


def test_nothing_is_served_unless_asked_for() -> None:
    said: list[str] = []
    with serve_metrics(None, MetricsCollector(MIRROR, Counters(), ProgressTracker()), said.append):
        assert said == []


# -- the task's side -----------------------------------------------------------------------------------------------


def test_a_task_that_lost_its_place_does_not_repeat_an_old_end_of_the_source() -> None:
    heard: list[Datagram] = []

    def hear(letter: Datagram) -> bytes:
        heard.append(letter)
        return b""

    replicator = PartitionReplicator(PartitionAssignment(partition=A0, source_topic_id="", destination_topic_id=""))
    replicator.resume_at(ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False))
    replicator.source.note_end(12)
    with (
        DatagramReceiver(ListenAddress(), {DatagramKind.PROGRESS: hear}) as channel,
        closing(DriverChannel(1, channel.address_for(1))) as line,
    ):
        beacon = ProgressSender(0, line, time.time)
        beacon.send([replicator])
        replicator.mark_lost("its leader moved")
        beacon.send([replicator], last=True)
    told = [TASK_PROGRESS_DECODER.decode(letter.body) for letter in heard]
    assert [one.rows for one in told] == [[("a", 0, 10, 12, 0, 0, 0, 10)], [("a", 0, 10, None, 0, 0, 0, 10)]]


def test_ten_thousand_partitions_are_told_in_packets_that_every_network_carries() -> None:
    """Not all in one breath: whoever listens has a buffer, and what it can't hold is lost."""
    told: list[bytes] = []

    class Known(DriverChannel):
        is_open = True

        def send(self, kind: DatagramKind, body: bytes) -> None:
            told.append(seal_datagram("known", Datagram(kind, 1, bytes(8), 1, body)))

    many = [
        PartitionReplicator(
            PartitionAssignment(partition=Partition("x" * 249, i), source_topic_id="", destination_topic_id="")
        )
        for i in range(10_000)
    ]
    for one in many:
        one.resume_at(ResumePoint(offset=10**12, sequence=10, gap_end=10**12, seed_end=10**12, must_check_tail=False))
    beacon = ProgressSender(0, Known(1, None), time.time)
    while not told or beacon._waiting:
        before = len(told)
        beacon.send(many)
        assert len(told) - before <= 50
    letters = [open_datagram(datagram, lambda _: "known") for datagram in told]
    assert max(map(len, told)) <= 1_200
    assert {row[1] for letter in letters if letter for row in TASK_PROGRESS_DECODER.decode(letter.body).rows} == set(
        range(10_000)
    )
