"""The benchmarks' arithmetic: a missed target is said to be missed, and nothing is met by not being measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.copiers import Copier
from benchmarks.copy import Phase
from benchmarks.datasets import SETS, described, records_of
from benchmarks.latency import Window, figures, latencies_ms
from benchmarks.measure import Meter, Reading
from benchmarks.report import turns
from benchmarks.traffic import PAIR
from benchmarks.verdict import Figures, Outcome, of_copies, of_gate, of_latencies, of_memory, of_scale, summary
from mirror_core.wire.batch import HEADER, HEADER_SIZE

MIB = 1 << 20


def run(copier_cpu: float, all_cpu: float = 1.0, wall: float = 1.0) -> Figures:
    return {"copier_cpu_s_per_gb": copier_cpu, "all_cpu_s_per_gb": all_cpu, "copy_s_per_gb": wall}


def outcomes(data_set: str, mine: list[Figures], theirs: list[Figures]) -> list[Outcome]:
    return [v.outcome for v in of_copies(data_set, ["local", "mm2-tuned"], {"local": mine, "mm2-tuned": theirs})]


@pytest.mark.parametrize(
    ("data_set", "cpu", "outcome"),
    [
        ("d1", 1.4, Outcome.MET),
        ("d1", 1.5, Outcome.MISSED),
        ("d2", 1.0, Outcome.MET),
        ("d2", 1.1, Outcome.MISSED),
        ("d3", 1.1, Outcome.MISSED),
    ],
)
def test_the_copiers_cpu_is_held_against_the_limit_of_its_data_set(data_set: str, cpu: float, outcome: Outcome) -> None:
    assert outcomes(data_set, [run(cpu)], [run(10.0)])[0] is outcome


def test_cpu_of_all_and_wall_time_have_limits_of_their_own() -> None:
    theirs = [run(10.0, all_cpu=24.0, wall=8.0)]
    assert outcomes("d1", [run(1.0, all_cpu=8.0, wall=7.9)], theirs) == [Outcome.MET, Outcome.MET, Outcome.MET]
    assert outcomes("d1", [run(1.0, all_cpu=8.1, wall=8.0)], theirs) == [Outcome.MET, Outcome.MISSED, Outcome.MISSED]


def test_the_median_of_the_runs_decides() -> None:
    assert outcomes("d1", [run(1.0), run(1.4), run(9.0)], [run(10.0)])[0] is Outcome.MET
    assert outcomes("d1", [run(1.0), run(9.0), run(9.5)], [run(10.0)])[0] is Outcome.MISSED


@pytest.mark.parametrize(("mine", "theirs"), [([], [run(10.0)]), ([run(1.0)], []), ([], [])])
def test_without_samples_no_target_is_met(mine: list[Figures], theirs: list[Figures]) -> None:
    assert set(outcomes("d1", mine, theirs)) == {Outcome.INDETERMINATE}


def test_a_set_without_a_cpu_target_still_has_the_others() -> None:
    assert len(outcomes("d4", [run(1.0)], [run(10.0)])) == 2


def test_latency_is_held_against_the_better_mirror_maker() -> None:
    def latency(p50: float, p99: float) -> Figures:
        return {"p50_ms": p50, "p99_ms": p99, "epoch_changes": 1}

    samples: dict[str, list[Figures]] = {
        "local": [latency(5.0, 60.0)],
        "mm2-default": [{"p50_ms": 6.0, "p99_ms": 54.0}],
        "mm2-tuned": [{"p50_ms": 30.0, "p99_ms": 70.0}],
    }
    assert [v.outcome for v in of_latencies(["local"], samples)] == [Outcome.MET, Outcome.MISSED]
    without: dict[str, list[Figures]] = {**samples, "local": [{**latency(5.0, 5.0), "epoch_changes": 0}]}
    assert {v.outcome for v in of_latencies(["local"], without)} == {Outcome.INDETERMINATE}
    assert {v.outcome for v in of_latencies(["local", "spark"], {})} == {Outcome.INDETERMINATE}


def test_memory_is_what_comes_on_top_of_an_idle_process() -> None:
    assert of_memory([80 * MIB], [100 * MIB, 144 * MIB], 64 * MIB).outcome is Outcome.MET
    assert of_memory([80 * MIB], [100 * MIB, 145 * MIB], 64 * MIB).outcome is Outcome.MISSED
    assert of_memory([], [145 * MIB], 64 * MIB).outcome is Outcome.INDETERMINATE
    assert of_memory([80 * MIB], [], 64 * MIB).outcome is Outcome.INDETERMINATE


def test_the_best_of_a_rate_is_the_highest() -> None:
    found = summary({"local": [{"mb_per_s": 10.0, "copy_s": 3.0}, {"mb_per_s": 30.0, "copy_s": 1.0}], "spark": []})
    assert list(found) == ["local"]
    assert (found["local"]["mb_per_s"].median, found["local"]["mb_per_s"].best) == (20.0, 30.0)
    assert found["local"]["copy_s"].best == 1.0


def test_only_what_was_used_within_the_phase_is_counted() -> None:
    before = {"copier": Reading(5.0, 10), "east_broker": Reading(100.0, 10)}
    after = {"copier": Reading(6.0, 2_000_000), "east_broker": Reading(104.0, 10)}
    found = Phase(start_s=7.0, seconds=4.0, gigabytes=2.0, before=before, after=after).figures()
    assert (found["start_s"], found["start_cpu_s"]) == (7.0, 5.0)
    assert (found["copier_cpu_s_per_gb"], found["east_broker_cpu_s_per_gb"]) == (0.5, 2.0)
    assert (found["all_cpu_s_per_gb"], found["mb_per_s"], found["copy_s_per_gb"]) == (2.5, 500.0, 2.0)
    assert found["copier_peak_rss_mb"] == 2.0


def test_latencies_are_ofrecords_of_produced_within_the_window() -> None:
    stamps = [(0, 9_000_000), (10_000_000, 13_000_000), (20_000_000, 21_000_000), (30_000_000, 99_000_000)]
    pairs = b"".join(PAIR.pack(*pair) for pair in stamps)
    # The reader is asked while it writes: half a pair at the end is not yet one.
    assert latencies_ms(pairs + b"\1\2", Window(10_000_000, 30_000_000)) == [1.0, 3.0]


def test_percentiles_are_latencies_that_were_measured() -> None:
    found = figures([float(n) for n in range(1, 1001)])
    expected = {"p50_ms": 500.0, "p90_ms": 900.0, "p99_ms": 990.0, "p99.9_ms": 999.0, "records": 1000}
    assert found == expected
    assert figures([7.0])["p50_ms"] == figures([7.0])["p99.9_ms"] == 7.0
    assert figures([]) == {"records": 0}


@pytest.mark.parametrize("data_set", sorted(SETS))
def test_every_partition_of_a_data_set_gets_its_share(data_set: str) -> None:
    data = SETS[data_set]
    partitions = [partition for partition, _, _ in records_of(data, 2 * data.partitions)]
    assert {partitions.count(index) for index in range(data.partitions)} == {2}
    assert {len(value) for _, _, value in records_of(data, 100)} == {data.value_bytes}


def test_a_log_is_described_by_its_batch_headers(tmp_path: Path) -> None:
    def batch(base: int, last_delta: int, payload: int) -> bytes:
        length = HEADER_SIZE - 12 + payload
        return HEADER.pack(base, length, 0, 2, 0, 0, last_delta, 0, 0, -1, -1, -1, 1) + bytes(payload)

    full = {0: [batch(0, 9, 100), batch(10, 4, 50)], 20: [batch(20, 0, 1)]}
    empty: dict[int, list[bytes]] = {0: []}
    for index, segments in enumerate([full, empty]):
        (tmp_path / f"t-{index}").mkdir()
        for base, batches in segments.items():
            (tmp_path / f"t-{index}" / f"{base:020}.log").write_bytes(b"".join(batches) + bytes(100))
    assert described(tmp_path, "t", 2) == (3, 3 * HEADER_SIZE + 151, 21)


def test_a_dead_copier_still_tells_its_cpu_seconds(tmp_path: Path) -> None:
    code = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        copier = Copier("local", process, tmp_path / "log", tmp_path)
        try:
            with Meter(process.pid, {}) as meter:
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stdout.readline()  # before, it may not have been loaded yet
                assert not copier.ended()
                assert meter.read()["copier"].peak_rss_bytes > MIB
                process.stdin.close()
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                assert copier.ended()
                assert meter.read()["copier"].cpu_s > 0.2  # the kernel counts user and system time in whole ticks
        finally:
            process.kill()


def test_a_copiers_failure_is_told_by_its_own_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("starting\nFAILED t-0: compacted\n\nerror: 1 partitions FAILED\n  - t-0\n", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    copier = Copier("local", process, log, tmp_path)
    assert copier.ended()
    assert copier.last_words() == "FAILED t-0: compacted"
    log.write_text("one\ntwo\n", encoding="utf-8")
    assert copier.last_words() == "two"


def test_copiers_take_turns_and_the_first_round_does_not_count() -> None:
    wanted = [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert list(turns(["a", "b"], 2)) == wanted


def scale(**found: object) -> list[Outcome]:
    met: dict[str, object] = {"plan_first_s": 1.9, "plan_s": [0.5, 2.0], "sync_s": [30.0], "sync_groups_moved_s": 9.0}
    met |= {"sync_first_s": 29.0, "still_s": 8.0, "failover_s": 7.9, "floor_s": 4.0}
    met |= {"create_floor_s": 20.0, "create_to_caught_up_s": 60.0}
    return [verdict.outcome for verdict in of_scale({k: v for k, v in (met | found).items() if v is not None})]


@pytest.mark.parametrize(
    ("found", "number"),
    [
        ({"plan_s": [0.5, 2.1]}, 0),
        ({"plan_first_s": 2.1}, 0),
        ({"sync_s": [1.0, 31.0]}, 1),
        ({"sync_groups_moved_s": 31.0}, 2),
        ({"sync_first_s": 31.0}, 3),
        ({"still_s": 8.1}, 4),
        ({"failover_s": 8.1}, 5),
        ({"create_to_caught_up_s": 60.1}, 6),
    ],
)
def test_the_worst_figure_of_many_topics_counts(found: dict[str, object], number: int) -> None:
    assert set(scale()) == {Outcome.MET}
    expected = [Outcome.MISSED if n == number else Outcome.MET for n in range(7)]
    assert scale(**found) == expected


def test_what_was_not_measured_of_many_topics_is_indeterminate() -> None:
    assert set(scale(floor_s=None)[4:6]) == {Outcome.INDETERMINATE}
    assert scale(plan_first_s=None)[0] is Outcome.INDETERMINATE
    assert scale(create_floor_s=None)[6] is Outcome.INDETERMINATE
    assert {verdict.outcome for verdict in of_scale({})} == {Outcome.INDETERMINATE}


def test_the_gate_reads_a_fiftieth_at_most_and_stands_still_no_longer_after_much() -> None:
    little = {"gigabytes": 0.2, "compared_bytes": 1e6, "still_s": 2.0}

    def outcomes(**much: float) -> list[Outcome]:
        return [v.outcome for v in of_gate([little, {"gigabytes": 20.0, "compared_bytes": 4e8, "still_s": 3.0} | much])]

    assert outcomes() == [Outcome.MET, Outcome.MET]
    assert outcomes(compared_bytes=4.1e8) == [Outcome.MISSED, Outcome.MET]
    assert outcomes(still_s=3.1) == [Outcome.MET, Outcome.MISSED]
    assert [v.outcome for v in of_gate([little])] == [Outcome.MET, Outcome.INDETERMINATE]
    assert [v.outcome for v in of_gate([])] == [Outcome.INDETERMINATE]
