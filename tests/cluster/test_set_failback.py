"""Three mirrors there and home as one, the second one's cluster broken in the middle: reports and clusters agree."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mirror_core.dataplane.task_runner import LocalCopy, RecordTrimmed
from mirror_core.decide.steps import list_step_names
from mirror_core.kafka.config import load_config
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Run, RunKind, RunState, StepEvidence
from mirror_core.runbook import conductor
from mirror_core.runbook.failback_conductor import SetFailback
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.run_services import InProcessCopy
from mirror_core.runbook.set_conductor import SetFailed
from mirror_core.runbook.set_failover import SetFailover, find_set
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.broker_faults import await_service
from tests.support.dedicated_clusters import third_cluster
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import replicate
from tests.support.sentences import format_sentence
from tests.support.set_of_three import SET, MemberMirror, SetOfThree, contents, make_set_of_three, read_both, read_page

pytestmark = pytest.mark.cluster

SILENT = "its destination was not read"


@pytest.fixture(autouse=True)
def tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try with a dead cluster costs half a minute."""
    monkeypatch.setattr(conductor, "MAX_TRIES", 1)


@pytest.fixture(scope="module")
def south(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SandboxCluster, Path]]:
    with third_cluster(pair, tmp_path_factory.mktemp("south")) as made:
        yield made


@pytest.fixture
def to_south(pair: Pair, south: tuple[SandboxCluster, Path], tmp_path: Path) -> SetOfThree:
    cluster, config = south
    return make_set_of_three(pair, config, tmp_path, ("east", pair.east, "south", cluster))


@pytest.fixture
def from_south(pair: Pair, south: tuple[SandboxCluster, Path], tmp_path: Path) -> SetOfThree:
    """Failed over."""
    cluster, config = south
    three = make_set_of_three(pair, config, tmp_path, ("south", cluster, "west", pair.west))
    three.fail_over()
    return three


def breaking(cluster: SandboxCluster) -> Callable[[MirrorLink], InProcessCopy]:
    """Copies of a drain in which this cluster dies."""

    def make(link: MirrorLink) -> InProcessCopy:
        def copy(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[float], None], deleted: RecordTrimmed
        ) -> None:
            cluster.kill(1)
            LocalCopy(link)(ends, timeout_s, until, deleted)

        return copy

    return make


def restart(cluster: SandboxCluster) -> None:
    cluster.start(1)
    await_service(cluster)


def begin(several: SetFailover) -> str:
    return several.begin(several.decide().hash, approved_by="ann, ben")


def find_run(one: MemberMirror, cluster: str, kind: RunKind, *, back: bool = False) -> Run:
    """The newest one of the mirror, or of its reverse, on this cluster."""
    name = f"{one.name}-back" if back else one.name
    runs = [
        run
        for run in read_state(one.mirrored.config.cluster(cluster)).runs.values()
        if (run.plan.mirror, run.plan.kind) == (name, kind)
    ]
    return max(runs, key=lambda run: run.number)


def assert_equal_logs(three: SetOfThree) -> None:
    for one in three.members:
        ours, theirs = read_both(one)
        assert ours == theirs, one.name


def test_a_destination_that_dies_behind_the_fence_lets_all_stay_and_the_page_says_so(
    to_south: SetOfThree, south: tuple[SandboxCluster, Path], desk: Desk
) -> None:
    first, second, third = to_south.members
    cluster, config = south
    broken = to_south.make_failover()
    services = replace(second.mirrored.services, copy=breaking(cluster))
    broken._conductors[second.name].services = services
    attempt = begin(broken)

    with pytest.raises(SetFailed) as failed:
        broken.finish(attempt)

    page = read_page(broken.page_path(attempt))
    statuses = broken.read_statuses(attempt)
    for one in (first, third):
        assert one.find_writable() == [one.source]
        assert "given up" in page[one.name]
        assert "Applications write on east, as before" in page[one.name]
        assert f"{one.name}: given up: applications may write on the source" in str(failed.value)
        assert "Applications write on east, as before" in statuses[one.name][0]
    assert second.find_writable(second.source) == [], "it is fenced, and nobody has taken that back"
    assert SILENT in page[second.name]
    assert "south was not promoted, nobody can write now." in page[second.name]
    assert f"{second.name}: not given up: " in str(failed.value)

    restart(cluster)
    write_set_config(desk, to_south, config)
    said = desk.run("failover", "run-set", SET, "--runner", "local", "--yes")
    assert said.code == SetFailed.exit_code, said
    assert f"{second.name}: given up: applications may write on the source" in said.err
    assert f"{first.name}: Applications write on east, as before" in " ".join(said.err.split())
    for one in to_south.members:
        assert one.find_writable() == [one.source]


