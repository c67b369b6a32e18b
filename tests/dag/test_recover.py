"""`mirror_control`, action `recover`: what would be deleted is shown, and done as it was approved. On real brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Partition
from tests.dag.answering import answer, answer_question
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


@dataclass(slots=True)
class Form:
    """What somebody has sent, and what tasks of its run leave for each other."""

    recover_action: str = "recopy"
    left: dict[str, Any] = field(default_factory=dict)

    def context(self, operator: Any) -> Any:
        params = {"action": "recover", "topics": [], "recover_action": self.recover_action, "salvage": True}
        return {
            "ti": SimpleNamespace(
                xcom_pull=lambda task_ids, key="": self.left.get(task_ids + key),
                xcom_push=lambda key, value: self.left.update({operator.task_id + key: value}),
            ),
            "dag_run": SimpleNamespace(dag_id="mirror_control", run_id="r1", start_date=datetime.now(UTC)),
            "params": params,
        }

    def execute(self, operator: Any) -> Any:
        self.left[operator.task_id] = operator.execute(self.context(operator))
        return self.left[operator.task_id]

    def answered(self, operator: Any, person: str) -> Any:
        return answer_question(operator, self.context(operator), person)


@pytest.fixture
def foreign(pair: Pair, tmp_path: Path, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Mirrored:
    """A mirror whose only partition somebody else has written to on the destination."""
    from mirrorbook_airflow import approvals, control_tasks

    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.west, topic, 3)
    assert set(replicate(mirrored.link).failed) == {Partition(topic, 0)}
    for module in (approvals, control_tasks):
        monkeypatch.setattr(module, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(control_tasks, "get_home_folder", lambda part: tmp_path)
    return mirrored


def test_a_recopy_is_shown_approved_and_done_as_it_was_shown(foreign: Mirrored, tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.approvals import ApprovePlan
    from mirrorbook_airflow.control_tasks import ControlMirror, ShowChange

    [topic] = foreign.link.mirror.topics
    show = ShowChange(task_id="show", mirror=foreign.name)
    approve = ApprovePlan(task_id="approve", question="Recover?", plan=show)
    control = ControlMirror(task_id="control", mirror=foreign.name, show=show, approvals=(approve,))

    retry = Form("retry")
    assert retry.execute(show) == {"hash": "", "body": ""}
    assert retry.answered(approve, "ann") is None, "nothing is deleted, and yet somebody is asked"
    with pytest.raises(AirflowFailException, match="retry does not help"):
        retry.execute(control)

    form = Form()
    shown = form.execute(show)
    assert "deletes 23 offsets" in shown["body"]
    assert f"**{shown['hash'][:12]}**" in shown["body"]
    form.left["approve"] = answer("ann")  # an XCom that somebody has written
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        form.execute(control)
    form.answered(approve, "ann")
    produce(foreign.pair.west, topic, 1)
    before = shown["hash"][:12]
    with pytest.raises(AirflowFailException, match=f"task approve was answered about plan {before}, and this is plan"):
        form.execute(control)
    assert {s.state for s in foreign.statuses.values()} == {PartitionState.FAILED}

    form.execute(show)
    form.answered(approve, "ann")
    said = form.execute(control)

    assert said.startswith("approved by ann\n4 records of cluster west saved to ")
    assert list(tmp_path.glob(f"{foreign.name}/recover-*/**/*.parquet"))
    foreign.copy()
    assert read_all(foreign.pair.west, topic) == read_all(foreign.pair.east, topic)
    assert form.execute(show)["hash"] == ""
    assert form.execute(control) == "no partition is FAILED"
