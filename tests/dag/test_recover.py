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
from tests.brokers import Pair, new_topic, produce, read_all
from tests.dag.test_two_people import answer
from tests.mirroring import Mirrored, new_mirror, replicate

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


@dataclass(slots=True)
class Form:
    """What somebody has sent, and what tasks of its run leave for each other."""

    recover_action: str = "recopy"
    left: dict[str, Any] = field(default_factory=dict)

    def execute(self, operator: Any) -> Any:
        params = {"action": "recover", "topics": [], "recover_action": self.recover_action, "salvage": True}
        context: Any = {
            "ti": SimpleNamespace(
                xcom_pull=lambda task_ids, key="": self.left.get(task_ids + key),
                xcom_push=lambda key, value: self.left.update({operator.task_id + key: value}),
            ),
            "dag_run": SimpleNamespace(dag_id="mirror_control", run_id="r1", start_date=datetime.now(UTC)),
            "params": params,
        }
        self.left[operator.task_id] = operator.execute(context)
        return self.left[operator.task_id]


@pytest.fixture
def foreign(pair: Pair, tmp_path: Path, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Mirrored:
    """A mirror whose only partition somebody else has written to on the destination."""
    from mirrorbook_airflow import controlling

    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.west, topic, 3)
    assert set(replicate(mirrored.link).failed) == {Partition(topic, 0)}
    monkeypatch.setattr(controlling, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(controlling, "home", lambda part: tmp_path)
    return mirrored


def test_a_recopy_is_shown_approved_and_done_as_it_was_shown(foreign: Mirrored, tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.controlling import ApproveRecovery, ControlMirror, ShowRecovery

    [topic] = foreign.link.mirror.topics
    show, control = (make(task_id=task, mirror=foreign.name) for make, task in _of(ShowRecovery, ControlMirror))
    approve = ApproveRecovery(task_id="approve", question="Recover?", plan=show)

    retry = Form("retry")
    assert retry.execute(show) == {"hash": "", "body": ""}
    assert retry.execute(approve) is None, "nothing is deleted, and yet somebody is asked"
    with pytest.raises(AirflowFailException, match="retry does not help"):
        retry.execute(control)

    form = Form()
    shown = form.execute(show)
    assert "deletes 23 offsets" in shown["body"]
    assert f"**{shown['hash']}**" in shown["body"]
    with pytest.raises(AirflowFailException, match="nobody has approved what it would delete"):
        form.execute(control)
    form.left |= {"approve": answer("ann"), "approveasked_about": shown["hash"]}
    produce(foreign.pair.west, topic, 1)
    with pytest.raises(AirflowFailException, match="something has changed since, look again"):
        form.execute(control)
    assert {s.state for s in foreign.statuses.values()} == {PartitionState.FAILED}

    shown = form.execute(show)
    with pytest.raises(AirflowFailException, match=f"and this is {shown['hash']}: clear it, it asks again"):
        form.execute(control)
    form.left["approveasked_about"] = shown["hash"]
    said = form.execute(control)

    assert said.startswith("approved by ann\n4 record(s) of cluster west saved to ")
    assert list(tmp_path.glob(f"{foreign.name}/recover-*/**/*.parquet"))
    foreign.copy()
    assert read_all(foreign.pair.west, topic) == read_all(foreign.pair.east, topic)
    assert form.execute(show)["hash"] == ""
    assert form.execute(control) == "no partition is FAILED"


def _of(*made: Any) -> list[tuple[Any, str]]:
    return list(zip(made, ("show", "control"), strict=True))
