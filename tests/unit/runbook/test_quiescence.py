"""A destination short of replicas: what an unplanned failover waits for, and what it leaves behind by a word."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirror_core.decide.quiescence_check import (
    ConfirmedEnd,
    IsrStatus,
    LogEndSample,
    UnreplicatedPartition,
    find_unquiescent,
    find_unreplicated,
    format_min_isr_command,
    format_unreplicated_remedies,
    has_confirmed_all,
    is_fully_replicated,
)
from mirror_core.kafka.consumer_groups import CommittedOffset, ConsumerGroup
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.kafka.reassignment import ReplicaPlacement
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import NO_OFFSETS, ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.run import RunState
from mirror_core.model.sync_state import DriftRow, OwnGroupOffsets, SyncAction
from mirror_core.runbook import quiescence, unplanned_steps
from mirror_core.runbook.promotion_steps import PromotionSteps
from mirror_core.runbook.step_records import LeftBehindPartition, SettleResult, UnderReplicatedLogs
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.point_of_no_return import SourceReturned
from mirror_core.sync import failover_offsets
from mirror_core.sync.offset_sync import format_unlisted
from tests.support import quiescence as quiescence_support
from tests.support.fence_commands import linked
from tests.support.quiescence import CLIENT, SHORT, WELL, West, agree, settle

journal = quiescence_support.journal
steps = quiescence_support.steps
west = quiescence_support.west
FEW = IsrStatus(replicas=(1, 2, 3), in_sync=(2,), min_insync_replicas=2)


def ends(before: int | None, end: int | None, high: int | None, stable: int | None) -> LogEndSample:
    def offset(value: int | None) -> Offset | None:
        return None if value is None else Offset(value)

    return LogEndSample(
        first_end=offset(before), end=offset(end), high_watermark=offset(high), last_stable_offset=offset(stable)
    )


@pytest.mark.parametrize(
    ("one", "replicas", "found"),
    [
        (ends(8, 8, 8, 8), FEW, "at rest"),  # nobody is missed: all is there, and consumers see it
        (ends(8, 8, 5, 5), FEW, "held up"),
        (ends(8, 8, None, None), FEW, "held up"),  # KIP-207
        (ends(8, 8, 5, 5), replace(FEW, in_sync=(2, 3)), "moving"),  # a follower fetches, or is missed soon
        (ends(8, 8, 5, 5), replace(FEW, min_insync_replicas=1), "moving"),
        (ends(8, 8, 5, 5), None, "moving"),  # the cluster does not tell
        (ends(7, 8, 5, 5), FEW, "moving"),  # somebody writes, whatever replicas there are
        (ends(9, 8, 5, 5), FEW, "moving"),
        (ends(None, 8, 5, 5), FEW, "moving"),
        (ends(8, None, None, None), FEW, "moving"),
        (ends(8, 8, 8, 5), FEW, "moving"),  # a transaction is open
        (ends(8, 8, 6, 5), FEW, "moving"),
    ],
)
def test_only_what_stands_still_and_is_short_of_replicas_is_held_up(
    one: LogEndSample, replicas: IsrStatus | None, found: str
) -> None:
    looked = find_unquiescent({SHORT: one})
    held = find_unreplicated(looked, {SHORT: replicas} if replicas else {})
    assert ("at rest" if not looked else "held up" if held else "moving") == found


@pytest.mark.parametrize(
    ("one", "replicas", "own", "found"),
    [
        (ends(8, 8, 5, 5), replace(FEW, min_insync_replicas=1), {2: 8}, True),
        (ends(8, 8, None, None), replace(FEW, min_insync_replicas=1), {2: 8}, True),
        (ends(8, 8, 5, 5), replace(FEW, in_sync=(2, 3)), {2: 8, 3: 8}, True),
        (ends(8, 8, 5, 5), replace(FEW, in_sync=(2, 3)), {2: 8, 3: 7}, False),
        (ends(8, 8, 5, 5), replace(FEW, in_sync=(2, 3)), {2: 8}, False),  # it does not answer, and counts as in sync
        (ends(8, 8, 5, 5), FEW, {2: 8}, False),
        (ends(7, 8, 5, 5), replace(FEW, min_insync_replicas=1), {2: 8}, False),
        (ends(8, 8, 6, 5), replace(FEW, min_insync_replicas=1), {2: 8}, False),
    ],
)
def test_a_log_is_replicated_by_the_word_of_each_broker_in_sync(
    one: LogEndSample, replicas: IsrStatus, own: dict[int, int], found: bool
) -> None:
    assert is_fully_replicated(one, replicas, {broker: Offset(end) for broker, end in own.items()}) is found


def test_brokers_do_not_ask_for_more_replicas_than_there_are() -> None:
    assert not IsrStatus(replicas=(1, 2), in_sync=(1, 2), min_insync_replicas=3).is_under_min_isr
    assert IsrStatus(replicas=(1, 2), in_sync=(1,), min_insync_replicas=3).is_under_min_isr
    assert not IsrStatus(replicas=(1,), in_sync=(1,), min_insync_replicas=2).is_under_min_isr


def test_a_word_holds_for_what_was_told() -> None:
    held = {SHORT: UnreplicatedPartition(end=Offset(8), high_watermark=Offset(5), isr=FEW)}
    told = ConfirmedEnd(Offset(8), Offset(5))
    assert has_confirmed_all(held, {SHORT: told, WELL: told}), "one that has come back meanwhile is no matter"
    assert has_confirmed_all(held, {SHORT: told._replace(high_watermark=Offset(4))})
    assert has_confirmed_all(held, {SHORT: told._replace(high_watermark=None)})
    assert not has_confirmed_all(held, {SHORT: told._replace(end=Offset(7))})
    assert not has_confirmed_all(held, {SHORT: told._replace(high_watermark=Offset(6))}), (
        "its mirroring would count as done further down"
    )
    assert not has_confirmed_all({SHORT: replace(held[SHORT], high_watermark=None)}, {SHORT: told})
    assert not has_confirmed_all(held, {WELL: told})


def test_the_ways_on_name_brokers_and_lines_to_paste() -> None:
    one = UnreplicatedPartition(end=Offset(8), high_watermark=None, isr=FEW)
    two = replace(one, isr=replace(FEW, in_sync=(1, 2), min_insync_replicas=3))
    held = {Partition("a", 0): two, Partition("a", 1): one, Partition("b", 0): two}
    start, lower, leave = format_unreplicated_remedies(ClusterName("west"), "w:1", MirrorName("m"), held)
    assert "start a broker of west that has them (1, 3)" in start
    assert format_min_isr_command("w:1", "a", 1) in lower
    assert format_min_isr_command("w:1", "b", 2) in lower
    assert "--bootstrap-server w:1 " in lower
    assert "`mirrorbook failover resume m --leave-behind`" in leave
    many = {Partition(f"t{n}", 0): one for n in range(9)}
    _, lower, _ = format_unreplicated_remedies(ClusterName("west"), "w:1", MirrorName("m"), many)
    assert lower.count("kafka-configs.sh") == 5
    assert "and so for 4 more topics" in lower


def test_what_too_few_replicas_hold_up_is_named_with_each_way_on(west: West, steps: UnplannedSteps) -> None:
    with pytest.raises(Refused) as refused:
        settle(steps)
    said = str(refused.value)
    assert f"{SHORT}: log end 8, high watermark 5; 1 of 3 replicas in sync, and min.insync.replicas=2" in said
    assert "not in sync: broker 1, 3" in said
    assert str(WELL) not in said
    assert "--entity-name orders --add-config min.insync.replicas=1" in said
    assert "`mirrorbook failover resume m --leave-behind`" in said


def test_it_is_promoted_up_to_its_high_watermark_by_a_word_that_is_given_when_asked_for(
    west: West, steps: UnplannedSteps
) -> None:
    assert not agree(steps), "nobody gives it beforehand"
    with pytest.raises(Refused):
        settle(steps)
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    settled = settle(steps)
    assert settled.positions == PartitionOffsets.from_mapping({WELL: Offset(10)})
    assert settled.left_partitions == (
        LeftBehindPartition(topic="orders", index=1, end=Offset(8), high_watermark=Offset(5)),
    )

    steps.journal.perform("settle", dict)
    assert not agree(steps), "the step is done"
    assert "without_offset" not in PromotionSteps.record_lmo(steps)
    assert {p: s.lmo for p, s in steps.statuses().items()} == {WELL: 10, SHORT: 5}
    assert {s.state for s in steps.statuses().values()} == {PartitionState.STOPPED}


def test_without_a_high_watermark_it_is_promoted_without_an_lmo(west: West, steps: UnplannedSteps) -> None:
    del west.high[SHORT]
    with pytest.raises(Refused, match="high watermark unknown"):
        settle(steps)
    assert agree(steps)
    settle(steps)
    assert PromotionSteps.record_lmo(steps)["without_offset"] == f"1: {SHORT}"
    assert {p: s.lmo for p, s in steps.statuses().items()} == {WELL: 10, SHORT: None}


def test_a_log_end_that_nobody_knows_who_wrote_is_no_lmo(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    west.high[SHORT] = west.log[SHORT]
    named, no_lease = SimpleNamespace(name="west"), SimpleNamespace(old_writers_end_s=0.0)
    for name, made in {
        "ClusterClient": lambda *a, **k: nullcontext(named),
        "fence_old_tasks": lambda *a: SimpleNamespace(is_certain=True, uncertainty=""),
        "deny_offset_commits": lambda *a: "none",
        "find_foreign_writes": lambda *a: {WELL: Offset(9), SHORT: None},
        "list_known_offsets": lambda *a: {},
    }.items():
        monkeypatch.setattr(unplanned_steps, name, made)
    monkeypatch.setattr(UnplannedSteps, "hold_lease", lambda *a: nullcontext(no_lease))
    evidence = steps.settle()
    assert (evidence["written_by_others"], evidence["writers_unknown"]) == (f"{WELL} from offset 9", str(SHORT))
    assert PromotionSteps.record_lmo(steps)["without_offset"] == f"1: {SHORT}"
    assert {p: s.lmo for p, s in steps.statuses().items()} == {WELL: 9, SHORT: None}


def test_groups_resume_before_the_first_offset_that_is_not_the_sources(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = PartitionOffsets.from_mapping({WELL: Offset(90)})
    doubtful = PartitionOffsets.from_mapping({SHORT: Offset(200)})
    settled = SettleResult(positions=NO_OFFSETS, foreign_starts=starts, doubtful_ends=doubtful)
    steps.journal.save_checkpoint("settle", settled)
    agreed = list[Mapping[Partition, Offset]]()

    def clamp(
        link: object,
        topics: object,
        safe: object,
        own: object,
        ends: Mapping[Partition, Offset],
        doubtful_from: Mapping[Partition, Offset],
    ) -> list[DriftRow]:
        agreed.extend((ends, doubtful_from))
        return []

    monkeypatch.setattr(unplanned_steps, "find_agreed_ends", lambda *a: {WELL: Offset(80), SHORT: Offset(150)})
    monkeypatch.setattr(unplanned_steps, "clamp_groups", clamp)
    steps.final_offsets()
    assert agreed == [{WELL: 80, SHORT: 150}, {SHORT: 0}]


def test_what_is_written_later_is_somebodys_doing(west: West, steps: UnplannedSteps) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    settle(steps)
    west.log[SHORT] = Offset(9)
    with pytest.raises(MirrorError, match=rf"somebody has written .*{SHORT} from 8 to 9"):
        PromotionSteps.record_lmo(steps)
    west.log[SHORT] = Offset(6)  # it has lost its end, as may happen: its high watermark is not touched by that
    PromotionSteps.record_lmo(steps)
    assert steps.statuses()[SHORT].lmo == 5


def test_a_word_is_about_the_log_ends_that_were_told(west: West, steps: UnplannedSteps) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    west.log[SHORT] = Offset(9)
    for _ in range(2):
        with pytest.raises(Refused, match="log end 9"):
            settle(steps)
    assert agree(steps)
    assert settle(steps).left_partitions[0].end == 9


def test_no_word_lets_a_log_pass_that_moves(west: West, steps: UnplannedSteps) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    west.grows = True
    with pytest.raises(MirrorError, match="still move") as failed:
        settle(steps)
    assert not isinstance(failed.value, Refused)
    assert "--leave-behind" not in str(failed.value)


def test_replicas_that_come_back_need_no_word(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 60.0)

    def back() -> None:
        if west.looks > 6:
            west.high[SHORT] = Offset(8)

    west.each_look = back
    settled = settle(steps)
    assert settled == SettleResult(positions=PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)}))
    assert west.looks > 6


def test_a_topic_that_asks_for_fewer_is_at_rest_when_each_replica_in_sync_has_its_log(
    west: West, steps: UnplannedSteps
) -> None:
    """Its leader looks at the high watermark only when something is appended."""
    west.asked = "1"
    for own in ({}, {2: Offset(7)}):
        west.own = own
        with pytest.raises(MirrorError, match="still move"):
            settle(steps)
    west.own = {2: Offset(8)}
    whole = SettleResult(positions=PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)}))
    assert settle(steps) == whole

    west.asked, west.in_sync = "2", (2, 3)
    with pytest.raises(MirrorError, match="still move"):
        settle(steps)
    west.own[3] = Offset(8)
    assert settle(steps) == whole
    west.grows = True
    with pytest.raises(MirrorError, match="still move"):
        settle(steps)


def test_who_has_the_word_does_not_wait(west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 60.0)
    began = time.monotonic()
    assert len(settle(steps).left_partitions) == 1
    assert time.monotonic() - began < 30


def test_a_word_waits_for_what_still_moves(west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 60.0)
    west.looks = 0
    west.log[WELL] = west.high[WELL] = Offset(9)

    def fetched() -> None:
        if west.looks == 2:  # a moment after the first look
            west.log[WELL] = west.high[WELL] = Offset(10)

    west.each_look = fetched
    monkeypatch.setattr(
        quiescence,
        "describe_placements",
        lambda client, topics: {SHORT: ReplicaPlacement(leader=2, replicas=(1, 2, 3), in_sync=(2,))},
    )
    assert settle(steps).positions == PartitionOffsets.from_mapping({WELL: Offset(10)})


def test_a_word_for_the_settling_is_none_for_the_promotion(west: West, steps: UnplannedSteps) -> None:
    steps.journal.save_checkpoint("promote", SourceReturned())
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)
    returned = steps.journal.load_checkpoint("promote", SourceReturned)
    assert returned is not None
    assert not returned.loss_confirmed
    steps.journal.perform("settle", dict)
    assert agree(steps)
    returned = steps.journal.load_checkpoint("promote", SourceReturned)
    assert returned is not None
    assert returned.loss_confirmed


def test_a_run_that_is_given_up_takes_no_word(west: West, steps: UnplannedSteps) -> None:
    with pytest.raises(Refused):
        settle(steps)
    steps.writer.put(replace(steps.journal.run, state=RunState.ABORTING))
    assert not agree(steps)
    assert steps.journal.load_checkpoint("settle", UnderReplicatedLogs) == UnderReplicatedLogs(
        ends=PartitionOffsets.from_mapping({SHORT: Offset(8)}),
        high_watermarks=PartitionOffsets.from_mapping({SHORT: Offset(5)}),
    )


@pytest.fixture
def clamped_commits(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is to be committed, for each clamp of a group that is at 9 of 10 and at 7 of 8."""
    group = ConsumerGroup("g", "classic", "Empty", 1)
    at = {WELL: CommittedOffset(Offset(9), -1, ""), SHORT: CommittedOffset(Offset(7), -1, "")}
    told = SimpleNamespace(faults={}, offsets={"g": SimpleNamespace(committed=at)})
    logs = {
        OffsetPoint.START: {WELL: Offset(0), SHORT: Offset(0)},
        OffsetPoint.LOG_END: {WELL: Offset(10), SHORT: Offset(8)},
    }
    monkeypatch.setattr(failover_offsets, "ClusterClient", lambda *a, **k: nullcontext(CLIENT))
    monkeypatch.setattr(failover_offsets, "list_groups", lambda client: {"g": group})
    monkeypatch.setattr(failover_offsets, "has_offline_coordinators", lambda client: True)
    monkeypatch.setattr(failover_offsets, "fetch_group_offsets", lambda client, of: told)
    monkeypatch.setattr(failover_offsets, "list_known_offsets", lambda client, partitions, point: dict(logs[point]))
    monkeypatch.setattr(failover_offsets, "OffsetCommitter", lambda *a, **k: nullcontext(CLIENT))
    made: list[object] = []

    def commit(commits: object, todo: object, client: object, share_groups: object) -> dict[str, dict[Partition, str]]:
        made.append(todo)
        return {"g": {SHORT: "group_authorization_failed"}} if todo else {}

    monkeypatch.setattr(failover_offsets, "commit_until_answered", commit)
    return made


