"""A destination that never held all of what the source had: promoted only by a word of its own."""

from __future__ import annotations

import json
import secrets
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.dataplane.driver import Replication
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.decide.mirror_snapshot import CopyingState
from mirror_core.decide.run_result import UncountedLoss, find_uncounted_loss
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.partition_recovery import recover_partitions
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.names import Partition, format_reverse_name
from mirror_core.model.run import FailbackStrategy, RunKind, RunMode
from mirror_core.model.timing import now_ms
from tests.cluster.test_recover import create, delete
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook, on_terminal
from tests.support.data_plane_thread import beating, driving
from tests.support.failback_runs import content, failback_of
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.replicate_process import Copier, Progress, copier
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def observed_end(mirrored: Mirrored, partition: Partition) -> int:
    observation = mirrored.state.source_observations.get(mirrored.name)
    seen = dict(observation.get_ends()).get(partition) if observation else None
    return 0 if seen is None else seen.end


def test_applications_do_not_move_onto_a_topic_that_a_failback_has_emptied(pair: Pair, tmp_path: Path) -> None:
    emptied, kept = app_topic(pair, 3), app_topic(pair)
    for topic in (emptied, kept):
        produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, emptied, kept)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover, RunMode.PLANNED).id)
    produce(pair.east, emptied, 2)  # a tail that only the old source has
    produce(pair.west, emptied, 12, partition=1)
    failback, strategies = failback_of(mirrored), AllowedStrategies.parse(("recreate",))
    plan = failback.plan(strategies)
    assert plan.strategies == {emptied: FailbackStrategy.RECREATE, kept: FailbackStrategy.NONE}
    run = failback.begin(plan.hash, strategies)
    for step in ("salvage", "align", "demote", "create_reverse"):
        failback.run_step(run.id, step)

    name, config = format_reverse_name(mirrored.name), ("--config", str(mirrored.config.path))
    with killed(pair.west):
        [reason] = failback.make_reverse_failover().decide(RunMode.UNPLANNED).reasons
        assert (reason.code, reason.subject) == ("copy_never_complete", "east")
        assert reason.values["partitions"] == (f"{emptied}-0 (0 of 30)", f"{emptied}-1 (0 of 12)")
        assert (reason.values["held"], reason.values["source"]) == (0, "west")
        refused = mirrorbook("failover", "run", name, "--mode", "unplanned", *config)
        assert refused.returncode == 3, refused
        by_word = ("failover", "run", name, "--mode", "unplanned", "--leave-behind", *config)
        code, shown = on_terminal(*by_word, answer="no")
        question = " ".join(shown[shown.index("hash") :].split())
        assert "EAST HAS NOTHING of" in question, shown
        assert question.index("EAST HAS NOTHING of") < question.index("UNPLANNED failover"), shown
        assert "lost: at least 42 offsets" in question, shown
        assert code != 0
    assert content(read_all(pair.west, emptied))


def test_nobody_opens_an_emptied_old_source_unaware_of_what_it_has_not(pair: Pair, tmp_path: Path) -> None:
    emptied, kept = app_topic(pair, 3), app_topic(pair)
    for topic in (emptied, kept):
        produce(pair.east, topic, 30)
    evidence = tmp_path / "evidence"
    mirrored = new_mirror(pair, evidence, emptied, kept)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover, RunMode.PLANNED).id)
    produce(pair.east, emptied, 2)
    produce(pair.west, emptied, 12, partition=1)
    failback, strategies = failback_of(mirrored), AllowedStrategies.parse(("recreate",))
    run = failback.begin(failback.plan(strategies).hash, strategies)
    for step in ("salvage", "align"):
        failback.run_step(run.id, step)
    folder = evidence / f"run-{run.id}"
    told = str(
        Finding(
            "old_source_emptied",
            "east",
            run=run.id,
            run_kind=RunKind.FAILBACK,
            topics=[emptied],
            held=0,
            has_unknown=False,
            destination="west",
            folders=[folder / "salvage"],
            records=2,
        )
    )
    (tmp_path / "mirrorbook.yaml").write_bytes(mirrored.config.path.read_bytes())
    config = ("--config", str(tmp_path / "mirrorbook.yaml"))
    for screen in (("mirror", "describe"), ("failback", "status")):
        shown = mirrorbook(*screen, mirrored.name, *config)
        assert f"WEST ALONE HAS {emptied} until east has caught up" in " ".join(shown.stdout.split()), shown
    unfence = ("cluster", "unfence", "east", "--from", str(folder / f"unfence-{run.id}.json"))
    with killed(pair.west):
        for command in (
            ("failback", "status", mirrored.name),
            ("failback", "resume", mirrored.name, "--yes"),
            ("failback", "plan", mirrored.name),
            ("mirror", "describe", mirrored.name),
            (*unfence, "--dry-run"),
        ):
            shown = mirrorbook(*command, *config)
            assert told in " ".join((shown.stdout + shown.stderr).split()), (command, shown)
        code, shown_before = on_terminal(*unfence, *config, answer="no")
        question = " ".join(shown_before.split())
        assert code != 0
        assert question.index("none of their records now") < question.index("Type east to go on"), question


