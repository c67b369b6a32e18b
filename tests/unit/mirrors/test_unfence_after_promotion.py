"""A fence whose destination is silent, and was promoted by another run: nobody is told to open the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirror_core.cli import cluster as cluster_commands
from mirror_core.cli.command_options import find_mirror
from mirror_core.evidence.fence_file import FenceFile, fence_file_path, write_fence_file
from mirror_core.evidence.signed_bundle import HEAD_FILE
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import fence_manual_commands
from mirror_core.mirrors.fence_manual_commands import TopicLogs
from mirror_core.model.errors import Indeterminate, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, format_reverse_name
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition
from mirror_core.model.run import RunKind, RunState
from mirror_core.parity.salvage import MANIFEST
from mirror_core.state.active_cluster import ActiveCluster
from mirror_core.state.state_records import State
from tests.support.mirror_views import MIRROR, RUN

SUPERSEDED, PROMOTING = "orders-failover-afdf", "orders-failover-ab59"
EAST, WEST = ClusterName("east"), ClusterName("west")
FENCE = FenceFile(
    run=SUPERSEDED,
    mirror=MirrorName("orders"),
    cluster=EAST,
    cluster_id="east-id",
    destination=WEST,
    written_ms=1_000,
    topics=("orders",),
    topic_ids={"orders": "id-then"},
)


@pytest.fixture(autouse=True)
def logs_on_east(monkeypatch: pytest.MonkeyPatch) -> dict[str, TopicLogs]:
    logs = {"orders": TopicLogs("id-then", 30)}
    monkeypatch.setattr(fence_manual_commands, "_read_logs", lambda *_: logs)
    return logs


def announce(active: ClusterName) -> ActiveCluster:
    return ActiveCluster(
        mirror=FENCE.mirror,
        active=active,
        cluster_id=f"{active}-id",
        bootstrap_servers="localhost:1",
        since_ms=1_700_000_000_000,
        run=PROMOTING,
        generation=2,
    )


def explain_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: ActiveCluster | Unreachable) -> str:
    """What a command prints that looks for the mirror on the silent destination."""

    def read(cluster: object, mirror: str, timeout_s: float) -> ActiveCluster:
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    def find(config: object, name: str) -> None:
        raise Indeterminate("cluster west: no answer")

    (tmp_path / "mirrorbook.yaml").write_text(
        "clusters: {east: {bootstrap.servers: 'localhost:1'}, west: {bootstrap.servers: 'localhost:2'}}\n"
    )
    for run in (SUPERSEDED, "orders-failover-older"):
        path = fence_file_path(tmp_path / "evidence" / f"run-{run}", run)
        path.parent.mkdir(parents=True)
        write_fence_file(path, FENCE, "advice")
    monkeypatch.setattr(fence_manual_commands, "read_active_cluster", read)
    monkeypatch.setattr("mirror_core.cli.command_options.find_mirror_link", find)
    with pytest.raises(Indeterminate) as raised:
        find_mirror(tmp_path / "mirrorbook.yaml", "orders")
    return "\n".join(raised.value.__notes__)


def test_a_promotion_that_the_source_knows_is_said_in_place_of_unfence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since_ms = announce(WEST).since_ms
    promotion = Finding("destination_was_promoted", WEST, since_ms=since_ms, run=PROMOTING, cluster=EAST)
    file = fence_file_path(tmp_path / "evidence" / f"run-{SUPERSEDED}", SUPERSEDED)
    lost = Finding("promoted_destination_lost", WEST, cluster=EAST, mirror="orders", file=file)
    assert explain_silence(tmp_path, monkeypatch, announce(WEST)) == f"{promotion}.\n{lost}"


@pytest.mark.parametrize("answer", [announce(EAST), Unreachable("cluster east: no answer")])
def test_else_the_way_to_open_the_source_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: ActiveCluster | Unreachable
) -> None:
    assert "mirrorbook cluster unfence east --from" in explain_silence(tmp_path, monkeypatch, answer)


def test_a_way_home_is_named_before_silent_clusters_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = replace(MIRROR, name=format_reverse_name(FENCE.mirror), source=WEST, destination=EAST)

    def read(config: object) -> Iterator[tuple[ClusterName, State]]:
        yield EAST, State(mirrors={home.name: home})
        raise AssertionError("a silent cluster is waited for")

    monkeypatch.setattr(fence_manual_commands, "read_states", read)
    (tmp_path / "mirrorbook.yaml").write_text("clusters: {east: {bootstrap.servers: 'localhost:1'}}\n")
    config = load_config(tmp_path / "mirrorbook.yaml")
    named = list(fence_manual_commands._find_way_home(config, FENCE.mirror))
    assert [finding.code for finding in named] == ["way_home_is_copied"]


def test_unfence_says_first_that_the_destination_was_promoted() -> None:
    promotion = fence_manual_commands._find_promotion(announce(WEST), FENCE)
    preview = fence_manual_commands.LiftPreview(
        present_denials=frozenset(), destination=None, promotion=promotion, warnings=("west does not answer",)
    )
    assert cluster_commands._format_plan(EAST, FENCE, preview)[0].startswith("west WAS PROMOTED: ")


@pytest.mark.parametrize("announced", [announce(WEST), replace(announce(EAST), since_ms=6_000, run="older"), None])
@pytest.mark.parametrize(("kind", "promote"), [("failover", "DONE"), ("failover", "FAILED"), ("failback", "DONE")])
def test_a_run_that_has_ended_tells_by_its_evidence_where_the_source_has_no_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, promote: str, announced: ActiveCluster | None
) -> None:
    folder = tmp_path / "evidence" / f"run-{PROMOTING}"
    folder.mkdir(parents=True)
    file = fence_file_path(folder, PROMOTING)
    write_fence_file(file, replace(FENCE, run=PROMOTING), "advice")
    (folder / HEAD_FILE).write_text("{}")
    plan = {"kind": kind, "mirror": "orders"}
    steps = [{"step": "promote", "state": promote, "ended_ms": 7_000}]
    report = {"run": {"id": PROMOTING, "plan": plan, "started_ms": 5}, "steps": steps}
    (folder / "run.json").write_text(json.dumps(report))
    newest = {} if announced is None else {announced.mirror: announced}
    monkeypatch.setattr(fence_manual_commands, "read_active_cluster", lambda *_: announced)
    monkeypatch.setattr(fence_manual_commands, "read_newest_announcements", lambda *_: newest)
    (tmp_path / "mirrorbook.yaml").write_text("clusters: {east: {bootstrap.servers: 'localhost:1'}}\n")
    told = [*fence_manual_commands.list_ways_past_fences(load_config(tmp_path / "mirrorbook.yaml"), "orders")]
    since_ms = announced.since_ms if announced is not None and announced.run == PROMOTING else 7_000
    has_promoted = (kind, promote) == ("failover", "DONE")
    promotion = Finding("destination_was_promoted", WEST, since_ms=since_ms, run=PROMOTING, cluster=EAST)
    lost = Finding("promoted_destination_lost", WEST, cluster=EAST, mirror="orders", file=file)
    active = announced and Finding(
        "active_was_announced", announced.active, run=announced.run, since_ms=announced.since_ms, mirror="orders"
    )
    assert told == list(map(str, [promotion, lost] if has_promoted else filter(None, [active])))


@pytest.mark.parametrize(
    ("state", "verbs"),
    [(RunState.RUNNING, {"abort"}), (RunState.ABORTING, {"resume"}), (RunState.DONE, set[str]()), (None, set[str]())],
)
def test_unfence_names_no_command_that_the_run_would_refuse(state: RunState | None, verbs: set[str]) -> None:
    """None: the destination is silent, so nobody knows what became of the run."""
    run = replace(RUN, id=SUPERSEDED, plan=replace(RUN.plan, mirror=FENCE.mirror), state=state or RunState.RUNNING)
    ended_ms = 1 if run.state is RunState.DONE else None
    known = None if state is None else State(runs={run.id: replace(run, ended_ms=ended_ms)})
    preview = fence_manual_commands.LiftPreview(
        present_denials=frozenset(), destination=known, promotion=None, warnings=()
    )
    done = "\n".join(cluster_commands._format_done(EAST, FENCE, preview))
    assert {verb for verb in ("abort", "resume") if f"`mirrorbook failover {verb} orders`" in done} == verbs
    assert ("`mirrorbook mirror describe orders`" in done) is (state is None)


@pytest.mark.parametrize(
    ("then", "logs", "told"),
    [
        ("id-then", TopicLogs("id-then", 30), None),
        ("id-then", TopicLogs("id-now", 0), "had taken orders off east"),
        ("id-then", TopicLogs(None, 0), "only west's disks have them"),
        ("id-then", TopicLogs("id-now", 7), "east has 7 offsets of"),
        ("id-then", TopicLogs("id-now", None), "east has an unknown part of"),
        (None, TopicLogs("id-now", 0), "orders (0 offsets)"),
    ],
)
def test_what_a_failback_has_taken_off_the_old_source_is_said_before_it_is_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logs_on_east: dict[str, TopicLogs],
    then: str | None,
    logs: TopicLogs,
    told: str | None,
) -> None:
    """`then`: the id of the topic that was mirrored. None: the file was written before it told."""
    failback = replace(
        FENCE,
        run="orders-failback-1",
        kind=RunKind.FAILBACK,
        written_ms=2_000,
        topic_ids={"orders": then} if then else {},
    )
    folder = tmp_path / "evidence" / f"run-{failback.run}"
    (folder / "salvage").mkdir(parents=True)
    saved = SalvagedPartition(
        requested_range=ParityRange(partition=Partition("orders", 0), start=Offset(30), end=Offset(32)),
        log_start=Offset(0),
        records=2,
    )
    (folder / "salvage" / MANIFEST).write_bytes(msgspec.json.encode([saved]))
    write_fence_file(fence_file_path(folder, failback.run), failback, "advice")
    logs_on_east["orders"] = logs
    said = explain_silence(tmp_path, monkeypatch, announce(WEST))
    config = load_config(tmp_path / "mirrorbook.yaml")
    path = fence_file_path(folder, failback.run)
    [*findings] = fence_manual_commands.explain_emptied(config, [(path, failback)])
    assert [str(f) in said for f in findings] == [True] * (told is not None)
    assert (told or "Is west lost for good?") in said
    assert (f"what only east had is saved in {folder / 'salvage'} (2 records)" in said) is bool(then and told)
