"""The story: what is copied, what dies, what is moved, and what has become of every order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from mirrorbook_tools.demo.commands import Commands
from mirrorbook_tools.demo.environment import MIRROR, Stage
from mirrorbook_tools.demo.logs import TOPIC, read_log
from mirrorbook_tools.demo.loss_check import Bound, as_written, bound_of, covered, judge
from mirrorbook_tools.demo.summary import StoryResult
from mirrorbook_tools.demo.workload import Life, StoryFailed, lose_east
from mirrorbook_tools.sandbox.credentials import ADMIN

CAUGHT_UP: Final = 100
"""Orders, half a second of them: a live mirror is never nearer for long."""
CUT_OFF: Final = 100
"""Orders that east acknowledges while nothing gets through to west."""
WAIT_S: Final = 120.0
CONDUCTOR: Final = "mirrorbook failover run"


class Story:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._screen = stage.screen
        self._applications = stage.applications
        self._life = Life(
            stage.applications,
            stage.sandbox,
            stage.screen,
            logs=stage.folder,
            wait_s=WAIT_S,
            beside=self._check_copying,
        )
        self._commands = Commands(stage.config, stage.said, stage.processes, stage.screen, self._life.tick)

    def tell(self) -> StoryResult:
        """All acts."""
        self._screen.act("1  Two clusters, and two applications on east")
        self._stage.set_up()
        self._life.begin()
        self._life.at_work("east")
        self._screen.act("2  Mirrorbook copies east to west")
        self._mirror()
        self._screen.act("3  East dies")
        self._disaster()
        self._screen.act("4  Fail over to west, without east")
        bound = self._fail_over()
        self._life.at_work("west")
        self._screen.act("5  Count every order")
        return self._count(bound)

    def _mirror(self) -> None:
        ends = ("--source", "east", "--destination", "west")
        self._commands.run("mirror", "create", MIRROR, *ends, "--topics", TOPIC, "--yes")
        self._commands.run("mirror", "start", MIRROR, "--yes")
        receipts = ("--receipts", str(self._stage.receipts))
        self._commands.copy("replicate", MIRROR, "--runner", "local", *receipts)
        life = self._life
        life.watch_west()
        life.until(lambda: life.behind is not None and life.behind < CAUGHT_UP, "west has what east has")
        self._screen.say(f"west is {life.behind} orders behind, live, and has the same offsets")
        self._commands.run("sync", MIRROR, "--yes")
        self._life.at_work("east")

    def _check_copying(self) -> None:
        self._commands.check_copying()

    def _disaster(self) -> None:
        self._commands.check_copying()
        self._life.leave_west()  # it answers nobody while it is cut off
        enough = self._applications.acknowledged.on("east") + CUT_OFF

        def while_cut_off() -> None:
            self._life.until(lambda: self._applications.acknowledged.on("east") >= enough, "east goes on without west")

        lose_east(self._stage.sandbox, while_cut_off)
        self._screen.say("east was killed while orders were written; west had not got the last ones yet")

    def _fail_over(self) -> Bound:
        asked_ms = time.time_ns() // 1_000_000
        plan = self._commands.document("failover", "plan", MIRROR, "--mode", "unplanned")
        for line in in_short(plan):
            self._screen.say(line)
        bound = bound_of(plan["figures"]["loss"], asked_ms)
        approved = ("--mode", "unplanned", "--plan-hash", plan["hash"], "--yes")
        run = self._commands.document("failover", "run", MIRROR, *approved)
        if run["state"] != "DONE":
            raise StoryFailed(f"{CONDUCTOR}: run {run['id']} is {run['state']}, not DONE")
        steps = [step["step"] for step in run["steps"]]
        self._screen.say(f"done in {(run['ended_ms'] - run['started_ms']) / 1000:.1f} s: {', '.join(steps)}")
        if (told := self._applications.discovery.primary()) != "west":
            raise StoryFailed(f"{CONDUCTOR} has not told the applications to use west: they use {told}")
        self._screen.say("step switch has told the applications to use west")
        return bound

    def _count(self, bound: Bound) -> StoryResult:
        if code := self._applications.stop("producer"):
            raise StoryFailed(f"the producer could not learn what became of its last orders: exit code {code}")
        acknowledged = self._applications.acknowledged.read_new()
        log = list(read_log(self._stage.sandbox.cluster("west").client_config(ADMIN)))
        lost = covered(acknowledged, log, bound)
        wanted = {event.number for event in acknowledged} & {entry.number for entry in log}
        self._life.until(
            lambda: wanted <= self._applications.handled.numbers(), "the consumer has handled every order", fatal=False
        )
        self._applications.stop("consumer")
        self._life.end()
        verdict = judge(
            # East is dead: what its producer wrote, and was told of each order's place, stands for its log.
            east=map(as_written, log),
            west=log,
            acknowledged=acknowledged,
            handled=self._applications.handled.read_new(),
            saved=lost,
            switched_by=[CONDUCTOR],
        )
        return StoryResult(verdict=verdict, lost=lost)


def in_short(plan: Mapping[str, Any]) -> list[str]:
    """What a person looks at before saying yes."""
    turning = next((step["name"] for step in plan["steps"] if not step["reversible"]), None)
    return [
        f"the plan, hash {plan['hash']}: {len(plan['steps'])} steps, no way back but a failback from {turning} on",
        f"the plan says it loses {plan['figures']['loss']}",
        *(f"the plan says of group {group}: {words}" for group, words in plan["groups"].items()),
    ]
