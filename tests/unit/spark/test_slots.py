"""A job that gets no task slot says who has them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from mirror_core.spark import job_submission
from mirror_core.spark.job_submission import NoTaskSlot, count_expected_slots, require_task_slot
from tests.support.sentences import format_sentence


class Context:
    """Of a Spark whose slots are taken by the jobs of these groups."""

    master = "spark://m:7077"

    def __init__(self, *at_work: str, asked_to_cancel: int = 1) -> None:
        self.at_work = at_work
        self.left = asked_to_cancel
        self.cancelled = threading.Event()

    def setJobGroup(self, group: str, what: str, *, interruptOnCancel: bool) -> None: ...

    def setLocalProperty(self, key: str, value: str) -> None: ...

    def cancelJobGroup(self, group: str) -> None:
        self.left -= 1
        if self.left <= 0:
            self.cancelled.set()

    def statusTracker(self) -> Any:
        stage = SimpleNamespace(numActiveTasks=1, numCompletedTasks=0, numFailedTasks=0)
        return SimpleNamespace(
            getJobIdsForGroup=lambda group: [0],
            getActiveJobsIds=lambda: [0, *range(1, len(self.at_work) + 1)],
            getJobInfo=lambda number: SimpleNamespace(stageIds=[1] if number else []),
            getStageInfo=lambda number: stage,
        )


@pytest.mark.parametrize(
    ("at_work", "words"),
    [
        ((), "Other applications may hold all cores"),
        (("ours-1",), format_sentence("no_task_slot_in_time", 0, 1)),
    ],
)
def test_who_holds_the_slots_is_said(monkeypatch: pytest.MonkeyPatch, at_work: tuple[str, ...], words: str) -> None:
    monkeypatch.setattr(job_submission, "SLOT_TIMEOUT_S", 0.01)
    with pytest.raises(NoTaskSlot, match=words):
        ends_when_cancelled(Context(*at_work))


def test_who_holds_them_is_counted_once_however_long_the_cancelling_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_submission, "SLOT_TIMEOUT_S", 0.01)
    with pytest.raises(NoTaskSlot, match=": 1 job that this process began before"):
        ends_when_cancelled(Context("ours-1", asked_to_cancel=3))


def ends_when_cancelled(context: Any) -> None:
    with require_task_slot(context, "Spark, job 3", "ours-3"):
        assert context.cancelled.wait(20)
        raise PySparkException("cancelled")


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 0),
        ({"cores.max": "16"}, 16),
        ({"cores.max": "16", "task.cpus": "2"}, 8),
        ({"executor.instances": "4"}, 4),
        ({"executor.instances": "4", "executor.cores": "3"}, 12),
        ({"dynamicAllocation.enabled": "true", "dynamicAllocation.maxExecutors": "20", "executor.cores": "4"}, 80),
        ({"dynamicAllocation.enabled": "true", "executor.instances": "2"}, 0),
    ],
)
def test_expected_slots_follow_from_the_settings(settings: dict[str, str], slots: int) -> None:
    assert count_expected_slots({f"spark.{key}": value for key, value in settings.items()}) == slots
