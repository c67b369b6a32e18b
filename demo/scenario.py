"""What the demo does on its stage: everything through Airflow, as a person would, with applications running."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import pyarrow.parquet as pq

from demo import commands
from demo.airflow import AirflowFailed
from demo.stage import MIRROR, Stage
from mirror_core.demo.applications import lose_east
from mirror_core.demo.logs import TOPIC, LogEnds, read_log
from mirror_core.demo.verdict import Verdict, judge
from mirror_core.sandbox.credentials import ADMIN

LIVE: Final = 600
"""Orders that must be acknowledged in each act before the next one: a few seconds of life."""
CAUGHT_OUT: Final = 100
"""Orders that east acknowledges while nothing gets through to west: half a second of life."""
POLL_S: Final = 0.2
PATIENCE_S: Final = 300
"""For a data plane's start: a busy laptop is no incident."""
RUN_TIMEOUT_S: Final = 900.0
WAIT_TIMEOUT_S: Final = 300.0
FINAL: Final = ("success", "failed")
TOLD: Final = (*FINAL, "up_for_retry", "awaiting_input")

T = TypeVar("T")


class Scenario:
    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self.stage = stage
        self.say = say
        self.switched_by: list[str] = []

    def play(self) -> Verdict:
        """All acts, and the verdict."""
        self.stage.applications.start()
        self._live("east")
        self._create()
        self._disaster()
        self._live("west")
        self._east_is_back()
        asked = ["approve", "home.approve", "home.go_ahead"]
        self._runbook("mirror_failback", {"mirror": MIRROR}, asked, "east")
        self._live("east")
        self._by_command("failover", "west")
        self._by_command("failback", "east")
        self._replicate()  # the DAG that watched over the data plane ended when the mirror was stopped by command
        return self._verdict()

    def _disaster(self) -> None:
        """First nothing gets through to west for a moment, then east dies while orders are written: it is given up."""
        enough = self._acknowledged("east") + CAUGHT_OUT

        def while_cut_off() -> None:
            self._until(lambda: self._acknowledged("east") >= enough, "east goes on without west")

        lose_east(self.stage.sandbox, while_cut_off)
        self.say("east is dead: killed while orders were written, of which the last ones had not got through")
        self._runbook("mirror_failover_unplanned", {"mirror": MIRROR}, ["approve"], "west")

    def _by_command(self, runbook: str, cluster: str) -> None:
        """There or home without Airflow: it may have been lost, too; and applications stand still how much less?"""
        by = f"mirrorbook {runbook} run"
        self.say(f"{by}: started")
        commands.run(runbook, "run", MIRROR, config=self.stage.config, evidence=self.stage.evidence)
        self.say(f"{by}: done")
        self._switched(cluster, by)
        self._live(cluster)

    def _switched(self, cluster: str, by: str) -> None:
        """The mirror's hook has told the applications to move."""
        if (told := self.stage.applications.discovery.primary()) != cluster:
            raise AirflowFailed(f"{by} has not told applications to use {cluster}: they use {told}")
        self.switched_by.append(by)
        self.say(f"applications were told to use {cluster}")

    def _east_is_back(self) -> None:
        """It comes back with what west never had, and must take no writes."""
        events = self.stage.applications.acknowledged.look()
        acknowledged = {event.number for event in events if event.cluster == "east"}
        there = {entry.number for entry in read_log(self.stage.sandbox.cluster("west").client_config(ADMIN))}
        missing = len(acknowledged - there)
        self.say(f"really missing on west: {missing} of {len(acknowledged)} orders that east had acknowledged")
        self.stage.airflow.unpause("mirror_watch")
        self.stage.sandbox.cluster("east").start()
        self.say("east is back")
        # Red when it has records that west never had: then somebody is to be called.
        state = self._runbook("mirror_watch", {"mirrors": [MIRROR]}, ends_in=FINAL)
        self.say(f"mirror_watch: {state}: east is fenced")

    def _create(self) -> None:
        asked = {"mirror": MIRROR, "source": "east", "destination": "west", "topics": [TOPIC]}
        self._runbook("mirror_create", asked)
        self.stage.airflow.unpause("mirror_replicate")
        self._replicate()
        self._until(lambda: self._lag() < LIVE, "the mirror has caught up")
        self.say(f"the mirror is {self._lag()} orders behind, live")
        self._runbook("mirror_sync", {"mirrors": [MIRROR]})

    def _replicate(self) -> None:
        self.stage.airflow.trigger("mirror_replicate", {"mirror": MIRROR, "patience_s": PATIENCE_S})
        self.say("mirror_replicate: watching; the data plane starts")

    def _runbook(
        self,
        dag: str,
        conf: Mapping[str, object],
        approvals: Sequence[str] = (),
        moves_to: str | None = None,
        ends_in: Sequence[str] = ("success",),
    ) -> str:
        """Start it, approve what it asks, and see it end well; and that applications have moved, if they should."""
        airflow = self.stage.airflow
        airflow.unpause(dag)
        run = airflow.trigger(dag, conf, note="demo")
        self.say(f"{dag}: started")
        seen, answered = dict[str, str](), set[str]()
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            state, tasks = airflow.run_state(dag, run), airflow.tasks(dag, run)
            for task in tasks:
                if tasks[task] != seen.get(task) and tasks[task] in TOLD:
                    self.say(f"{dag}: {task}: {tasks[task]}")
            seen = tasks
            asked = {task for task in approvals if tasks.get(task) == "awaiting_input"}
            for task in asked - answered:
                self._approve(dag, run, task)
            answered = asked  # one that is asked again later (see ApprovePlan) is answered again
            if state in FINAL:
                break
            self._check_applications()
            if time.monotonic() > deadline:
                raise AirflowFailed(f"{dag} run {run} has not ended within {RUN_TIMEOUT_S:.0f} s: {tasks}")
            time.sleep(POLL_S)
        if state not in ends_in:
            raise AirflowFailed(f"{dag} run {run} is red: {self._reasons(dag, run, seen)}")
        if moves_to:
            self._switched(moves_to, dag)
        return state

    def _approve(self, dag: str, run: str, task: str) -> None:
        self.stage.airflow.await_question(dag, run, task, RUN_TIMEOUT_S)
        subject, body = self.stage.airflow.question(dag, run, task)
        for line in body.splitlines():
            if line.startswith(("| loss |", "| offsets to discard |")):
                self.say(f"the plan says: {line.strip('| ').replace(' | ', ': ')}")
        self.stage.airflow.answer(dag, run, task, "Approve")
        self.say(f"approved: {subject}")

    def _reasons(self, dag: str, run: str, tasks: Mapping[str, str]) -> str:
        failed = [task for task, state in tasks.items() if state == "failed"]
        logs = (f"task {task}:\n{self.stage.airflow.log_of(dag, run, task)[-3000:]}" for task in failed)
        return "\n".join(logs) or f"no task failed: {tasks}"

    # -- the applications ---------------------------------------------------------------------------------------

    def _live(self, cluster: str) -> None:
        """A few seconds of ordinary work on this cluster: orders acknowledged, and handled."""
        acked = self._acknowledged(cluster)
        self._until(lambda: self._acknowledged(cluster) >= acked + LIVE, f"{LIVE} orders are acknowledged on {cluster}")
        last = max(self.stage.applications.acknowledged.numbers())
        self._until(lambda: last in self._handled(), "the consumer group handles what was acknowledged")
        self.say(f"applications work on {cluster}: {len(self._handled())} orders handled so far")

    def _acknowledged(self, cluster: str) -> int:
        return self.stage.applications.acknowledged.on(cluster)

    def _handled(self) -> set[int]:
        return self.stage.applications.handled.numbers()

    def _check_applications(self) -> None:
        if name := self.stage.applications.ended():
            raise AirflowFailed(f"the demo's {name} has ended: see {self.stage.applications.log(name)}")

    # -- the clusters -------------------------------------------------------------------------------------------

    def _ends(self, cluster: str) -> list[int]:
        """Log ends of the orders' partitions; nothing while the topic is not there."""
        ends = LogEnds(self.stage.sandbox.cluster(cluster).client_config(ADMIN))
        try:
            return ends.look()
        finally:
            ends.close()

    def _lag(self) -> int:
        """Orders that west does not have yet."""
        west = self._ends("west")
        return sum(self._ends("east")) - sum(west)

    def _verdict(self) -> Verdict:
        if code := self.stage.applications.stop("producer"):
            raise AirflowFailed(f"the producer could not learn what became of its last orders (exit code {code})")
        acknowledged = self.stage.applications.acknowledged.look()
        saved = self._saved()
        wanted = {event.number for event in acknowledged} - saved
        self._until(lambda: wanted <= self._handled(), "the consumer group has handled every order", fatal=False)
        self.stage.applications.stop("consumer")
        self._until(lambda: self._ends("west") == self._ends("east"), "west has what east has", fatal=False)
        east, west = (read_log(self.stage.sandbox.cluster(name).client_config(ADMIN)) for name in ("east", "west"))
        handled = self.stage.applications.handled.look()
        return judge(
            east=east, west=west, acknowledged=acknowledged, handled=handled, saved=saved, switched_by=self.switched_by
        )

    def _saved(self) -> set[int]:
        """Orders in the files that the failback has saved from east's log before it was cut."""
        found = set[int]()
        for file in self.stage.evidence.rglob("*.parquet"):
            if "salvage" in str(file.relative_to(self.stage.evidence)):
                rows = pq.read_table(file).to_pylist()
                found |= {int(json.loads(row["value"])["number"]) for row in rows if row["topic"] == TOPIC}
        return found

    def _until(self, condition: Callable[[], T], why: str, *, fatal: bool = True) -> None:
        """Wait. What is not fatal is left for the verdict to find."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                if fatal:
                    raise AirflowFailed(f"not within {WAIT_TIMEOUT_S:.0f} s: {why}")
                self.say(f"not within {WAIT_TIMEOUT_S:.0f} s: {why}")
                return
            time.sleep(POLL_S)
