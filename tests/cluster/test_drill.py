"""A drill goes the way of a failover beside a mirror that knows nothing of it, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.drills import FORECAST_KEYS, NOT_EQUAL_TEXT, to_drill_group, to_drill_name, to_drill_topic
from mirror_core.decide.failover_readiness import FreshnessKind, list_newest_times
from mirror_core.decide.steps import list_step_names
from mirror_core.kafka import drill_consumer
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.consumer_groups import delete_group, fetch_group_offsets, list_groups
from mirror_core.kafka.heartbeat_topic import ensure_heartbeat_topic
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, MissingPermission, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.json_documents import format_json
from mirror_core.model.names import ACTIVE_TOPIC, ClusterIdentity, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.parity.check import OnParityProgress
from mirror_core.runbook import drill
from mirror_core.runbook import drill as drills
from mirror_core.state.mirror_link import MirrorLink
from tests.cluster.desk import Desk
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import as_admin
from tests.support.json_schemas import check_document
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster


RIGHTS: Mapping[str, Sequence[AclOperation]] = {
    "*": (AclOperation.READ, AclOperation.WRITE),
    "mirrorbook.heart*": (AclOperation.WRITE, AclOperation.DESCRIBE),
    "mirrorbook.heartbeats.drill*": (AclOperation.ALL,),
}


def all_there_is(beside: Mirrored) -> set[tuple[str, object]]:
    """What a drill could leave on either side, but for what another mirror's ledger says that it needs there."""
    found: set[tuple[str, object]] = set()
    ledger = [e for e in beside.state.ledger.values() if e.mirror != to_drill_name(beside.name)]
    for cluster in (beside.pair.east, beside.pair.west):
        needed = {e.acl for e in ledger if e.cluster == cluster.name}
        with as_admin(cluster) as client:
            acls = describe_acls(client)
            assert not isinstance(acls, AuthorizerOff)
            topics = {name for name, topic in client.metadata().topics.items() if not topic.internal} - {ACTIVE_TOPIC}
            # Brokers forget a group by themselves some time after it has lost its offsets with its topic.
            listed = list_groups(client)
            fetched = fetch_group_offsets(client, listed.values())
            assert not fetched.faults
            groups = {name for name, offsets in fetched.offsets.items() if offsets.committed}
            groups |= listed.keys() & {to_drill_group(beside.name)}
            found |= {(cluster.name, one) for one in (acls.entries - needed) | topics | groups}
    return found


@pytest.fixture
def beside(pair: Pair, tmp_path: Path) -> Iterator[Mirrored]:
    """A mirror that carries whatever it may; the drill is none of its business."""
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    # Rights that cover the drill's topic, too: what it copies of them is nobody's wish, and goes with it.
    for name, operations in RIGHTS.items():
        grant(pair.east, f"app-{topic}", ResourceType.TOPIC, name.rstrip("*") or "*", operations, prefixed=name != "*")
    for name in ("*", "mirrorbook."):
        grant(pair.east, f"app-{topic}", ResourceType.GROUP, name, (AclOperation.READ,), prefixed=name != "*")
    mirrored = new_mirror(pair, tmp_path, topic, "mirrorbook.*", groups=(".*",))
    mirrored.copy()
    yield mirrored
    assert read_all(pair.east, topic) == read_all(pair.west, topic)
    assert mirrored.link.mirror == mirrored.state.mirrors[mirrored.name]


def drilled(mirrored: Mirrored, mode: RunMode, say: drill.PrintLine = lambda line: None) -> drills.DrillOutcome:
    return drills.run_drill(mirrored.config, mirrored.name, mode, mirrored.services, started_by="test", print_line=say)


def left_in_state(mirrored: Mirrored) -> list[object]:
    state, name = mirrored.state, to_drill_name(mirrored.name)
    per_mirror = (state.mirrors, state.partitions, state.pending_fences, state.verifications, state.source_observations)
    return [kept[name] for kept in per_mirror if kept.get(name)] + list(state.ledger_entries(name))


