"""A source that answers again when an unplanned run is about to promote: left behind by a person's word, which always
leads on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import RunState, StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.timing import TIMEOUTS, Moment, now_ms
from mirror_core.runbook import unplanned_steps
from mirror_core.runbook.failover_conductor import format_refused_losses
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.run_outcome import format_run_outcome, is_awaiting_confirmation
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.point_of_no_return import PromotionCheck, SourceReturned, awaits_confirmation
from mirror_core.state.state_records import PartitionRecord
from tests.support import quiescence, silent_sources
from tests.support.fence_commands import MIRROR
from tests.support.quiescence import SHORT, WELL, agree
from tests.support.sentences import format_sentence
from tests.support.silent_sources import ANSWERS, approved_when_silent, looked
from tests.support.source_returns import TAKEN, debt

west, journal, steps = quiescence.west, quiescence.journal, quiescence.steps
fluent = silent_sources.fluent
BARE = Partition("bare", 0)
FENCED = PromotionProbe(log_ends=TAKEN.to_mapping(), is_fenced=True, fenced_broker_count=1)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("by_a_watcher", [False, True])
def test_a_source_that_was_silent_when_it_was_given_up_and_answers_is_so_only_by_a_word(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch, silent: bool, by_a_watcher: bool
) -> None:
    """Whoever fences it: it is back, and what it has can be saved."""
    if silent:
        approved_when_silent(fluent)
    if by_a_watcher:
        fluent.writer.put(debt(TAKEN))
    looked(monkeypatch, FENCED if by_a_watcher else ANSWERS)
    if not silent:
        fluent.check_before_promotion()
        return
    for _ in range(2):
        with pytest.raises(Refused, match=r"failover abort m`: .* nothing is lost.*resume m --leave-behind"):
            fluent.check_before_promotion()
        looked(monkeypatch, FENCED)  # its fence stands
    returned = fluent.journal.load_checkpoint("promote", SourceReturned)
    assert returned is not None
    fluent.journal.save_checkpoint("promote", replace(returned, loss_confirmed=True))
    fluent.check_before_promotion()


def test_one_that_comes_and_goes_or_cannot_be_fenced_strands_nobody(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_when_silent(fluent)
    looked(monkeypatch, PromotionProbe(silent_because="no answer"))
    fluent.check_before_promotion()
    looked(monkeypatch, PromotionProbe(unknowns=("wrong password",)), can_be_fenced=False)
    fluent.check_before_promotion()
    looked(monkeypatch, PromotionProbe(silent_because="no answer"))
    fluent.check_before_promotion()


def test_one_that_has_nothing_which_was_not_copied_is_left_without_a_word(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_when_silent(fluent)
    copied = PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)})
    fluent.writer.put(debt(copied))
    looked(monkeypatch, replace(FENCED, log_ends=copied.to_mapping()))
    fluent.check_before_promotion()


@pytest.mark.parametrize("is_copied", [True, False])
def test_topics_without_any_copy_are_among_the_records_that_only_a_returned_source_has(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    approved_when_silent(fluent)
    ends = PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)}) if is_copied else TAKEN
    topics = (
        ObservedTopic(topic="orders-new", ends=(36, 0), starts=((0, 0), (1, 0))),
        ObservedTopic(topic=BARE.topic, ends=(5,), starts=((0, 0),)),
        ObservedTopic(topic="unseen", ends=(None,)),
        ObservedTopic(topic="unused", ends=(7,), starts=((0, 7),)),
    )
    mirror = replace(fluent.writer.state.mirrors[MIRROR.name], topics=(".*",))
    observation = SourceObservation(mirror=MIRROR.name, at_ms=1, topics=topics)
    recorded = replace(fluent.statuses()[WELL], partition=BARE, destination_topic_id="", lmo=None)
    fluent.writer.put(debt(ends), mirror, observation, PartitionRecord(MIRROR.name, recorded))
    looked(monkeypatch, replace(FENCED, log_ends=ends.to_mapping()))
    with pytest.raises(Refused) as refused:
        fluent.check_before_promotion()
    (uncopied,) = [reason for reason in refused.value.reasons if "orders-new-0" in reason]
    assert "orders-new-0 (not mirrored yet: 36" in uncopied
    (bare,) = [reason for reason in refused.value.reasons if f"{BARE}" in reason]
    assert bare == uncopied, "a partition without a copy is named once"
    assert "unseen-0 (not mirrored yet: unknown" in uncopied
    assert "unused" not in uncopied
    assert "orders-new-1" not in uncopied, "it is empty"
    state, run = fluent.writer.state, fluent.journal.run
    listed = format_refused_losses(state, run)
    assert listed == tuple(refused.value.reasons[1:-1]), "the question of --leave-behind says the same"
    assert is_awaiting_confirmation(state, run)
    word(fluent)
    fluent.check_before_promotion()


@pytest.mark.parametrize("silent", [False, True])
def test_the_time_that_a_source_takes_to_refuse_its_fence_holds_no_run_up(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """A broker of it hangs. Once the look is followed by that before it is looked anew, and once afterwards."""
    if silent:
        approved_when_silent(fluent)
    fence_s = TIMEOUTS.promotion_probe_max_age_s / 2 + 1
    spent = [0.0]

    def paid_again(acts: UnplannedSteps, *_: object) -> dict[str, str]:
        spent[0] += fence_s
        return {"fence": "pending"}

    def look_again(*_: object, **__: object) -> PromotionProbe:
        return PromotionProbe(unknowns=("broker 3 hangs",), began=cast("Moment", Later(spent, spent[0])))

    def give(acts: UnplannedSteps, before: Callable[[], None]) -> dict[str, str]:
        before()
        return {}

    monkeypatch.setattr(unplanned_steps, "reapply_fence", paid_again)
    monkeypatch.setattr(unplanned_steps, "probe_source", look_again)
    monkeypatch.setattr(UnplannedSteps, "_grant_rights", give)
    fluent.journal.perform("promote", fluent.get_action("promote"))
    assert fluent.journal.is_done("promote")


class Later:
    """A moment by a clock that is set by hand."""

    def __init__(self, spent: list[float], at: float) -> None:
        self._spent, self._at = spent, at

    @property
    def age_s(self) -> float:
        return self._spent[0] - self._at


# -- there is always a way on ------------------------------------------------------------------------------------------


def word(steps: UnplannedSteps) -> None:
    assert agree(steps), "the word is not taken"


def test_what_was_not_known_behind_a_fence_is_asked_again(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the source has come back first."""
    approved_when_silent(fluent)
    fluent.writer.put(debt(PartitionOffsets.from_mapping({WELL: Offset(10)})))
    looked(monkeypatch, PromotionProbe(unknowns=("no log end",), log_ends={WELL: Offset(10)}, fenced_broker_count=1))
    with pytest.raises(Refused, match=format_sentence("source_may_have_uncopied_records_pattern", SHORT)):
        fluent.check_before_promotion()
    copied = {WELL: Offset(10), SHORT: Offset(8)}
    looked(monkeypatch, replace(FENCED, log_ends=copied))
    fluent.check_before_promotion()  # it has nothing more
    assert fluent.writer.state.pending_fences[MIRROR.name].log_ends.to_mapping() == copied


