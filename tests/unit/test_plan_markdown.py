"""A plan as an approval page shows it: everything that decides, nothing that breaks the table, not too much."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt
from mirrorbook_airflow.markdown import MAX_PARTITIONS, plan_markdown

from mirror_core.model.names import MirrorName
from mirror_core.model.run import Fact, Mode, Plan, PlanStep, RunKind, Strategy


def plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "kind": RunKind.FAILOVER,
        "mirror": MirrorName("orders"),
        "mode": Mode.PLANNED,
        "steps": (
            PlanStep(name="fence", action="deny everybody to write"),
            PlanStep(name="promote", action="let applications write", reversible=False),
        ),
        "bound": (Fact("mirror", "STARTED"),),
        "warnings": ("west has no authorizer",),
        "unknown": ("everything on east",),
        "figures": {
            "lag in offsets": "12",
        },
        "partitions": {"orders-0": "MIRRORING, lag 12"},
        "groups": {"shop|eu": "3 record(s) read again"},
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]  # a test's shorthand for some of the fields


def test_it_shows_hash_steps_warnings_unknowns_and_figures() -> None:
    text = plan_markdown(plan())

    assert f"**{plan().hash}**" in text
    assert "- west has no authorizer" in text
    assert "- everything on east" in text
    assert "| lag in offsets | 12 |" in text
    assert "| orders-0 | MIRRORING, lag 12 |" in text


def test_only_the_point_of_no_return_is_marked() -> None:
    lines = plan_markdown(plan()).splitlines()

    assert [line.split("|")[1].strip() for line in lines if "no way back" in line] == ["promote"]


def test_names_cannot_break_the_table() -> None:
    text = plan_markdown(plan())

    assert r"| shop\|eu | 3 record(s) read again |" in text


def test_a_plan_of_many_partitions_is_cut_and_says_so() -> None:
    partitions = {f"t-{index}": "MIRRORING, lag 0" for index in range(500)}

    text = plan_markdown(plan(partitions=partitions, warnings=tuple(f"w{n}" for n in range(40))))

    assert f"... and {500 - MAX_PARTITIONS} more" in text
    assert text.count("\n") < 110


def test_a_failback_shows_what_becomes_of_each_topic() -> None:
    text = plan_markdown(plan(kind=RunKind.FAILBACK, strategies={"orders": Strategy.RECREATE}))

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
    return plan_markdown(plan(warnings=(name,), unknown=(f"group {name}",), figures={name: name}, groups={name: name}))


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
