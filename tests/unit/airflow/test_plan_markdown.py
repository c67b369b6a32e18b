"""A plan as an approval page shows it: everything that decides, nothing that breaks the table, not too much."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from markdown_it import MarkdownIt
from mirrorbook_airflow.markdown import MAX_PARTITIONS, PROVE_STEP, format_comparisons, format_plan

from mirror_core.decide.steps import list_step_names
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    FailbackStrategy,
    Plan,
    PlanFact,
    PlanStep,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    StepState,
)


def plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "kind": RunKind.FAILOVER,
        "mirror": MirrorName("orders"),
        "mode": RunMode.PLANNED,
        "steps": (
            PlanStep(name="fence", action="deny everybody to write"),
            PlanStep(name="promote", action="let applications write", reversible=False),
        ),
        "bound_facts": (PlanFact("mirror", "STARTED"),),
        "warnings": (Finding("west has no authorizer"),),
        "unknown": (Finding("source_facts_unknown", "east"),),
        "figures": {FigureKey.LAG_OFFSETS: 12},
        "partitions": {"orders-0": {FigureKey.LAG_OFFSETS: 12}},
        "groups": {"shop|eu": {FigureKey.READ_AGAIN_MOST: 3}},
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]  # a test's shorthand for some of the fields


def test_it_shows_hash_steps_warnings_unknowns_and_figures() -> None:
    text = format_plan(plan())

    assert f"**{plan().hash[:12]}**" in text
    assert "- west has no authorizer" in text
    assert "- everything on east" in text
    assert "| lag | 12 offsets |" in text
    assert "| orders-0 | lag: 12 offsets |" in text


def test_what_it_costs_stands_before_what_is_done_and_it_is_said_what_a_no_does() -> None:
    text = format_plan(plan())

    places = [text.index(words) for words in ("Rejecting it leaves", "**Warnings**", "| lag |", "| fence |")]
    assert places == sorted(places)


RUN = Run(
    id="orders-failover-1",
    number=1,
    plan_hash="p",
    plan=plan(forecast=PlanForecast(seconds=4.2, lost_offsets=None)),
    state=RunState.RUNNING,
    started_by="ann",
    conducted_by="ann",
    started_ms=1,
    desired=DesiredState.STARTED,
)
FOUND: dict[str, Any] = {
    "parity_verdict": "passed",
    "records": 12,
    "records_proved_before": 5_000_000,
    "partitions": 2,
    "report": "/a/worker's/path",
    "left_for_the_gate": "27 offsets, about 0.1 s",
}


def proved(evidence: Mapping[str, Any], run: Run = RUN, step: str = PROVE_STEP) -> str:
    record = StepRecord(run=run.id, step=step, state=StepState.DONE, attempt=1, started_ms=1, evidence=dict(evidence))
    return format_comparisons([(run, [record])], "/air/mirrorbook")


def test_who_is_asked_whether_applications_may_be_stopped_reads_what_was_proved_and_what_either_answer_does() -> None:
    text = proved(FOUND)

    assert "**Mirror `orders`**, compared while applications write: **passed**. 12 records of 2 partitions" in text
    page = "/air/mirrorbook/runs/orders-failover-1/files/prove/index.html"
    assert f" now, and 5000000 by earlier comparisons; [its report]({page})." in text
    assert "- Left to compare while they stand still: 27 offsets, about 0.1 s" in text
    assert r"- Seconds without writes, predicted: 4\.2 s" in text
    assert "**Reject** gives the run up" in text
    assert "worker" not in text
    assert PROVE_STEP in list_step_names(RunKind.FAILOVER)


def test_what_a_proof_does_not_say_is_unknown_or_left_out_and_has_no_link() -> None:
    assert "**unknown**. an unknown number of records now.\n" in proved({})
    assert "**nothing mirrored yet**. 0 records now.\n" in proved({"parity_verdict": "nothing_mirrored", "records": 0})
    assert "**unknown**" in proved(FOUND, step="fence"), "another step's evidence is no proof"


def test_who_is_asked_again_behind_the_fence_does_not_read_that_nobody_was_stopped() -> None:
    steps = [
        StepRecord(run=RUN.id, step=step, state=StepState.DONE, attempt=1, started_ms=1)
        for step in (PROVE_STEP, "fence")
    ]
    text = format_comparisons([(RUN, steps)], "")
    assert "**Applications are stopped already.**" in text
    assert "nobody has been stopped" not in text


def test_of_the_way_home_it_is_said_that_a_no_leaves_the_failback_open() -> None:
    assert "The failback that this is a part of stays open" in proved(FOUND, replace(RUN, failback_run="f"))
    assert "failback" not in proved(FOUND)


@pytest.mark.parametrize("name", ["[approve](https://evil.example)", "a\n\n**Reject** does nothing", "<b>x</b>"])
def test_a_proof_in_strange_words_becomes_nothing_but_text(name: str) -> None:
    reader = MarkdownIt("gfm-like", {"html": True})
    page = reader.render(proved(dict.fromkeys(FOUND, name)))
    assert page.count("<a ") == 1, "that of the report"
    assert page.count("<strong>Reject</strong>") == 1
    assert "<b>" not in page


def test_only_the_point_of_no_return_is_marked() -> None:
    lines = format_plan(plan()).splitlines()

    assert [line.split("|")[1].strip() for line in lines if "no way back" in line] == ["promote"]


def test_names_cannot_break_the_table() -> None:
    text = format_plan(plan())

    assert r"| shop\|eu | read again at most: 3 offsets |" in text


def test_a_plan_of_many_partitions_is_cut_and_says_so() -> None:
    partitions = {f"t-{index}": {FigureKey.LAG_OFFSETS: 0} for index in range(500)}

    text = format_plan(plan(partitions=partitions, warnings=tuple(Finding(f"w{n}") for n in range(40))))

    assert f"... and {500 - MAX_PARTITIONS} more" in text
    assert text.count("\n") < 110


def test_a_failback_shows_what_becomes_of_each_topic() -> None:
    text = format_plan(plan(kind=RunKind.FAILBACK, strategies={"orders": FailbackStrategy.RECREATE}))

    assert text.startswith("**Fail back mirror `orders`**")
    assert "| orders | recreate |" in text


HOSTILE = (
    "[approve](https://evil.example)",
    "![i](https://evil.example/x.png)",
    "see https://evil.example/|now`x",
    "WWW.evil.example",
    "mail me@evil.example",
    "<a href=x>a</a><script>alert(1)</script>",
    "&lt;b&gt; **bold** _it_ ~~no~~ `code`",
    "a | b \\| c",
    "\\[x](y)",
    "# a heading",
    "1. one",
    "- item",
    "two\n\n| lines |\n\x1b[2J",
    "pay\u202egnol",
)
TAG = re.compile(r"<(/?)([a-z0-9]+)[^>]*>")


def named(name: str) -> str:
    hooks = {FigureKey.OWNER: name, FigureKey.SWITCH_HOOKS: {name: name}}
    return format_plan(
        plan(warnings=(Finding(name),), unknown=(Finding("group", name),), figures=hooks, groups={name: hooks})
    )


def tags(page: str) -> list[str]:
    return [closing + tag for closing, tag in TAG.findall(page) if tag != "code"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_become_nothing_but_text(name: str) -> None:
    """As a reader of Markdown sees it that makes links of what looks like one, as Airflow's does."""
    reader = MarkdownIt("gfm-like", {"html": True})
    page = reader.render(named(name))
    assert tags(page) == tags(reader.render(named("harmless")))
    assert "\x1b" not in page
    assert "\u202e" not in page
    words = html.unescape(TAG.sub("", page))
    for part in re.findall(r"[a-z]{2,}", name):
        assert words.count(part) >= 6


@pytest.mark.parametrize("name", HOSTILE)
def test_what_looks_like_a_link_stands_in_code_only(name: str) -> None:
    """Airflow's reader looks for links in the text once more when all else is done: escapes don't stop it."""
    assert not re.search(r"://|www\.|@", re.sub(r"`[^`]*`", "", named(name)), re.IGNORECASE)