def test_what_is_known_behind_a_fence_stays_so(fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    approved_when_silent(fluent)
    fluent.writer.put(debt(PartitionOffsets.from_mapping({WELL: Offset(12)})))
    looked(monkeypatch, replace(FENCED, log_ends={WELL: Offset(99), SHORT: Offset(8)}))
    with pytest.raises(Refused, match=rf"{WELL} \[10, 12\)"):
        fluent.check_before_promotion()


def test_who_has_left_behind_what_was_not_known_is_not_asked_again_when_it_is(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of which one broker after the other comes back holds nobody up."""
    approved_when_silent(fluent)
    fluent.writer.put(debt(PartitionOffsets.from_mapping({WELL: Offset(510)})))
    looked(monkeypatch, PromotionProbe(unknowns=("no log end",), log_ends={WELL: Offset(510)}, fenced_broker_count=1))
    with pytest.raises(Refused, match="--leave-behind"):
        fluent.check_before_promotion()
    word(fluent)
    looked(monkeypatch, FENCED)
    fluent.check_before_promotion()
    fluent.writer.put(
        debt(PartitionOffsets.from_mapping({WELL: Offset(520)}))
    )  # and what was named is not what is there
    with pytest.raises(Refused, match="--leave-behind"):
        fluent.check_before_promotion()


def test_beside_a_source_that_can_be_neither_fenced_nor_stopped_a_word_goes_on(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_ms()
    fluent.writer.put(
        StepRecord(run="r", step="stand", state=StepState.DONE, attempt=1, started_ms=0, ended_ms=now - 3_600_000)
    )
    unsaid = PromotionProbe(unknowns=("not authorized",))
    looked(monkeypatch, unsaid, can_be_fenced=False)
    for _ in range(2):
        with pytest.raises(Refused, match=r"could not be fenced(.|\n)*resume m --leave-behind"):
            fluent.check_before_promotion()
    word(fluent)
    fluent.check_before_promotion()
    looked(monkeypatch, ANSWERS)  # it can be fenced by now, and what it has is known: people were not told of that
    with pytest.raises(Refused, match=rf"{WELL} \[10, 510\)(.|\n)*resume m --leave-behind"):
        fluent.check_before_promotion()
    word(fluent)
    looked(monkeypatch, FENCED)
    fluent.check_before_promotion()


def test_a_word_for_records_behind_a_fence_is_none_for_a_source_that_takes_writes(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    fluent.journal.save_checkpoint("promote", SourceReturned(log_ends=TAKEN, loss_confirmed=True))
    fluent.writer.put(
        StepRecord(run="r", step="promote", state=StepState.FAILED, attempt=1, started_ms=0, ended_ms=1),
    )
    looked(monkeypatch, PromotionProbe(unknowns=("not authorized",)), can_be_fenced=False)
    with pytest.raises(Refused, match="could not be fenced"):
        fluent.check_before_promotion()


@pytest.mark.parametrize(
    ("returned", "state", "waits"),
    [
        (None, RunState.RUNNING, False),
        (SourceReturned(), RunState.RUNNING, True),
        (SourceReturned(log_ends=TAKEN), RunState.RUNNING, True),
        (SourceReturned(log_ends=TAKEN, loss_confirmed=True), RunState.RUNNING, False),
        (SourceReturned(), RunState.ABORTING, False),
    ],
)
def test_a_run_waits_for_a_word_until_it_is_given(
    fluent: UnplannedSteps, returned: SourceReturned | None, state: RunState, waits: bool
) -> None:
    run = replace(fluent.journal.run, state=state)
    if returned is not None:
        fluent.journal.save_checkpoint("promote", returned)
    assert awaits_confirmation(fluent.writer.state, run) is waits


def test_no_run_waits_for_a_word_when_a_right_may_have_been_given(fluent: UnplannedSteps) -> None:
    fluent.journal.save_checkpoint("promote", SourceReturned())
    fluent.writer.put(StepRecord(run="r", step="promote", state=StepState.FAILED, attempt=1, started_ms=0, ended_ms=1))
    assert not awaits_confirmation(fluent.writer.state, fluent.journal.run)
    fluent.journal.save_checkpoint("promote", PromotionCheck(source_state="seen"))
    assert awaits_confirmation(fluent.writer.state, fluent.journal.run)


def test_a_word_that_cannot_be_read_was_not_given(fluent: UnplannedSteps) -> None:
    fluent.writer.put(Checkpoint(run="r", step="promote", kind="SourceReturned", version=9, value='{"unknown": 1}'))
    assert awaits_confirmation(fluent.writer.state, fluent.journal.run)


@pytest.mark.parametrize(
    ("owed", "words"),
    [
        (debt(TAKEN), "`mirrorbook failover resume m --leave-behind` goes on"),
        (
            debt(PartitionOffsets.from_mapping({WELL: Offset(10)})),
            "`mirrorbook failover resume m --leave-behind` goes on",
        ),
        (
            replace(debt(PartitionOffsets.from_mapping({})), applied_at_ms=None),
            "`mirrorbook failover resume m --leave-behind` goes on",
        ),
        (
            debt(PartitionOffsets.from_mapping({WELL: Offset(10), SHORT: Offset(8)})),
            "`mirrorbook failover resume m` goes on",
        ),
    ],
)
def test_the_last_words_name_the_word_that_the_run_waits_for(
    fluent: UnplannedSteps, owed: PendingFence, words: str
) -> None:
    fluent.journal.save_checkpoint("promote", SourceReturned())
    fluent.writer.put(owed)
    said = " ".join(format_run_outcome(fluent.link, fluent.writer.state, "r"))
    assert words in said
    assert ("east answered again" in said) is ("--leave-behind" in words)
    assert ("east is NOT fenced" in said) is (owed.applied_at_ms is None)