def test_no_group_begins_where_a_log_may_still_lose_its_end(clamped_commits: list[object], tmp_path: Path) -> None:
    limits: list[dict[Partition, Offset | None]] = [{}, {SHORT: None}, {SHORT: Offset(5)}]
    own = [
        OwnGroupOffsets(
            mirror=MirrorName("orders"), group="away", offsets=PartitionOffsets.from_mapping({WELL: Offset(3)})
        )
    ]
    rows = [failover_offsets.clamp_groups(linked(tmp_path), ["orders"], most, own) for most in limits]
    assert clamped_commits == [{}, {}, {"g": {SHORT: (Offset(5), "")}}]
    refused, unlisted = (
        row for row in rows[-1] if row.action is SyncAction.SKIP
    )  # a run's evidence has it as not done
    assert (unlisted.subject, unlisted.reason) == ("away", format_unlisted(ClusterName("west")))
    assert refused.subject == f"g {SHORT}"
    assert "starts where auto.offset.reset says: refused by the destination (group_auth" in refused.reason


def test_of_other_records_only_the_mirrors_own_offsets_are_taken_back(
    clamped_commits: list[object], tmp_path: Path
) -> None:
    own = OwnGroupOffsets(
        mirror=MirrorName("orders"),
        group="g",
        offsets=PartitionOffsets.from_mapping({WELL: Offset(9), SHORT: Offset(6)}),
    )
    agreed_ends = {WELL: Offset(4), SHORT: Offset(4)}
    failover_offsets.clamp_groups(linked(tmp_path), ["orders"], {}, [own], agreed_ends)
    failover_offsets.clamp_groups(linked(tmp_path), ["orders"], {SHORT: Offset(6)}, [own], agreed_ends)
    assert clamped_commits == [
        {"g": {WELL: (Offset(4), "")}},
        {"g": {WELL: (Offset(4), ""), SHORT: (Offset(4), "")}},
    ]


def test_an_offset_of_the_mirrors_own_where_anybody_may_have_written_is_named(
    clamped_commits: list[object], tmp_path: Path
) -> None:
    own = OwnGroupOffsets(
        mirror=MirrorName("orders"),
        group="g",
        offsets=PartitionOffsets.from_mapping({WELL: Offset(9), SHORT: Offset(7)}),
    )
    doubtful_from = {WELL: Offset(9), SHORT: Offset(5)}
    rows = failover_offsets.clamp_groups(linked(tmp_path), ["orders"], {}, [own], doubtful_from=doubtful_from)
    assert clamped_commits == [{}]
    assert {row.subject: row.action for row in rows} == {f"g {WELL}": SyncAction.EQUAL, f"g {SHORT}": SyncAction.SKIP}
