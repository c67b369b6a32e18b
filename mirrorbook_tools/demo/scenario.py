"""The story: what is copied, what dies, what is moved, and what has become of every order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from mirrorbook_tools.demo.environment import MIRROR, Stage
from mirrorbook_tools.demo.logs import TOPIC, read_log
from mirrorbook_tools.demo.loss_check import Bound, as_written, bound_of, covered, judge
from mirrorbook_tools.demo.summary import StoryResult
from mirrorbook_tools.demo.workload import StoryFailed
from mirrorbook_tools.sandbox.credentials import ADMIN

CAUGHT_UP: Final = 100
"""Orders, half a second of them: a live mirror is never nearer for long."""
CONDUCTOR: Final = "mirrorbook failover run"


class Story:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._screen = stage.screen
        self._life = stage.life
        self._commands = stage.commands

    def tell(self) -> StoryResult:
        """All acts."""
        self._screen.act("1  Two clusters, and two applications on east")
        self._stage.set_up()
        self._screen.act("2  Mirrorbook copies east to west")
        self._mirror()
        self._screen.act("3  East dies")
        self._commands.check_copying()
        self._life.lose_east()
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
        self._life.await_copy(CAUGHT_UP)
        self._commands.run("sync", MIRROR, "--yes")
        self._life.at_work("east")

    def _fail_over(self) -> Bound:
        asked_ms = time.time_ns() // 1_000_000
        plan = self._commands.document("failover", "plan", MIRROR, "--mode", "unplanned")
        for line in in_short(plan):
            self._screen.say(line)
        bound = bound_of(plan["figures"], asked_ms)
        approved = ("--mode", "unplanned", "--plan-hash", plan["hash"], "--yes")
        run = self._commands.document("failover", "run", MIRROR, *approved)
        if run["state"] != "DONE":
            raise StoryFailed(f"{CONDUCTOR}: run {run['id']} is {run['state']}, not DONE")
        steps = [step["step"] for step in run["steps"]]
        self._screen.say(f"done in {(run['ended_ms'] - run['started_ms']) / 1000:.1f} s: {', '.join(steps)}")
        self._life.check_switch("west", CONDUCTOR)
        self._screen.say("step switch has told the applications to use west")
        return bound

    def _count(self, bound: Bound) -> StoryResult:
        acknowledged = self._life.stop_producer()
        log = list(read_log(self._stage.sandbox.cluster("west").client_config(ADMIN)))
        lost = covered(acknowledged, log, bound)
        wanted = {event.number for event in acknowledged} & {entry.number for entry in log}
        handled = self._life.stop_consumer(wanted)
        verdict = judge(
            # East is dead: what its producer wrote, and was told of each order's place, stands for its log.
            east=map(as_written, log),
            west=log,
            acknowledged=acknowledged,
            handled=handled,
            saved=lost,
            switched_by=[CONDUCTOR],
        )
        return StoryResult(verdict=verdict, lost=lost)


def in_short(plan: Mapping[str, Any]) -> list[str]:
    """What a person looks at before saying yes."""
    turning = next((step["name"] for step in plan["steps"] if not step["reversible"]), None)
    return [
        f"the plan, hash {plan['hash']}: {len(plan['steps'])} steps, no way back but a failback from {turning} on",
        f"the plan says it loses at least {plan['figures']['lost_offsets']['text']}, and what east took since it was"
        f" seen {plan['figures']['source_seen_s']['text']}",
        *(
            f"the plan says of group {group}: {figures['read_again_most']['text']} read again at most"
            for group, figures in plan["groups"].items()
            if "read_again_most" in figures
        ),
    ]