def test_a_first_copy_that_has_not_ended_is_promoted_by_a_word_only(pair: Pair, tmp_path: Path) -> None:
    topic, whole = app_topic(pair), app_topic(pair)
    produce(pair.east, whole, 10)
    producer = Producer({**pair.east.client_config("admin"), "batch.size": 16_384, "linger.ms": 5})
    for _ in range(3_000):
        producer.produce(topic, value=bytes(1_000), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    mirrored = new_mirror(pair, tmp_path, topic, whole)
    mirror_commands.throttle_mirror(mirrored.link, 200_000)
    partition, there = Partition(topic, 0), Progress(mirrored, "west", topic)
    with driving(mirrored):
        wait_until(lambda: there.exists() and there.total() > 0, timeout_s=TIMEOUT_S, why="the copy has begun")
        wait_until(lambda: observed_end(mirrored, partition) == 3_000, timeout_s=TIMEOUT_S, why="east was observed")
    copied = there.total()
    assert 0 < copied < 3_000
    with killed(pair.east):
        [reason] = mirrored.failover.decide(RunMode.UNPLANNED).reasons
        assert (reason.code, reason.subject) == ("copy_never_complete", "west")
        assert reason.values["partitions"] == (f"{topic}-0 ({copied:,} of 3,000)",)
        told = mirrorbook("readiness", mirrored.name, "--json", "--config", str(mirrored.config.path))
        assert "copy_never_complete" in [f["code"] for f in json.loads(told.stdout)["unplanned"]["refused"]]
    mirror_commands.throttle_mirror(mirrored.link, None)
    mirrored.copy()
    with killed(pair.east):
        assert mirrored.failover.decide(RunMode.UNPLANNED).reasons == ()


def test_a_planned_plan_counts_what_failed_partitions_lack(pair: Pair, tmp_path: Path) -> None:
    topic, well = app_topic(pair, 2), app_topic(pair)
    produce(pair.east, topic, 300)
    produce(pair.east, well, 20)
    mirrored = new_mirror(pair, tmp_path, topic, well)
    mirrored.copy()
    produce(pair.west, topic, 1)
    produce(pair.east, topic, 614)
    failed = Partition(topic, 0)
    with driving(mirrored):
        wait_until(lambda: observed_end(mirrored, failed) == 914, timeout_s=TIMEOUT_S, why="east was observed")
        wait_until(lambda: mirrored.statuses[failed].reason, timeout_s=TIMEOUT_S, why="the partition is FAILED")
    planned, unplanned = (mirrored.failover.plan(mode) for mode in RunMode)
    assert unplanned.figures[FigureKey.LOST_OFFSETS] == 614
    assert planned.figures[FigureKey.LOST_OFFSETS] == 614
    assert (planned.forecast.lost_offsets, planned.forecast.lost_is_minimum) == (614, True)  # type: ignore[union-attr]
    [warning] = [warning for warning in planned.warnings if warning.code == "partitions_failed"]
    assert (warning.values["lost"], warning.values["unknown"]) == (614, 0)
    config = ("--config", str(mirrored.config.path))
    told = mirrorbook("readiness", mirrored.name, "--json", *config)
    assert (told.returncode, json.loads(told.stdout)["ready"]) == (3, False)
    said = mirrorbook("failover", "plan", mirrored.name, "--mode", "unplanned", *config).stdout
    assert "planned loses nothing" not in " ".join(said.split())


def test_a_topic_that_no_data_plane_has_seen_hides_neither_the_way_on_nor_what_is_known(
    pair: Pair, tmp_path: Path
) -> None:
    prefix = "t-" + secrets.token_hex(4)
    topic = app_topic(pair, 2, prefix=prefix)
    produce(pair.east, topic, 300)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    name, config = mirrored.name, ("--config", str(mirrored.config.path))
    with driving(mirrored):
        wait_until(lambda: observed_end(mirrored, Partition(topic, 0)) == 300, timeout_s=TIMEOUT_S, why="east is seen")
        beating(mirrored, 1)
    before = mirrored.failover.plan(RunMode.UNPLANNED)
    late = app_topic(pair, 3, prefix=prefix)
    produce(pair.east, late, 129)

    refused = mirrorbook("failover", "plan", name, *config)
    screen = " ".join((refused.stdout + refused.stderr).split())
    assert (refused.returncode, f"mirrorbook supervise {name}" in screen) == (3, True), refused
    assert "wait for the data plane" not in screen, refused
    told = json.loads(mirrorbook("readiness", name, "--json", *config).stdout)
    [point] = [point for point in told["points"] if point["code"] == "partitions_not_mirrored"]
    assert point["values"]["copying"] == CopyingState.ABSENT

    plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert isinstance(plan.forecast, PlanForecast)
    assert isinstance(before.forecast, PlanForecast)
    assert plan.forecast.lost_offsets == before.forecast.lost_offsets
    assert plan.forecast.unseen_s > before.forecast.unseen_s  # type: ignore[operator]
    assert find_uncounted_loss(plan) == UncountedLoss(unknown_topics=(f"{late} (3 partitions)",))
    assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}
    code, shown = on_terminal("failover", "run", name, "--mode", "unplanned", *config, answer="no")
    question = " ".join(shown[shown.index("UNPLANNED failover") :].split())
    assert code != 0
    assert f"{plan.forecast.lost_offsets}" in question or plan.forecast.lost_offsets == 0
    assert question.index("what east took in the last") < question.index(f"all of topic {late} (3 partitions)"), shown
    with killed(pair.east):
        assert mirrored.failover.decide(RunMode.UNPLANNED).reasons == ()


