"""All of Airflow is killed while applications can write nowhere: the command line ends what was begun. When the same
Airflow is back its run ends well, and does nothing a second time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import yaml

from mirror_core.model.names import format_reverse_name
from mirror_core.model.run import RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from tests.drill.airflow_parts import (
    RUN_S,
    WHOLE,
    Parts,
    airflow_in_parts,
    at_home,
    copied_mirror,
    goes_on,
    in_step,
    in_step_home,
    promoted,
)
from tests.support.cli_process import mirrorbook
from tests.support.failover_runs import commit, committed
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

MORE: Final = 50


@pytest.fixture(scope="module")
def parts(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with airflow_in_parts(pair, tmp_path_factory.mktemp("airflow")) as made:
        yield made


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    return copied_mirror(pair, tmp_path)


@dataclass
class Hook:
    """A hook of step `switch` that tells when it is called, and ends when it is let."""

    folder: Path
    told: Path = field(init=False)
    let: Path = field(init=False)

    def __post_init__(self) -> None:
        self.told, self.let = self.folder / "told", self.folder / "let"

    def known(self, parts: Parts, mirror: Mirrored) -> None:
        """To this Airflow, and so to commands on its machine."""
        waits = f"echo $MIRRORBOOK_RUN >> {self.told}; until test -e {self.let}; do sleep 0.1; done"
        hook = {"name": "applications", "command": ["/bin/sh", "-c", waits], "timeout_s": 300}
        known = {"mirrors": {str(mirror.name): {"switch": [hook]}}}
        (parts.airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(yaml.safe_dump(known), encoding="utf-8")

    def calls(self) -> list[str]:
        """Runs that it was called for."""
        return self.told.read_text(encoding="utf-8").split() if self.told.exists() else []


@dataclass
class ByHand:
    """What a person types on Airflow's machine when Airflow is gone."""

    parts: Parts
    mirror: Mirrored
    kind: RunKind = RunKind.FAILOVER
    struck: dict[str, StepState] = field(default_factory=dict)
    """Steps of the run that holds applications, as Airflow left them."""
    ended: dict[str, StepRecord] = field(default_factory=dict)
    """All steps when the command had ended."""

    def __call__(self) -> None:
        conducted = self.mirror.name if self.kind is RunKind.FAILOVER else format_reverse_name(self.mirror.name)
        steps, state = self.steps(), self.mirror.state if self.kind is RunKind.FAILOVER else self._home()
        (run,) = [r for r in state.runs.values() if r.plan.mirror == conducted]
        assert run.state is RunState.RUNNING
        self.struck = {record.step: record.state for record in steps.values() if record.run == run.id}
        print(f"Airflow was lost in {self.struck}")
        home, name = self.parts.airflow.folder / "mirrorbook", self.mirror.name
        options = ["--config", str(home / "config" / f"{name}.yaml"), "--evidence", str(home / "evidence")]
        words = [str(self.kind), "resume", name, *options, "--runner", "local", "--yes"]
        done = mirrorbook(*words, timeout_s=RUN_S)
        assert done.returncode == 0, done.stdout + done.stderr
        self.ended = self.steps()

    def steps(self) -> dict[str, StepRecord]:
        """Attempts, times and evidence, by run and step, on the way home, too."""
        known = [*self.mirror.state.steps.values(), *self._home().steps.values()]
        return {f"{record.run} {record.step}": record for record in known if self.mirror.name in record.run}

    def _home(self) -> State:
        return read_state(self.mirror.config.cluster("east"))


@pytest.mark.parametrize("during", ["fence", pytest.param("switch", marks=pytest.mark.slow)])
def test_a_failover_is_ended_by_the_command_line(parts: Parts, mirrored: Mirrored, tmp_path: Path, during: str) -> None:
    hook, by_hand, (topic,) = Hook(tmp_path), ByHand(parts, mirrored), mirrored.link.mirror.topics
    commit(mirrored.pair.east, f"g-{topic}", topic, 77)
    hook.known(parts, mirrored)
    fenced = in_step(mirrored, "fence")

    def more(task: str) -> None:
        """Acknowledged after the proof: it is copied, and compared, while nobody can write."""
        if task == "go_ahead":
            produce(mirrored.pair.east, topic, MORE)

    def end() -> None:
        hook.let.touch()
        by_hand()

    goes_on(
        parts,
        WHOLE,
        "mirror_failover",
        {"mirror": mirrored.name},
        "cut_over",
        begun=fenced if during == "fence" else lambda: bool(hook.calls()),
        asked=more,
        meanwhile=end,
    )
    assert ("promote" in by_hand.struck, "switch" in by_hand.struck) == (during == "switch", during == "switch")
    assert by_hand.steps() == by_hand.ended
    promoted(mirrored)
    assert committed(mirrored.pair.west, f"g-{topic}", topic) == 77
    (run,) = {run.id for run in mirrored.state.runs.values() if run.plan.mirror == mirrored.name}
    assert hook.calls() == [run] * (2 if during == "switch" else 1)  # the one that had not ended is called again, once


@pytest.mark.slow
def test_a_failback_is_ended_by_the_command_line(parts: Parts, mirrored: Mirrored) -> None:
    by_hand, (topic,) = ByHand(parts, mirrored, RunKind.FAILBACK), mirrored.link.mirror.topics
    failover = mirrored.failover
    failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
    produce(mirrored.pair.west, topic, MORE)

    def more(task: str) -> None:
        if task == "home.go_ahead":
            produce(mirrored.pair.west, topic, MORE)

    goes_on(
        parts,
        WHOLE,
        "mirror_failback",
        {"mirror": mirrored.name},
        "home.cut_over",
        begun=in_step_home(mirrored, "fence"),
        asked=more,
        meanwhile=by_hand,
    )
    assert "promote" not in by_hand.struck
    assert by_hand.steps() == by_hand.ended
    at_home(mirrored)