def test_a_destination_that_dies_before_its_promotion_is_left_for_resume_and_the_page_says_so(
    to_south: SetOfThree, south: tuple[SandboxCluster, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = to_south.members
    cluster, _ = south
    check = PlannedSteps.check_before_promotion
    lost = list[str]()

    def checked(self: PlannedSteps) -> PromotionProbe:
        if self.link.mirror.name == second.name and not lost:
            lost.append(second.name)
            cluster.kill(1)
        return check(self)

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", checked)
    broken = to_south.make_failover()
    attempt = begin(broken)

    with pytest.raises(SetFailed) as failed:
        broken.finish(attempt)

    page = read_page(broken.page_path(attempt))
    for one in (first, third):
        assert one.find_writable() == [one.destination]
        assert "Applications write on west" in page[one.name]
        assert "east is fenced" in page[one.name]
        assert " nothing " in page[one.name], "what was lost"
        ours = read_all(one.source, one.topic)
        assert read_all(one.destination, one.topic)[: len(ours)] == ours, "not all was brought along"
    assert second.find_writable(second.source) == []
    assert SILENT in page[second.name]
    assert f"`mirrorbook failover resume {second.name}`" in str(failed.value)

    restart(cluster)
    to_south.make_failover().finish(attempt)

    page = read_page(broken.page_path(attempt))
    assert "Applications write on south" in page[second.name]
    for one in to_south.members:
        assert one.find_writable() == [one.destination]
        ours = read_all(one.source, one.topic)
        assert contents(read_all(one.destination, one.topic)) == contents(ours)


def write_set_config(desk: Desk, three: SetOfThree, config: Path) -> None:
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["sets"] = {SET: {"mirrors": [str(one.name) for one in three.members]}}
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")


@pytest.mark.parametrize("command", [("failover", "run-set"), ("failover", "plan-set"), ("failback", "run-set")])
def test_a_destination_that_is_dead_when_the_command_is_typed_moves_nobody(
    command: tuple[str, str], to_south: SetOfThree, south: tuple[SandboxCluster, Path], desk: Desk
) -> None:
    first, second, third = to_south.members
    cluster, config = south
    if command[0] == "failback":
        to_south.fail_over()
    before = {one.name: one.find_writable() for one in to_south.members}
    write_set_config(desk, to_south, config)
    cluster.kill(1)
    try:
        options = () if command[1] == "plan-set" else ("--runner", "local", "--yes")
        said = desk.run(*command, SET, *options, "--json")
    finally:
        restart(cluster)
    assert said.code == Refused.exit_code, said
    error = json.loads(said.err.splitlines()[-1])
    assert [(r["code"], r["subject"]) for r in error["reasons"]] == [
        ("set_member_not_found", second.name),
        ("set_members_found", SET),
    ]
    assert error["reasons"][1]["values"]["mirrors"] == [first.name, third.name]
    assert said.out == ""
    for one in to_south.members:
        assert one.find_writable() == before[one.name]
        assert read_state(one.mirrored.link.destination).active_run(one.name) is None


def test_all_of_a_cluster_that_were_begun_are_not_gone_on_with_while_the_destination_of_one_is_dead(
    pair: Pair, south: tuple[SandboxCluster, Path], desk: Desk, tmp_path: Path
) -> None:
    """One that was fenced and cannot be seen would be left behind."""
    cluster, config = south
    source = "apps-" + secrets.token_hex(4)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["clusters"][source] = document["clusters"]["east"]
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    three = make_set_of_three(
        pair, desk.config, tmp_path, (source, pair.east, "south", cluster), ends=(source, pair.east, "west", pair.west)
    )
    name = f"all-from-{source}"
    several = SetFailover(
        find_set(load_config(desk.config), name),
        {one.name: one.mirrored.failover for one in three.members},
        print_line=print,
    )
    attempt = begin(several)
    several.prove(attempt)
    second = three.members[1]
    second.mirrored.failover.run_step(find_run(second, "south", RunKind.FAILOVER).id, "fence")  # and the process dies
    cluster.kill(1)
    try:
        said = desk.run("failover", "run-set", name, "--runner", "local", "--yes", "--json")
        assert said.code == Refused.exit_code, said
        error = json.loads(said.err.splitlines()[-1])
        unknown, silent = error["reasons"]
        assert (unknown["code"], unknown["subject"], unknown["values"]["mirrors"]) == (
            "set_run_members_unknown",
            attempt,
            [second.name],
        )
        assert (silent["code"], silent["subject"]) == ("mirrors_to_cluster_unknown", "south")
        for one in (three.members[0], three.members[2]):
            assert one.find_writable() == [one.source]
        assert second.find_writable(second.source) == []
    finally:
        restart(cluster)
    again = desk.run("failover", "run-set", name, "--runner", "local", "--yes")
    assert again.code == 0, again
    for one in three.members:
        assert one.find_writable() == [one.destination]
        ours = read_all(one.source, one.topic)
        assert contents(read_all(one.destination, one.topic)) == contents(ours)


def test_three_come_home_by_one_command_and_each_run_is_as_of_a_single_failback(
    from_south: SetOfThree, south: tuple[SandboxCluster, Path], desk: Desk
) -> None:
    first, second, third = from_south.members
    tail = produce(second.source, second.topic, 4)  # a super user passes every fence
    written = {one.name: produce(one.destination, one.topic, 7, user="app") for one in from_south.members}
    primaries = {one.name: contents(read_all(one.destination, one.topic)) for one in from_south.members}
    document = yaml.safe_load(south[1].read_text(encoding="utf-8"))
    document["sets"] = {
        SET: {"mirrors": [str(one.name) for one in from_south.members], "order": str(SetOrder.IN_ORDER)}
    }
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    planned = desk.run("failback", "plan-set", SET, "--json")
    assert planned.code == 0, planned
    plans = json.loads(planned.out)
    assert [(plan["mirror"], plan["discarded"]) for plan in plans["plans"]] == [
        (first.name, 0),
        (second.name, len(tail)),
        (third.name, 0),
    ]
    other = desk.run("failback", "run-set", SET, "--plan-hash", "0" * 64, "--runner", "local", "--yes")
    assert other.code == Refused.exit_code, other
    typed = ("failback", "run-set", SET, "--plan-hash", plans["hash"], "--runner", "local", "--yes", "--json")
    said = desk.run(*typed)

    assert said.code == 0, said
    document = json.loads(said.out)
    assert [(run["plan"]["mirror"], run["state"]) for run in document["runs"]] == [
        (one.name, RunState.DONE) for one in from_south.members
    ]
    assert [run["result"]["saved"] for run in document["runs"]] == [0, len(tail), 0]
    page = read_page(desk.folder / "evidence" / f"set-{document['set']}" / "index.html")
    for one, run in zip(from_south.members, document["runs"], strict=True):
        home = "south" if one is second else "east"
        assert [step["step"] for step in run["steps"]] == list(list_step_names(RunKind.FAILBACK))
        assert run["result"]["applications"] == home
        assert f"Applications write on {home} again" in page[one.name]
        assert "done" in page[one.name]
        assert " nothing " in page[one.name]
        assert (desk.folder / "evidence" / f"run-{run['id']}" / "report.html").is_file()
        assert contents(read_all(one.source, one.topic)) == primaries[one.name], "what was written on the way is lost"
        assert one.find_writable() == [one.source]
        assert {record.value for record in written[one.name]} <= {r.value for r in read_all(one.source, one.topic)}
        replicate(one.mirrored.link)
    assert_equal_logs(from_south)
    homes = [
        find_run(one, "south" if one is second else "east", RunKind.FAILOVER, back=True) for one in from_south.members
    ]
    assert len({run.set_run for run in homes}) == 1, "applications went home one by one"
    again = desk.run("failback", "run-set", SET, "--runner", "local", "--yes")
    assert again.code == Refused.exit_code, again


def test_an_old_source_that_dies_while_it_is_copied_back_keeps_all_where_they_are(
    from_south: SetOfThree, south: tuple[SandboxCluster, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = from_south.members
    cluster, _ = south
    catch_up, lost = FailbackSteps.catch_up, list[str]()

    def dying(self: FailbackSteps) -> StepEvidence:
        if self.link.mirror.name == second.name and not lost:
            lost.append(second.name)
            cluster.kill(1)
        return catch_up(self)

    monkeypatch.setattr(FailbackSteps, "catch_up", dying)
    failback = from_south.make_failback()
    attempt = failback.begin(failback.decide().hash, approved_by="ann, ben")

    with pytest.raises(SetFailed) as failed:
        failback.bring_close(attempt)

    page = read_page(failback.page_path(attempt))
    for one in (first, third):
        assert one.find_writable() == [one.destination]
        assert "waits for the failover home" in page[one.name]
        assert f"Failover {one.name}-back has not begun: applications write on west." in page[one.name]
        assert "not stopped" in page[one.name]
    assert second.find_writable(second.destination) == [second.destination]
    assert "south does not answer" in page[second.name]
    assert "not stopped" not in page[second.name], "only south knows"
    assert "old source being changed" in page[second.name]
    assert f"`mirrorbook failback resume {second.name}`" in str(failed.value)

    restart(cluster)
    go_on = from_south.make_failback()
    assert go_on.find_active_attempt() == attempt
    go_on.bring_close(attempt)
    way_home = go_on.make_way_home(attempt)
    assert way_home is not None
    go_on.bring_home(attempt, way_home, begin(way_home))
    for one in from_south.members:
        assert one.find_writable() == [one.source]
        replicate(one.mirrored.link)
    assert_equal_logs(from_south)


def test_one_that_a_person_gives_up_stays_where_it_is_and_the_others_come_home(
    from_south: SetOfThree, south: tuple[SandboxCluster, Path], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed before anything of its old source was changed, when another one's was."""
    first, second, third = from_south.members
    check_approval = FailbackSteps.check_approval

    def failing(self: FailbackSteps) -> None:
        if self.link.mirror.name == second.name:
            raise MirrorError("not now")
        check_approval(self)

    monkeypatch.setattr(FailbackSteps, "check_approval", failing)
    failback = from_south.make_failback()
    attempt = failback.begin(failback.decide().hash, approved_by="ann, ben")
    with pytest.raises(SetFailed, match="not now"):
        failback.bring_close(attempt)
    second.failback.abort(find_run(second, "west", RunKind.FAILBACK).id)
    document = yaml.safe_load(south[1].read_text(encoding="utf-8"))
    document["sets"] = {SET: {"mirrors": [str(one.name) for one in from_south.members]}}
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    said = desk.run("failback", "run-set", SET, "--runner", "local", "--yes")

    assert said.code == 0, said
    assert format_sentence("member_given_up", second.name, second.name) in " ".join(said.out.split())
    page = read_page(desk.folder / "evidence" / f"set-{attempt}" / "index.html")
    assert "given up" in page[second.name]
    assert second.find_writable() == [second.destination]
    for one in (first, third):
        assert one.find_writable() == [one.source]
        replicate(one.mirrored.link)
        ours, theirs = read_both(one)
        assert ours == theirs, one.name

    assert from_south.make_failback().find_active_attempt() is None
    alone = SetFailback(MirrorSet(SET, (second.name,)), {second.name: second.failback}, print_line=print)
    with pytest.raises(SetFailed, match=f"{second.name}: given up"):
        alone.finish(attempt)


def test_an_old_source_that_dies_on_the_way_home_lets_all_stay_and_the_next_way_home_leads_all(
    from_south: SetOfThree, south: tuple[SandboxCluster, Path]
) -> None:
    first, second, third = from_south.members
    cluster, _ = south
    failback = from_south.make_failback()
    attempt = failback.begin(failback.decide().hash, approved_by="ann, ben")
    failback.bring_close(attempt)
    way_home = failback.make_way_home(attempt)
    assert way_home is not None
    back = way_home._conductors[way_home.mirror_set.mirrors[1]]
    back.services = replace(back.services, copy=breaking(cluster))
    home_attempt = begin(way_home)

    with pytest.raises(SetFailed) as failed:
        failback.bring_home(attempt, way_home, home_attempt)

    page = read_page(failback.page_path(attempt))
    for one in (first, third):
        assert one.find_writable() == [one.destination]
        assert "waits for the failover home" in page[one.name]
        assert "Applications write on west, as before" in page[one.name]
    assert second.find_writable(second.destination) == [], "it is fenced, and nobody has taken that back"
    assert "its old source was not read" in page[second.name]
    assert "Applications write on west" not in page[second.name], "nobody can write"
    assert f"{second.name}-back: not given up: " in str(failed.value)

    restart(cluster)
    go_on = from_south.make_failback()
    go_on.bring_close(attempt)
    left = go_on.make_way_home(attempt)
    assert left is not None
    assert left.find_active_attempt() == home_attempt
    with pytest.raises(SetFailed, match=f"{second.name}-back: given up"):
        go_on.bring_home(attempt, left, home_attempt)
    for one in from_south.members:
        assert one.find_writable() == [one.destination]
    again = go_on.make_way_home(attempt)
    assert again is not None
    go_on.bring_home(attempt, again, begin(again))
    for one in from_south.members:
        assert one.find_writable() == [one.source]
        replicate(one.mirrored.link)
    assert_equal_logs(from_south)


def test_one_that_is_stranded_on_the_way_home_leaves_the_others_home_and_mirrored(
    from_south: SetOfThree, south: tuple[SandboxCluster, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = from_south.members
    cluster, _ = south
    check, lost = PlannedSteps.check_before_promotion, list[str]()

    def checked(self: PlannedSteps) -> PromotionProbe:
        if self.link.mirror.name == f"{second.name}-back" and not lost:
            lost.append(second.name)
            cluster.kill(1)
        return check(self)

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", checked)
    failback = from_south.make_failback()
    attempt = failback.begin(failback.decide().hash, approved_by="ann, ben")
    failback.bring_close(attempt)
    way_home = failback.make_way_home(attempt)
    assert way_home is not None
    home_attempt = begin(way_home)

    with pytest.raises(SetFailed) as failed:
        failback.bring_home(attempt, way_home, home_attempt)

    page = read_page(failback.page_path(attempt))
    for one in (first, third):
        assert one.find_writable() == [one.source]
        assert "Applications write on east again" in page[one.name]
        assert find_run(one, "west", RunKind.FAILBACK).state is RunState.DONE
    assert second.find_writable(second.destination) == []
    assert "its old source was not read" in page[second.name]
    assert f"`mirrorbook failback resume {second.name}`" in str(failed.value)

    restart(cluster)
    go_on = from_south.make_failback()
    with pytest.raises(SetFailed):
        go_on.finish(attempt)
    left = go_on.make_way_home(attempt)
    assert left is not None
    assert left.find_active_attempt() == home_attempt
    go_on.bring_home(attempt, left, home_attempt)
    for one in from_south.members:
        assert one.find_writable() == [one.source]
        replicate(one.mirrored.link)
    assert_equal_logs(from_south)