def test_a_topic_that_was_seen_empty_was_complete_once(pair: Pair, tmp_path: Path) -> None:
    """It is made, written and lost while its copy has only begun: as any other copy's, its end is lost by one word."""
    prefix = "t-" + secrets.token_hex(4)
    topic = app_topic(pair, prefix=prefix)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, prefix + ".*")
    mirrored.copy()
    mirror_commands.throttle_mirror(mirrored.link, 100_000)
    with driving(mirrored, epoch_s=20):
        beating(mirrored, 1)
        late = Partition(app_topic(pair, prefix=prefix), 0)
        wait_until(lambda: is_observed(mirrored, late), timeout_s=TIMEOUT_S, why="it is seen, and is empty")
        producer = Producer({**pair.east.client_config("admin"), "batch.size": 16_384, "linger.ms": 5})
        for _ in range(3_000):
            producer.produce(late.topic, value=bytes(1_000), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert late not in mirrored.statuses, "no plan has taken it up before it held records"
        there = Progress(mirrored, "west", late.topic)
        wait_until(lambda: there.exists() and there.total() > 0, timeout_s=TIMEOUT_S, why="its copy has begun")
        wait_until(lambda: is_lagging(mirrored, late), timeout_s=TIMEOUT_S, why="the observation has it as a copy")
    copied = there.total()
    assert 0 < copied < 3_000
    with killed(pair.east):
        decision = mirrored.failover.decide(RunMode.UNPLANNED)
        assert decision.reasons == ()
        assert decision.plan.figures[FigureKey.LOST_OFFSETS] == 3_000 - copied


def is_observed(mirrored: Mirrored, partition: Partition) -> bool:
    observation = mirrored.state.source_observations.get(mirrored.name)
    return observation is not None and partition in dict(observation.get_ends())


def is_lagging(mirrored: Mirrored, partition: Partition) -> bool:
    observation = mirrored.state.source_observations[mirrored.name]
    return partition in mirrored.statuses and partition in dict(observation.get_recovery_points())


@pytest.mark.parametrize(
    ("anew", "is_killed"),
    [(("east",), False), (("west",), False), (("east", "west"), True)],
    ids=["source", "destination", "both, and the data plane was killed"],
)
def test_nothing_that_was_reported_of_a_topic_counts_for_the_one_that_is_copied_in_its_place(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: tuple[str, ...], *, is_killed: bool
) -> None:
    topic, kept = app_topic(pair), app_topic(pair)
    for name in (topic, kept):
        produce(pair.east, name, 100)
    mirrored, partition = new_mirror(pair, tmp_path, topic, kept), Partition(topic, 0)
    with copier(mirrored, "local", tmp_path / "log") if is_killed else driving(mirrored) as process:
        wait_until(lambda: partition in once_complete(mirrored), timeout_s=TIMEOUT_S, why="it is complete")
        if isinstance(process, Copier):
            process.kill()
    for side in anew:
        delete(getattr(pair, side), topic)
    if "east" in anew:
        create(pair.east, topic)
        produce(pair.east, topic, 10)
    assert set(replicate(mirrored.link).failed) == {partition}
    plan = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    recover_partitions(mirrored.link, plan, print)
    monkeypatch.setattr(Replication, "_submit", lambda *_: None)  # no task comes to copy anything
    began_ms = now_ms()
    with driving(mirrored):
        wait_until(partial(is_seen_since, mirrored, partition, began_ms), timeout_s=TIMEOUT_S, why="it is observed")
    assert once_complete(mirrored).keys() >= {Partition(kept, 0)}
    assert partition not in once_complete(mirrored)
    with killed(pair.east):
        decision = mirrored.failover.decide(RunMode.UNPLANNED)
    assert ("copy_never_complete", "west") in [(reason.code, reason.subject) for reason in decision.reasons]
    assert decision.plan.figures[FigureKey.LOST_OFFSETS] == (10 if "east" in anew else 100)


def once_complete(mirrored: Mirrored) -> dict[Partition, None]:
    observation = mirrored.state.source_observations.get(mirrored.name)
    return dict.fromkeys(observation.list_once_complete() if observation else ())


def is_seen_since(mirrored: Mirrored, partition: Partition, since_ms: int) -> bool:
    observation, statuses = mirrored.state.source_observations.get(mirrored.name), mirrored.statuses
    is_recorded = partition in statuses and bool(statuses[partition].destination_topic_id)
    return is_recorded and observation is not None and observation.at_ms > since_ms
