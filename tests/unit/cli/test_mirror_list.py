"""`mirror list`: one line a mirror, also at 80 columns, and the state's records behind each word."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from mirror_core.cli import mirror_list
from mirror_core.cli.mirror_list import DestinationView, MirrorActivity, MirrorListRow, make_mirror_row, print_mirrors
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.steps import WriteLocation
from mirror_core.decide.write_access import OpenRun, OperatorAction, WriteAccess
from mirror_core.kafka.config import Config
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.mirror import DesiredState, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import RunKind
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.runbook.run_outcome import find_recorded_access
from mirror_core.state.state_records import State
from tests.support import cluster_names
from tests.support.mirror_views import MIRROR

NOW_MS = 1_700_000_100_000
STARTED = replace(MIRROR, desired=DesiredState.STARTED)
EAST, WEST = MIRROR.source, MIRROR.destination
BOTH = Config(Path("mirrorbook.yaml"), {EAST: cluster_names.EAST, WEST: cluster_names.WEST})
HELD = OpenRun(
    id="m-failback-1",
    kind=RunKind.FAILBACK,
    step="",
    step_state=None,
    conductor=ConductorState.SILENT,
    may_await_answer=False,
    fence=None,
    is_aborting=False,
    can_abort=True,
)


def make_row(name: str, **changes: Any) -> MirrorListRow:
    fields: dict[str, Any] = {
        "name": name,
        "source": "east",
        "destination": "west",
        "source_cluster_id": "41c7",
        "destination_cluster_id": "9f2b",
        "desired": DesiredState.STARTED,
        "activity": MirrorActivity.COPIED,
        "writes": WriteLocation.SOURCE,
        "writes_on": ClusterName("east"),
        "open_run": None,
        "behind_s": 0.84,
        "oldest_proof_s": 190.0,
        "unproved": 0,
        "troubles": (),
        "partitions": 12,
        "failed": 0,
        **dict.fromkeys(("topics", "exclude_topics", "groups", "exclude_groups", "principals"), ()),
        "exclude_principals": (),
        "exclude_rights": (),
        "exclude_settings": (),
        "replication_factor": "source",
        "paused_topics": [],
    }
    return MirrorListRow(**fields | changes)


MOVED = make_row(
    "payments",
    activity=MirrorActivity.FAILED_OVER,
    desired=DesiredState.STOPPED,
    writes=WriteLocation.DESTINATION,
    writes_on=ClusterName("west"),
    behind_s=None,
    troubles=to_finding_documents([Finding("source_not_fenced", "east")]),
)
BROKEN = make_row(
    "refunds",
    behind_s=None,
    oldest_proof_s=None,
    unproved=3,
    troubles=to_finding_documents(
        [Finding("failed_partitions", "refunds", count=2), Finding("differing_partitions", "refunds", count=1)]
    ),
)


def show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, *rows: MirrorListRow
) -> list[str]:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_mirrors(rows)
    return click.unstyle(capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("columns", [100, 160])
def test_three_mirrors_are_three_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    assert show(monkeypatch, capsys, columns, make_row("orders"), MOVED, BROKEN) == [
        "Mirrors",
        "name      from → to    writes on  state        behind   proof age  trouble",
        "--------  -----------  ---------  -----------  -------  ---------  ---------------",
        "orders    east → west  east       copied       0.8 s    3 min",
        "payments  east → west  west       failed over           3 min      east not fenced",
        "refunds   east → west  east       copied       unknown  never      2 FAILED +1",
        "",
        "+1: one more trouble. `mirrorbook mirror describe NAME` shows all.",
    ]


def test_three_mirrors_are_three_lines_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(monkeypatch, capsys, 80, make_row("orders"), MOVED)[1:4] == [
        "name      from → to (* writes)  state        behind  proof age  trouble",
        "--------  --------------------  -----------  ------  ---------  ---------------",
        "orders    east* → west          copied       0.8 s   3 min",
    ]


@pytest.mark.parametrize(
    ("changes", "route"),
    [
        ({}, "fra-prod* → dub-prod"),
        ({"writes": WriteLocation.DESTINATION, "writes_on": ClusterName("dub-prod")}, "fra-prod → dub-prod*"),
        ({"writes": WriteLocation.NOWHERE, "writes_on": None}, "fra-prod → dub-prod"),
    ],
)
def test_long_names_are_still_one_line_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], route: str
) -> None:
    ends = {"source": "fra-prod", "destination": "dub-prod", "writes_on": ClusterName("fra-prod")}
    row = make_row("payments-eu-prod", **ends | changes, troubles=BROKEN.troubles)
    lines = show(monkeypatch, capsys, 80, row)
    (line,) = (line for line in lines if line.startswith("payments-eu-prod"))
    assert f"  {route}  " in line
    assert line.endswith("  2 FAILED +1")
    assert max(map(len, lines)) <= 80


def test_a_narrow_table_says_that_it_is_not_known_where_applications_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {"source": "fra-prod", "destination": "dub-prod", "writes": None, "writes_on": None, "behind_s": 1.0}
    down = to_finding_documents([Finding("cluster_down", "fra-prod")])
    on_way = make_row("orders", activity=MirrorActivity.FAILING_BACK, troubles=down, **ends)
    idle = make_row("rest", activity=MirrorActivity.IDLE, **ends)
    lines = show(monkeypatch, capsys, 80, on_way, idle)
    assert lines[3].startswith("orders  fra-prod → dub-prod (?)  failing back  ")
    assert lines[4].startswith("rest    fra-prod → dub-prod      idle  ")
    assert lines[-1].startswith("(?): it is not known")
    assert max(map(len, lines)) <= 80


def test_a_mirror_whose_state_is_unread_has_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = [
        Finding("active_was_announced", "east", run="", since_ms=1, mirror="payments"),
        Finding("home_mirror_unseen", "orders", source="east", destination="west", active="", since_ms=0, run=""),
    ]
    rows = [make_row("refunds")]
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_mirrors(rows, unseen)
    assert click.unstyle(capsys.readouterr().out).splitlines()[3:6] == [
        "refunds   east → west  east       copied   0.8 s    3 min",
        "payments  unknown      unknown    unknown  unknown  unknown    state unread",
        "orders    east → west  unknown    unknown  unknown  unknown    west DOWN",
    ]


def test_an_idle_mirror_does_not_say_where_applications_write(capsys: pytest.CaptureFixture[str]) -> None:
    idle = make_row("orders-back", activity=MirrorActivity.IDLE, writes_on=ClusterName("east"), behind_s=None)
    print_mirrors([idle])
    assert re.split("  +", capsys.readouterr().out.splitlines()[2])[1:4] == ["east → west", "-", "idle"]


def make_recorded_row(
    mirror: Mirror, state: State, view: DestinationView, *, down: Collection[str] = ()
) -> MirrorListRow:
    states = {WEST: state}
    return make_mirror_row(mirror, WEST, states, view, find_recorded_access(mirror, states), down=down)


@pytest.mark.parametrize("writes", [None, *WriteLocation])
def test_clusters_are_asked_for_a_fence_where_nobody_can_write_by_the_records(
    monkeypatch: pytest.MonkeyPatch, writes: WriteLocation | None
) -> None:
    """`cluster unfence` on the other side lifts it unrecorded."""
    cluster = {WriteLocation.SOURCE: EAST, WriteLocation.DESTINATION: WEST}.get(writes) if writes else None
    recorded = WriteAccess(writes=writes, cluster=cluster, action=OperatorAction.RESUME_RUN, run=HELD)
    asked = replace(recorded, writes=WriteLocation.SOURCE, cluster=EAST, action=OperatorAction.ABORT_RUN)
    monkeypatch.setattr(mirror_list, "find_recorded_access", lambda mirror, states: recorded)
    monkeypatch.setattr(mirror_list, "read_write_access", lambda link, state, **options: asked)
    found = mirror_list._find_access(BOTH, MIRROR, {WEST: State()}, ())
    assert found is (recorded if cluster else asked)
    at_rest = replace(recorded, run=None)
    monkeypatch.setattr(mirror_list, "find_recorded_access", lambda mirror, states: at_rest)
    assert mirror_list._find_access(BOTH, MIRROR, {WEST: State()}, ()) is (
        asked if writes is WriteLocation.NOWHERE else at_rest
    )


def test_a_mirror_that_led_home_names_no_cluster_of_its_own() -> None:
    """Its home mirror may have been failed over since."""
    way_home = replace(MIRROR, name=MirrorName("m-back"), desired=DesiredState.STOPPED, failback_run="m-failback-1")
    state = State()
    state.mirrors[way_home.name] = way_home
    state.pending_fences[way_home.name] = PendingFence(
        mirror=way_home.name, cluster=way_home.source, action=FenceAction.APPLY, run="r", since_ms=1
    )
    row = make_recorded_row(way_home, state, DestinationView(NOW_MS))
    assert (row.activity, row.writes, row.writes_on) == (MirrorActivity.IDLE, None, None)


def test_a_missing_fence_is_shown_before_the_silence_of_its_cluster() -> None:
    state = State()
    state.mirrors[MIRROR.name] = replace(MIRROR, desired=DesiredState.STOPPED)
    state.pending_fences[MIRROR.name] = PendingFence(
        mirror=MIRROR.name, cluster=MIRROR.source, action=FenceAction.APPLY, run="r", since_ms=1
    )
    row = make_recorded_row(state.mirrors[MIRROR.name], state, DestinationView(NOW_MS), down=[MIRROR.source])
    assert [trouble.code for trouble in row.troubles] == ["source_not_fenced", "cluster_down"]


def test_a_pipe_gets_whole_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_mirrors([make_row("payments-of-a-long-name-" + "x" * 60), MOVED])
    columns = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [len(row) for row in columns] == [7, 7, 7]
    assert columns[2][2:] == ["west", "failed over", "-", "3 min", "east not fenced"]


def make_state(*statuses: PartitionStatus, observed_end: int = 10, age_ms: int = 4_000) -> State:
    state = State()
    state.mirrors[STARTED.name] = STARTED
    state.partitions[STARTED.name] = {status.partition: status for status in statuses}
    state.leases[STARTED.name] = Lease(
        mirror=STARTED.name, owner="host-7", generation=1, heartbeat_ms=NOW_MS - 1_000, writers_until_ms=NOW_MS
    )
    ends = tuple(observed_end for _ in statuses)
    state.source_observations[STARTED.name] = SourceObservation(
        mirror=STARTED.name,
        at_ms=NOW_MS - age_ms,
        topics=(ObservedTopic(topic="a", ends=ends),),
        listed_ms=NOW_MS - age_ms,
        listed_by=STARTED.topic_filters,
    )
    return state


def make_status(index: int, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    return PartitionStatus(partition=Partition("a", index), state=state, source_topic_id="s", destination_topic_id="d")


def list_row(state: State, *positions: int) -> MirrorListRow:
    view = DestinationView(NOW_MS, 0, {Partition("a", n): Offset(end) for n, end in enumerate(positions)})
    return make_recorded_row(state.mirrors[STARTED.name], state, view)


def test_a_mirror_is_as_far_behind_as_its_furthest_partition() -> None:
    row = list_row(make_state(make_status(0), make_status(1)), 10, 10)
    assert (row.activity, row.behind_s, row.troubles) == (MirrorActivity.COPIED, 4.0, ())
    assert list_row(make_state(make_status(0), make_status(1)), 10, 7).behind_s is None, "never complete"
    assert list_row(make_state(make_status(0), make_status(1)), 10).behind_s is None, "a position is unknown"


def test_a_copy_that_lacks_its_beginning_is_as_far_behind_as_nobody_knows() -> None:
    status = replace(make_status(0), source_start=Offset(0), followed_start=Offset(0))
    partition, state = status.partition, make_state(status)
    for log_start, behind_s in ((0, 4.0), (6, None)):
        view = DestinationView(NOW_MS, 0, {partition: Offset(10)}, log_starts={partition: Offset(log_start)})
        assert make_recorded_row(state.mirrors[STARTED.name], state, view).behind_s == behind_s


def test_how_far_a_mirror_is_behind_is_unknown_until_the_topics_are_listed_that_it_has_just_taken_in() -> None:
    state = make_state(make_status(0))
    assert list_row(state, 10).behind_s == 4.0
    state.mirrors[STARTED.name] = replace(STARTED, topics=(*STARTED.topics, "new"))
    assert list_row(state, 10).behind_s is None


def test_a_mirror_without_a_data_plane_is_not_copied() -> None:
    state = make_state(make_status(0))
    del state.leases[STARTED.name]
    assert list_row(state, 10).activity is MirrorActivity.NOT_COPIED
    state.mirrors[STARTED.name] = replace(STARTED, desired=DesiredState.PAUSED)
    assert list_row(state, 10).activity is MirrorActivity.PAUSED


def test_whether_a_mirror_is_copied_is_unknown_where_clocks_contradict_each_other() -> None:
    state = make_state(make_status(0))
    state.last_append_ms = NOW_MS + 3_600_000
    assert list_row(state, 10).activity is MirrorActivity.UNKNOWN


def test_a_proof_is_as_old_as_the_oldest_and_counts_what_has_none() -> None:
    state = make_state(make_status(0), make_status(1), make_status(2))
    assert (list_row(state, 10, 0, 10).oldest_proof_s, list_row(state, 10, 0, 10).unproved) == (None, 2)
    verified = {Partition("a", n): VerifiedEnd(Offset(10), 1, NOW_MS - age, 10, 1) for n, age in ((0, 9_000), (2, 500))}
    state.verifications[STARTED.name] = MirrorVerification.from_partitions(STARTED.name, verified, {"a": "d"}, ())
    assert (list_row(state, 10, 0, 10).oldest_proof_s, list_row(state, 10, 0, 10).unproved) == (9.0, 0)
    assert list_row(state, 10, 5, 10).unproved == 1
    refused = replace(make_status(3, PartitionState.FAILED), destination_topic_id="")
    state.partitions[STARTED.name][refused.partition] = refused
    row = list_row(state, 10, 0, 10)
    assert (row.oldest_proof_s, row.unproved) == (9.0, 0), "one that the destination has not added says nothing of them"


def test_a_source_that_does_not_answer_is_the_first_trouble() -> None:
    state = make_state(make_status(0, PartitionState.FAILED))
    view = DestinationView(NOW_MS, 0, {Partition("a", 0): Offset(10)})
    row = make_recorded_row(STARTED, state, view, down=[STARTED.source])
    assert [(t.code, t.subject) for t in row.troubles] == [("cluster_down", "east"), ("failed_partitions", "m")]
    assert row.troubles[0].text == "east DOWN"


def test_failed_partitions_are_a_trouble_with_their_names() -> None:
    row = list_row(make_state(make_status(0, PartitionState.FAILED), make_status(1)), 10, 10)
    assert [(t.code, t.values) for t in row.troubles] == [("failed_partitions", {"partitions": ("a-0",), "count": 1})]


@pytest.mark.parametrize("silent", [(), ("east", "west")])
def test_a_list_of_silent_clusters_does_not_say_that_there_is_none(
    silent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    print_mirrors([], (), silent)
    told = Finding("list_unread", clusters=silent) if silent else "none"
    assert capsys.readouterr().out == f"Mirrors: {told}\n"