@pytest.mark.parametrize(
    ("mode", "lost", "again", "most"),
    [
        pytest.param(
            RunMode.PLANNED,
            0,
            0,
            0,
            marks=pytest.mark.slow,
        ),
        (
            RunMode.UNPLANNED,
            drills.TAIL_RECORDS,
            drills.COPIED_RECORDS // 2,
            drills.COPIED_RECORDS // 2,
        ),
    ],
)
def test_a_drill_says_what_came_of_it_and_leaves_nothing(
    beside: Mirrored, mode: RunMode, lost: int, again: int, most: int
) -> None:
    before = all_there_is(beside)
    steps: list[str] = []
    found = drilled(beside, mode, steps.append)
    assert (found.written, found.lost, found.drilled.state) == (
        drills.COPIED_RECORDS + drills.TAIL_RECORDS,
        lost,
        RunState.DONE,
    )
    assert found.compared == found.written - lost
    assert (found.group.repeated, found.group.skipped) == (again, 0)
    check_document(("drill", "run", "--json"), format_json(found))
    assert found.group.predicted_most == most
    assert found.drilled.measured_s is not None
    assert [line.removesuffix(" ...") for line in steps if line.endswith(" ...")] == list(
        list_step_names(RunKind.FAILOVER, mode)
    )
    assert all_there_is(beside) ^ before == set()
    assert left_in_state(beside) == []
    second = drilled(beside, mode)
    assert second.drilled.predicted_s == found.drilled.measured_s
    figures = beside.failover.plan(mode).figures
    assert (figures[FORECAST_KEYS[mode]], figures[FigureKey.FORECAST_BASIS]) == (
        second.drilled.measured_s,
        "last drill",
    )
    past = drills.list_past_drills(beside.state, beside.name)
    assert [one.run for one in past] == [second.drilled.run, found.drilled.run]
    assert {one.text for one in past} == {f"{found.compared} records equal, {lost} offsets lost"}


