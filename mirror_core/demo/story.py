"""The story: what is copied, what dies, what is moved, and what has become of every order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from mirror_core.demo.applications import lose_east
from mirror_core.demo.bound import Bound, as_written, bound_of, covered
from mirror_core.demo.commands import CommandFailed, Commands
from mirror_core.demo.ending import Told
from mirror_core.demo.logs import TOPIC, LogEnds, read_log
from mirror_core.demo.screen import Counters
from mirror_core.demo.stage import MIRROR, Stage
from mirror_core.demo.verdict import judge
from mirror_core.sandbox.credentials import ADMIN

LIVE: Final = 600
"""Orders that are acknowledged in an act before the next one: a few seconds of life."""
CAUGHT_UP: Final = 100
"""Orders, half a second of them: a live mirror is never nearer for long."""
CUT_OFF: Final = 100
"""Orders that east acknowledges while nothing gets through to west."""
POLL_S: Final = 0.2
WAIT_S: Final = 120.0
CONDUCTOR: Final = "mirrorbook failover run"


class Story:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._screen = stage.screen
        self._applications = stage.applications
        self._commands = Commands(stage.config, stage.said, stage.processes, stage.screen, self._tick)
        self._west: LogEnds | None = None
        """While the mirror copies."""
        self._behind: int | None = None
        self._playing = False

    def tell(self) -> Told:
        """All acts."""
        self._screen.act("1  Two clusters, and two applications on east")
        self._stage.set_up()
        self._applications.start()
        self._playing = True
        self._live("east")
        self._screen.act("2  Mirrorbook copies east to west")
        self._mirror()
        self._screen.act("3  East dies")
        self._disaster()
        self._screen.act("4  Fail over to west, without east")
        bound = self._fail_over()
        self._live("west")
        self._screen.act("5  Count every order")
        return self._count(bound)

    def _mirror(self) -> None:
        ends = ("--source", "east", "--destination", "west")
        self._commands.run("mirror", "create", MIRROR, *ends, "--topics", TOPIC, "--yes")
        self._commands.run("mirror", "start", MIRROR, "--yes")
        receipts = ("--receipts", str(self._stage.receipts))
        self._commands.copy("replicate", MIRROR, "--runner", "local", *receipts)
        self._west = LogEnds(self._stage.sandbox.cluster("west").client_config(ADMIN))
        self._until(lambda: self._behind is not None and self._behind < CAUGHT_UP, "west has what east has")
        self._screen.say(f"west is {self._behind} orders behind, live, and has the same offsets")
        self._commands.run("sync", MIRROR, "--yes")
        self._live("east")

    def _disaster(self) -> None:
        self._commands.check_copying()
        self._close_west()  # it answers nobody while it is cut off
        enough = self._applications.acknowledged.on("east") + CUT_OFF

        def while_cut_off() -> None:
            self._until(lambda: self._applications.acknowledged.on("east") >= enough, "east goes on without west")

        lose_east(self._stage.sandbox, while_cut_off)
        self._screen.say("east was killed while orders were written; the last ones had not got through to west")

    def _fail_over(self) -> Bound:
        asked_ms = time.time_ns() // 1_000_000
        plan = self._commands.document("failover", "plan", MIRROR, "--mode", "unplanned")
        for line in in_short(plan):
            self._screen.say(line)
        bound = bound_of(plan["figures"]["loss"], asked_ms)
        approved = ("--mode", "unplanned", "--plan-hash", plan["hash"], "--yes")
        run = self._commands.document("failover", "run", MIRROR, *approved)
        if run["state"] != "DONE":
            raise CommandFailed(f"{CONDUCTOR}: run {run['id']} is {run['state']}, not DONE")
        steps = [step["step"] for step in run["steps"]]
        self._screen.say(f"done in {(run['ended_ms'] - run['started_ms']) / 1000:.1f} s: {', '.join(steps)}")
        if (told := self._applications.discovery.primary()) != "west":
            raise CommandFailed(f"{CONDUCTOR} has not told the applications to use west: they use {told}")
        self._screen.say("step switch has told the applications to use west")
        return bound

    def _count(self, bound: Bound) -> Told:
        if code := self._applications.stop("producer"):
            raise CommandFailed(f"the producer could not learn what became of its last orders: exit code {code}")
        acknowledged = self._applications.acknowledged.look()
        log = list(read_log(self._stage.sandbox.cluster("west").client_config(ADMIN)))
        lost = covered(acknowledged, log, bound)
        wanted = {event.number for event in acknowledged} & {entry.number for entry in log}
        self._until(
            lambda: wanted <= self._applications.handled.numbers(), "the consumer has handled every order", fatal=False
        )
        self._applications.stop("consumer")
        self._playing = False
        self._screen.still()
        verdict = judge(
            # East is dead: what its producer wrote, and was told of each order's place, stands for its log.
            east=map(as_written, log),
            west=log,
            acknowledged=acknowledged,
            handled=self._applications.handled.look(),
            saved=lost,
            switched_by=[CONDUCTOR],
        )
        return Told(verdict=verdict, lost=lost)

    # -- while it is told ---------------------------------------------------------------------------------------

    def _live(self, cluster: str) -> None:
        """A few seconds of ordinary work there: orders acknowledged, and handled."""
        acked = self._applications.acknowledged.on(cluster)
        self._until(lambda: self._applications.acknowledged.on(cluster) >= acked + LIVE, f"orders go to {cluster}")
        last = max(self._applications.acknowledged.numbers())
        self._until(lambda: last in self._applications.handled.numbers(), "the consumer handles orders")
        self._screen.say(f"applications work on {cluster}: {len(self._applications.handled.numbers()):,} orders read")

    def _until(self, condition: Callable[[], bool], why: str, *, fatal: bool = True) -> None:
        """Wait. What is not fatal is left for the verdict to find."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                late = f"not within {WAIT_S:.0f} s: {why}; logs are in {self._stage.folder}"
                if fatal:
                    raise CommandFailed(late)
                self._screen.say(late)
                return
            self._tick()

    def _tick(self) -> None:
        """A moment of waiting: are all well, and how far are they?"""
        if self._playing:
            if name := self._applications.ended():
                raise CommandFailed(f"the {name} has ended by itself: see {self._applications.log(name)}")
            if self._west is not None:
                self._commands.check_copying()
            self._screen.counters(self._counted())
        time.sleep(POLL_S)

    def _counted(self) -> Counters:
        # In the order of a record's way backwards, so that none seems to be read before it is written.
        copied = self._copied()
        read = len(self._applications.handled.numbers())
        acknowledged = self._applications.acknowledged.look()
        self._behind = None if copied is None else max(0, len(acknowledged) - copied)
        last = max((event.ms for event in acknowledged if event.answered), default=None)
        return Counters(
            written=len(acknowledged),
            read=min(read, len(acknowledged)),
            behind=self._behind,
            silent_s=None if last is None else max(0.0, time.time() - last / 1000),
        )

    def _copied(self) -> int | None:
        """Orders that west holds; None when nothing is copied, or it does not answer."""
        try:
            return None if self._west is None else sum(self._west.look(timeout_s=1.0))
        except KafkaException:
            return None  # the counters say so; what matters is waited for

    def _close_west(self) -> None:
        if self._west is not None:
            self._west.close()
        self._west = self._behind = None


def in_short(plan: Mapping[str, Any]) -> list[str]:
    """What a person looks at before saying yes."""
    turning = next((step["name"] for step in plan["steps"] if not step["reversible"]), None)
    return [
        f"the plan, hash {plan['hash']}: {len(plan['steps'])} steps, no way back but a failback from {turning} on",
        f"the plan says it loses {plan['figures']['loss']}",
        *(f"the plan says of group {group}: {words}" for group, words in plan["groups"].items()),
    ]
