"""What may go wrong while a destination short of replicas waits for people: each of these was possible once."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from mirror_core.kafka.topics import TopicConfigs
from mirror_core.model.errors import MirrorError, Refused, Unreachable
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.run import StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.model.timing import now_ms
from mirror_core.runbook import fence_recheck, quiescence, unplanned_steps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.promotion_steps import PromotionSteps
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state import topic_reader
from mirror_core.state.point_of_no_return import SourceReturned
from tests.support import quiescence as quiescence_support
from tests.support.quiescence import SHORT, WELL, West, agree, settle
from tests.support.source_returns import TAKEN, debt
from tests.unit.state import test_min_isr

west, journal, steps = quiescence_support.west, quiescence_support.journal, quiescence_support.steps
cluster = test_min_isr.west


def told(steps: UnplannedSteps) -> None:
    with pytest.raises(Refused):
        settle(steps)
    assert agree(steps)


def test_a_log_that_has_lost_what_was_replicated_has_no_lmo_above_its_end(west: West, steps: UnplannedSteps) -> None:
    told(steps)
    settle(steps)
    west.log[SHORT] = Offset(3)  # an unclean election; the high watermark was 5
    with pytest.raises(MirrorError, match=f"{SHORT} from 8 to 3"):
        PromotionSteps.record_lmo(steps)


@pytest.mark.parametrize("now", [None, 0])
def test_a_word_does_not_cover_a_high_watermark_that_has_fallen(
    west: West, steps: UnplannedSteps, now: int | None
) -> None:
    told(steps)
    if now is None:
        del west.high[SHORT]  # its leader was started again (KIP-207)
    else:
        west.high[SHORT] = Offset(now)
    with pytest.raises(Refused, match="high watermark"):
        settle(steps)


def test_a_writer_that_comes_now_and_then_is_no_want_of_replicas(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 0.2)
    monkeypatch.setattr(quiescence, "STABLE_AFTER_S", 0.1)

    def between_looks() -> None:
        if west.looks % 2:
            west.log[SHORT] = Offset(west.log[SHORT] + 1)

    west.each_look = between_looks
    with pytest.raises(MirrorError, match="still move") as failed:
        settle(steps)
    assert not isinstance(failed.value, Refused)


def test_an_answer_that_is_lost_ends_no_settling(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 60.0)
    asked = []

    def dying(client: object, topics: list[str]) -> object:
        asked.append(topics)
        if len(asked) == 1:
            raise Unreachable("a broker has died this moment")
        west.high[SHORT] = Offset(8)
        return west.configs(client, topics)

    monkeypatch.setattr(quiescence, "describe_available_configs", dying)
    assert settle(steps).positions == PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)})
    assert len(asked) == 2


def test_an_unknown_watermark_is_looked_at_again_before_it_counts_as_replicated(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction may be open, and the answer that tells it was lost."""
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 60.0)
    monkeypatch.setattr(quiescence, "STABLE_AFTER_S", 0.05)
    west.in_sync, west.own = (2, 3), {2: Offset(8), 3: Offset(8)}
    del west.high[SHORT]
    settle(steps)
    assert west.looks > 2


def test_a_word_is_for_partitions_that_were_all_named(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Partition("orders", n) for n in range(1, 31)]
    west.log, west.high = dict.fromkeys(many, Offset(8)), dict.fromkeys(many, Offset(5))
    alone = west.placements(None, [])[SHORT]
    monkeypatch.setattr(quiescence, "describe_placements", lambda *_: dict.fromkeys(many, alone))
    monkeypatch.setattr(UnplannedSteps, "scope", SimpleNamespace(drained=many, topic_names=["orders"]))
    with pytest.raises(Refused) as refused:
        settle(steps)
    assert set(re.findall(r"orders-\d+", str(refused.value))) == set(map(str, many))


def test_settled_positions_of_another_version_are_not_read(steps: UnplannedSteps) -> None:
    positions = msgspec.json.encode(PartitionOffsets.from_mapping({WELL: Offset(10)})).decode()
    settled = Checkpoint(run="r", step="settle", kind="SettleResult", version=1, value=f'{{"positions":{positions}}}')
    steps.writer.put(settled)
    assert steps.positions == {WELL: 10}
    assert not steps.left_behind
    steps.writer.put(replace(settled, version=2))
    with pytest.raises(MirrorError, match="of version 2"):
        _ = steps.positions


def test_a_cluster_that_does_not_tell_what_it_asks_for_hides_no_other_error(
    cluster: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    untold = {"__mirrorbook_state": TopicConfigs({}, {})}
    monkeypatch.setattr(topic_reader, "ClusterClient", lambda *_, **__: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(topic_reader, "describe_available_configs", lambda *_: (untold, {}))
    assert topic_reader.explain_min_isr(cluster, 1.0) == ""  # type: ignore[arg-type]


def settled(steps: UnplannedSteps, *, after_ms: int) -> None:
    """By the word, in a second attempt."""
    told(steps)
    settle(steps)
    now = now_ms()
    ended = StepRecord(
        run="r",
        step="settle",
        state=StepState.DONE,
        attempt=2,
        started_ms=now - 2000,
        first_started_ms=now - after_ms,
        ended_ms=now - 1000,
    )
    steps.writer.put(ended)


@pytest.mark.parametrize(("after_ms", "asks"), [(50 * 60_000, True), (30_000, False)])
def test_what_a_source_took_while_settling_waited_is_left_behind_only_by_a_word(
    west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch, after_ms: int, asks: bool
) -> None:
    scope = SimpleNamespace(drained=[WELL, SHORT], topic_names=["orders"], promoted=[WELL, SHORT])
    monkeypatch.setattr(UnplannedSteps, "scope", scope)
    settled(steps, after_ms=after_ms)
    paid = lambda acts, owed, *_: acts.writer.put(replace(owed, applied_at_ms=now_ms(), log_ends=TAKEN)) or {}  # noqa: E731
    monkeypatch.setattr(unplanned_steps, "apply_fence", paid)
    monkeypatch.setattr(unplanned_steps, "LiftFile", lambda acts, needed: SimpleNamespace(write_for_command=set))
    monkeypatch.setattr(unplanned_steps, "refuse_if_lifted", lambda acts: False)
    steps.stand()
    PromotionSteps.record_lmo(steps)
    now = now_ms()
    steps.writer.put(
        StepRecord(run="r", step="stand", state=StepState.DONE, attempt=1, started_ms=now - 500, ended_ms=now)
    )
    monkeypatch.setattr(UnplannedSteps, "check_approval", lambda *_, **__: False)
    look = PromotionProbe(log_ends=TAKEN.to_mapping(), is_fenced=True, fenced_broker_count=1)
    monkeypatch.setattr(unplanned_steps, "probe_source", lambda *_, **__: look)
    if not asks:
        steps.check_before_promotion()
        return
    with pytest.raises(Refused, match="--leave-behind"):
        steps.check_before_promotion()


def test_how_much_was_not_copied_of_a_partition_without_an_lmo_is_not_known(west: West, steps: UnplannedSteps) -> None:
    del west.high[SHORT]
    told(steps)
    settle(steps)
    PromotionSteps.record_lmo(steps)
    assert steps.statuses()[SHORT].lmo is None
    ends = PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(508)})
    steps.journal.save_checkpoint("promote", SourceReturned(log_ends=ends))
    steps.writer.put(debt(ends))
    with pytest.raises(Refused, match=f"what east has of {SHORT} and was not copied is unknown"):
        fence_recheck.refuse_uncopied_records(steps, PromotionProbe(silent_because="no answer"))
