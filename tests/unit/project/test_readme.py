"""What pages show of `make test` and `make demo`, against the Makefile and the demonstration; the README's picture."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from demo.conducting import WORDS
from demo.terminal_picture import LOG, PICTURE, draw
from mirror_core.decide.steps import list_standstill_steps, list_step_names
from mirror_core.model.run import RunKind, RunMode
from mirrorbook_tools.demo.loss_check import Verdict
from tests.gate.stages import GATE

ROOT = Path(__file__).parents[3]


def shown(source: str, name: str) -> list[str]:
    """The lines of a page between the marks that say whose output they are."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    _, _, rest = page.partition(f"<!-- output of {source}: begin -->\n```\n")
    inside, end, _ = rest.partition(f"\n```\n<!-- output of {source}: end -->")
    assert end, f"no marks of {source}"
    return inside.splitlines()


def test_make_test_begins_with_what_is_shown_and_runs_the_stages_that_are_shown() -> None:
    said = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first = next(line for line in said.splitlines() if "/ruff check" in line)
    lines = shown("make test", "developing.md")

    assert first in lines
    begun = [line.partition(" (")[0] for line in lines if " process(es) at a time" in line]
    beside = {stage.name: ", and one beside them" if stage.beside else "" for stage in GATE}
    assert begun == [f"{stage.name}: {stage.lanes} process(es) at a time{beside[stage.name]}" for stage in GATE]


def test_the_verdict_has_the_lines_that_are_shown() -> None:
    lines = shown("make demo", "try.md")
    begin = lines.index("verdict") + 1
    seconds = (
        ("east", "west", "mirror_failover_unplanned", 1.0),
        ("west", "east", "mirror_failback", 1.0),
        ("east", "west", "mirrorbook failover run", 1.0),
        ("west", "east", "mirrorbook failback run", 1.0),
    )
    counts = dict.fromkeys(("given_up", "lost", "skipped", "duplicated", "out_of_order", "shifted", "read_again"), 0)
    good = Verdict(acknowledged=1, consumed=1, seconds_without_writes=seconds, **counts).lines()

    of_numbers = [re.sub(r"(?<=: )[\d.]+$", "N", line) for line in lines[begin : lines.index("", begin)]]

    assert of_numbers == [re.sub(r"(?<=: )[\d.]+$", "N", line) for line in good]


def test_the_tasks_that_are_told_are_steps_in_this_order_and_the_page_shows_them() -> None:
    page = " ".join(" ".join(shown("make demo", "try.md")).split())
    for dag, kind, mode in (
        ("mirror_failover_unplanned", RunKind.FAILOVER, RunMode.UNPLANNED),
        ("mirror_failback", RunKind.FAILBACK, RunMode.PLANNED),
    ):
        still = list_standstill_steps(kind, mode) if kind is RunKind.FAILOVER else ()
        known = [*(["cut_over"] if still else []), *(step for step in list_step_names(kind, mode) if step not in still)]
        told = [task for task in WORDS[dag] if not task.startswith("home.")]

        assert len(told) > 2
        assert told == sorted(told, key=known.index), f"{dag}: {told}"
    for words in WORDS.values():
        assert not [line for task, line in words.items() if f"{line} ({task})" not in page]


def test_the_picture_is_drawn_from_the_recorded_run_and_loads_nothing() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert picture == draw(LOG.read_text(encoding="utf-8")), "python demo.terminal_picture.py draws it anew"
    assert set(re.findall(r"https?://[^\s\"')]+", picture)) == {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }


def test_the_readme_begins_with_five_lines_a_picture_and_two_commands() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    introduction, _, rest = page.partition("\n\n")[2].partition("\n\n![")
    assert len(introduction.splitlines()) <= 6
    assert rest.partition("](")[2].startswith("docs/images/demo.svg)")
    assert [line for line in page.splitlines() if line.startswith("$ ")] == ["$ make setup", "$ make demo"]
