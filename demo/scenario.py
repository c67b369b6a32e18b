"""What the demo does on its stage: everything through Airflow, as a person would, with applications running."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow.parquet as pq

from demo.conducting import Conducted
from demo.stage import AirflowStage
from mirrorbook_tools.demo.environment import MIRROR
from mirrorbook_tools.demo.logs import TOPIC, LogEnds, read_log
from mirrorbook_tools.demo.loss_check import Verdict, judge, switches
from mirrorbook_tools.demo.workload import LIVE
from mirrorbook_tools.sandbox.credentials import ADMIN

PATIENCE_S: Final = 300
"""For a data plane's start: a busy laptop is no incident."""
ASKED: Final = ("approve", "home.approve", "home.go_ahead")


class Scenario:
    def __init__(self, stage: AirflowStage) -> None:
        self._stage = stage
        self._screen = stage.screen
        self._life = stage.life
        self._applications = stage.applications
        self._commands = stage.commands
        self._switched_by: list[str] = []

    def play(self) -> Verdict:
        """All acts, and the verdict."""
        self._screen.act("1  Mirror east to west")
        self._mirror()
        self._screen.act("2  East dies: fail over to west without it")
        failover = self._disaster()
        self._screen.act("3  East is back: close it, save what only it has, bring everything home")
        self._east_is_back(failover)
        self._come_home()
        self._screen.act("4  There and home again by command line, and every order counted")
        self._by_command("failover", "west")
        self._by_command("failback", "east")
        return self._verdict()

    def watch_over(self) -> None:
        """Whoever stays to look around finds the mirror protected."""
        self._stage.airflow.trigger("mirror_replicate", {"mirror": MIRROR, "patience_s": PATIENCE_S})

    # -- the acts -----------------------------------------------------------------------------------------------

    def _mirror(self) -> None:
        ends = {"source": "east", "destination": "west"}
        self._by_hand(f"mirror create {MIRROR} --source east --destination west --topics {TOPIC}")
        self._run("mirror_create", {"mirror": MIRROR, "topics": [TOPIC], **ends}).end()
        copying = ("--prove-at", "50MB/s", "--receipts", str(self._stage.receipts))
        self._commands.copy("supervise", MIRROR, "--home", str(self._stage.supervisors), "--", *copying)
        self._stage.airflow.pause("mirror_watch")  # it is shown when east is back
        self.watch_over()
        self._screen.say("Spark copies; Airflow: DAG mirror_replicate watches it")
        self._life.await_copy(LIVE)

    def _disaster(self) -> Conducted:
        """East dies while orders are written: it is given up."""
        self._life.lose_east()
        self._by_hand(f"failover run {MIRROR} --mode unplanned")
        run = self._run("mirror_failover_unplanned", {"mirror": MIRROR}, ASKED)
        run.until("switch")
        self._at_work_again("west", "mirror_failover_unplanned")
        return run

    def _east_is_back(self, failover: Conducted) -> None:
        """It comes back with what west never had, and must take no writes."""
        acknowledged = {event.number for event in self._applications.acknowledged.read_new() if event.cluster == "east"}
        there = {entry.number for entry in read_log(self._stage.sandbox.cluster("west").client_config(ADMIN))}
        missing = len(acknowledged - there)
        self._screen.say(f"really missing on west: {missing} of {len(acknowledged):,} orders acknowledged by east")
        self._stage.sandbox.cluster("east").start()
        self._screen.say("east is back")
        failover.end()
        self._by_hand(f"mirror watch {MIRROR} --once")
        self._run("mirror_watch", {"mirrors": [MIRROR]}).end()
        self._stage.airflow.pause("mirror_watch")  # it has a schedule of its own, and the supervisor looks, too
        self._screen.say("east is closed: nobody may write there")

    def _come_home(self) -> None:
        self._by_hand(f"failback run {MIRROR}")
        run = self._run("mirror_failback", {"mirror": MIRROR}, ASKED)
        run.until("home.switch")
        self._at_work_again("east", "mirror_failback")
        run.end()

    def _by_command(self, runbook: str, cluster: str) -> None:
        """There or home without Airflow: it may have been lost, too; and applications stand still how much less?"""
        here = ("--runner", "local", "--evidence", str(self._stage.evidence))
        self._commands.run(runbook, "run", MIRROR, "--yes", *here)
        self._at_work_again(cluster, f"mirrorbook {runbook} run")

    # -- in each of them ----------------------------------------------------------------------------------------

    def _run(self, dag: str, conf: Mapping[str, object], approvals: Sequence[str] = ()) -> Conducted:
        return Conducted(self._stage.airflow, self._screen, self._life.tick, dag, conf, approvals)

    def _by_hand(self, words: str) -> None:
        """What does the same without Airflow."""
        self._screen.command(f"mirrorbook {words}")

    def _at_work_again(self, cluster: str, by: str) -> None:
        """The mirror's hook has told the applications to move, and they work there."""
        self._life.check_switch(cluster, by)
        self._switched_by.append(by)
        self._life.at_work(cluster)
        *_, (_, _, _, seconds) = switches(self._applications.acknowledged.read_new(), self._switched_by)
        self._screen.say(f"orders go to {cluster} again, after {seconds:.1f} s without writes")

    # -- the verdict --------------------------------------------------------------------------------------------

    def _verdict(self) -> Verdict:
        acknowledged = self._life.stop_producer()
        saved = self._saved()
        handled = self._life.stop_consumer({event.number for event in acknowledged} - saved)
        self._life.until(lambda: self._ends("west") == self._ends("east"), "west has what east has", fatal=False)
        east, west = (read_log(self._stage.sandbox.cluster(name).client_config(ADMIN)) for name in ("east", "west"))
        return judge(
            east=east, west=west, acknowledged=acknowledged, handled=handled, saved=saved, switched_by=self._switched_by
        )

    def _ends(self, cluster: str) -> list[int]:
        """Log ends of the orders' partitions."""
        ends = LogEnds(self._stage.sandbox.cluster(cluster).client_config(ADMIN))
        try:
            return ends.read_new()
        finally:
            ends.close()

    def _saved(self) -> set[int]:
        """Orders in the files that the failback has saved from east's log before it was cut."""
        found = set[int]()
        for file in self._stage.evidence.rglob("*.parquet"):
            if "salvage" in str(file.relative_to(self._stage.evidence)):
                rows = pq.read_table(file).to_pylist()
                found |= {int(json.loads(row["value"])["number"]) for row in rows if row["topic"] == TOPIC}
        return found
