"""The demonstration from its first line to its exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from mirror_core.java import find_java_home
from mirror_core.model.errors import MirrorError
from mirror_core.model.json_documents import format_json
from mirrorbook_tools.demo.environment import Stage
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.scenario import Story
from mirrorbook_tools.demo.summary import StoryResult, next_steps, to_demo_document, verdict_lines
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.demo.workload import StoryFailed

INTERRUPTED: Final = 130
ABOUT: Final = (
    "Two Kafka clusters on this machine, east and west. One application writes numbered orders, 200 a second; another "
    "one reads them. Mirrorbook copies east to west. Then east is killed under load, the applications are moved to "
    "west, and every order is counted. It takes about a minute, and some more the first time, while Kafka is "
    "downloaded (55 MB). Ctrl-C stops everything."
)


def play(folder: Path, *, keep: bool, as_json: bool = False) -> int:
    """Tell it; the exit code: 0 exact, 1 not, 4 nothing to judge, 130 interrupted."""
    find_java_home()  # before anything is made: BadRequest says what to install
    with Interrupts() as interrupts, Screen(sys.stderr if as_json else sys.stdout) as screen:
        stage = Stage(folder, screen, interrupts, keep=keep)
        screen.paragraph(ABOUT)
        screen.paragraph(f"Each command below is typed with --config {stage.config}")
        try:
            return _tell(stage, screen, keep=keep, as_json=as_json)
        except KeyboardInterrupt:
            screen.say("interrupted: all that the demonstration had started is stopped")
            return INTERRUPTED


def _tell(stage: Stage, screen: Screen, *, keep: bool, as_json: bool) -> int:
    with stage:
        told = _told(stage)
        screen.act("Verdict")
        for line in verdict_lines(told):
            screen.paragraph(line)
        screen.paragraph("")
    screen.act("Where to go next")
    for line in next_steps(stage.folder, stage.config, stage.sandbox.dir, stage.stop_command(), kept=keep):
        screen.command(line.removeprefix("$ ")) if line.startswith("$ ") else screen.paragraph(line)
    if as_json:
        print(format_json(to_demo_document(told)))
    return told.verdict.exit_code


def _told(stage: Stage) -> StoryResult:
    try:
        return Story(stage).tell()
    except (KafkaException, TimeoutError) as error:
        raise StoryFailed(f"a cluster of the demonstration failed: {error}; logs are in {stage.folder}") from error
    except MirrorError as error:
        error.add_note(f"logs are in {stage.folder}")
        raise