@pytest.mark.slow
def test_a_drill_that_promoted_something_else_has_not_come_through(
    beside: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is done, and nobody must take that for a drill that was good."""
    failed, gate = (
        ParityResult(verdict=ParityVerdict.FAILED, records=9, chunks=1, verified_ends={}, compared_records={}),
        beside.services,
    )

    def at_the_end(
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult:
        """A run's own comparisons have a report."""
        return gate.quick_parity(source, destination, ranges, output, on_progress) if output else failed

    services = replace(gate, quick_parity=at_the_end)
    with pytest.raises(MirrorError, match="what was promoted is not what was written"):
        drills.run_drill(
            beside.config, beside.name, RunMode.PLANNED, services, started_by="test", print_line=lambda line: None
        )
    [one] = drills.list_past_drills(beside.state, beside.name)
    assert (one.state, one.outcome, one.text) == (RunState.DONE, "", NOT_EQUAL_TEXT)
    assert FreshnessKind.DRILL not in dict(
        list_newest_times(beside.name, None, None, iter(beside.state.runs.values()), {})
    )


class Killed(BaseException):
    """No `finally` that matters runs when a process is killed: `clean` is what comes later."""


BEFORE_IT = "its group has committed, and no run has begun"


def kill_at(step: str, beside: Mirrored, mode: RunMode, patched: pytest.MonkeyPatch) -> None:
    clean, before = drill.clean_drill, list[str]()

    def dies(line: object) -> None:
        if isinstance(line, MirrorLink) or line == f"{step} ...":
            raise Killed

    def not_by_the_dead(*args: Any, **options: Any) -> None:
        before.append(step)
        if len(before) == 1:
            clean(*args, **options)

    patched.setattr(drills, "clean_drill", not_by_the_dead)
    if step == BEFORE_IT:
        patched.setattr(drills, "sync_drill_groups", dies)
    with pytest.raises(Killed):
        drilled(beside, mode, dies)
    begun = beside.state.active_run(to_drill_name(beside.name)) is not None
    assert begun == (step != BEFORE_IT), f"{step}: it was killed in the middle"
    with as_admin(beside.pair.east) as client:
        assert to_drill_group(beside.name) in list_groups(client)


@pytest.mark.drill
@pytest.mark.parametrize("mode", [RunMode.PLANNED, RunMode.UNPLANNED])
def test_killed_at_any_step_nothing_is_left_behind_by_the_next_one(
    beside: Mirrored, mode: RunMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_there_is(beside)
    for step in (BEFORE_IT, *list_step_names(RunKind.FAILOVER, mode)):
        with monkeypatch.context() as patched:
            kill_at(step, beside, mode, patched)
        said: list[str] = []
        drill.clean_drill(beside.config, beside.name, beside.services, started_by="test", print_line=said.append)
        assert said == []
        assert all_there_is(beside) ^ before == set(), step
        assert left_in_state(beside) == [], step


@pytest.mark.drill
def test_two_may_clean_at_once(beside: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_there_is(beside)
    with monkeypatch.context() as patched:
        kill_at(BEFORE_IT, beside, RunMode.PLANNED, patched)
    lift, others = drill._lift_drill_fence, list[str]()

    def clean(who: str) -> None:
        drill.clean_drill(beside.config, beside.name, beside.services, started_by=who, print_line=print)

    def behind_the_other(link: MirrorLink, side: ClusterConfig) -> None:
        if not others:
            others.append(side.name)
            clean("another")
        lift(link, side)

    monkeypatch.setattr(drill, "_lift_drill_fence", behind_the_other)
    clean("test")
    assert others, "nobody was quicker"
    assert all_there_is(beside) ^ before == set()
    assert left_in_state(beside) == []


@pytest.mark.drill
def test_what_a_drill_has_left_goes_when_its_mirror_was_deleted_and_as_far_as_a_dead_source_allows(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    before = all_there_is(mirrored)
    with monkeypatch.context() as patched:
        kill_at("parity", mirrored, RunMode.PLANNED, patched)
    mirror_commands.stop_mirror(mirrored.link)
    mirror_commands.delete_mirror(mirrored.link)
    left = all_there_is(mirrored) - before
    assert {cluster for cluster, _ in left} == {"east", "west"}

    def clean() -> None:
        drill.clean_drill(mirrored.config, mirrored.name, mirrored.services, started_by="test", print_line=print)

    with suspended(pair.east), pytest.raises(Indeterminate, match=rf"cluster east: .*drill clean {mirrored.name}`"):
        clean()
    assert {cluster for cluster, _ in all_there_is(mirrored) ^ before} == {"east"}
    clean()
    assert all_there_is(mirrored) ^ before == set()
    assert left_in_state(mirrored) == []
    with pytest.raises(BadRequest, match="unknown mirror"):
        clean()


def test_a_topic_of_a_drill_that_nobody_knows_any_more_goes_by_its_name(pair: Pair, tmp_path: Path) -> None:
    """Killed before it had made its mirror; and the one that it stood for was deleted then."""
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    before = all_there_is(mirrored)
    with ClusterClient(mirrored.link.source) as source:
        ensure_heartbeat_topic(source, to_drill_topic(mirrored.name))
    config, services = mirrored.config, mirrored.services
    mirror_commands.stop_mirror(mirrored.link)
    mirror_commands.delete_mirror(mirrored.link)
    drill.clean_drill(config, mirrored.name, services, started_by="test", print_line=print)
    assert all_there_is(mirrored) ^ before == set()


@pytest.mark.slow
def test_by_hand(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    mirrored = desk.started(topic)
    said = desk.run("drill", "run", mirrored.name, "--runner", "local", "--yes")
    assert said.code == 0, said.err
    assert "lost: nothing" in " ".join(said.out.split())
    listed = desk.run("drill", "list", mirrored.name)
    assert "planned" in listed.out
    cleaned = desk.run("drill", "clean", mirrored.name)
    assert (cleaned.code, cleaned.out) == (0, f"of drills of mirror {mirrored.name} nothing is left\n")
    assert to_drill_topic(mirrored.name) not in mirrored.link.mirror.topics


def test_a_mirror_that_only_has_such_a_name_is_not_touched(pair: Pair, tmp_path: Path, beside: Mirrored) -> None:
    topic = new_topic(pair.east)
    theirs = create_mirror(
        beside.config, to_drill_name(beside.name), source="east", destination="west", topics=(topic,), groups=()
    )
    with pytest.raises(Refused, match="is no drill's"):
        drilled(beside, RunMode.PLANNED)
    assert beside.state.mirrors[theirs.name] == theirs


def test_who_may_not_commit_for_the_group_or_delete_it_is_told_so_and_an_offset_that_is_not_there_too(
    desk: Desk,
) -> None:
    topic, group = new_topic(desk.pair.east), to_drill_group("denied")
    produce(desk.pair.east, topic, 4)
    first, middle, end = ({Partition(topic, 0): Offset(offset)} for offset in (0, 2, 4))
    with pytest.raises(MirrorError, match="no offset for"):
        drill_consumer.consume_from_committed(load_config(desk.config).cluster("east"), group, end)
    user, password = desk.new_user(desk.pair.east)
    grant(desk.pair.east, user, ResourceType.TOPIC, topic, (AclOperation.READ,))
    grant(desk.pair.east, user, ResourceType.GROUP, "mirrorbook.", (AclOperation.DESCRIBE,), prefixed=True)
    desk.change("east", sasl_username=user, sasl_password=password)
    east = load_config(desk.config).cluster("east")
    with pytest.raises(MissingPermission, match=f"GROUP_AUTHORIZATION_FAILED for {user}"):
        drill_consumer.consume_and_commit(east, group, first, middle)
    with ClusterClient(east) as client, pytest.raises(MissingPermission, match="needs DELETE"):
        delete_group(client, group)


def test_a_set_is_drilled_as_one_beside_mirrors_that_know_nothing_of_it(pair: Pair, desk: Desk, tmp_path: Path) -> None:
    members = [new_mirror(pair, tmp_path, new_topic(pair.east)) for _ in range(2)]
    names = [str(one.name) for one in members]
    document = yaml.safe_load(desk.config.read_text(encoding="utf-8"))
    document["sets"] = {"shop": {"mirrors": names}}
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    before = [one.state.mirrors[one.name] for one in members]

    said = desk.run("drill", "run-set", "shop", "--json")

    assert said.code == 0, said
    outcome = json.loads(said.out)
    assert [(drilled["written"], drilled["lost"]) for drilled in outcome["drills"]] == [(250, 0)] * 2
    state = members[0].state
    runs = [run for run in state.runs.values() if run.set_run == outcome["set"]]
    assert sorted(run.plan.mirror for run in runs) == sorted(to_drill_name(name) for name in names)
    times = {run.plan.mirror: {s.step: s for s in state.steps_of(run)} for run in runs}
    fenced = [steps["fence"].started_ms for steps in times.values()]
    promoted = [steps["promote"].ended_ms or 0 for steps in times.values()]
    assert max(fenced) < min(promoted), "one was promoted before the other one was fenced"
    assert outcome["standstill_s"] == (max(promoted) - min(fenced)) / 1000
    assert [one.state.mirrors[one.name] for one in members] == before
    for one in members:
        assert to_drill_name(one.name) not in one.state.mirrors
        assert one.state.active_run(one.name) is None
    text = desk.run("drill", "run-set", "shop", "--mode", "unplanned")
    assert text.code == 0, text
    assert "first standstill to last promotion" in text.out
