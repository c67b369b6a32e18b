"""The documentation against the code: what is printed from a table equals it, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from mirror_core.cli.main import app
from mirror_core.copy.partition_states import format_transitions as copier_table
from mirror_core.decide.command_rules import format_commands_markdown as verbs_table
from mirror_core.decide.expectation_config import TIER_LIMITS, parse_expectations
from mirror_core.decide.failure_remedies import format_remedies_markdown as recovery_table
from mirror_core.decide.steps import RUN_STEPS
from mirror_core.decide.steps import format_steps_markdown as steps_table
from mirror_core.evidence.expectation_suites import SUITES, Suite
from mirror_core.evidence.expectation_suites import format_columns as columns_table
from mirror_core.evidence.table_schemas import TABLES, Table, format_table
from mirror_core.model.run import RunKind, RunMode
from mirror_core.rights.acl_rules import format_acl_command
from mirror_core.rights.required_acls import (
    REPLAY_ACLS,
    REQUIRED_ACLS,
    ClusterRole,
    format_requests_diagram,
    format_requests_table,
)
from mirror_core.spark.receipt_queries import QUERIES
from mirror_core.state.partition_transitions import format_markdown
from mirror_core.state.record_encoding import PIECE_KIND, SEGMENT_COUNTS
from tests.support.doc_pages import DOCS, ROOT, anchors, commands, links, printed, read_commands_pages

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
TABLE = "mirror_core/state/partition_transitions.py"
COPIER_TABLE = "mirror_core/copy/partition_states.py"


def test_states_page_shows_the_tables_of_the_code() -> None:
    assert printed(DOCS / "states.md", TABLE) == list(format_markdown())
    assert printed(DOCS / "states.md", COPIER_TABLE) == list(copier_table())


def test_on_call_page_shows_what_can_be_done_about_each_failure() -> None:
    page = DOCS / "operate" / "on-call" / "failed-partitions.md"
    assert printed(page, "mirror_core/decide/failure_remedies.py") == list(recovery_table())


@pytest.mark.parametrize(("kind", "mode"), RUN_STEPS)
def test_on_call_page_shows_the_steps_of_a_run(kind: RunKind, mode: RunMode) -> None:
    names = {(RunKind.FAILOVER, RunMode.UNPLANNED): "source-dead", (RunKind.FAILBACK, RunMode.PLANNED): "failback"}
    page = DOCS / "operate" / "on-call" / f"{names.get((kind, mode), 'failover')}.md"
    assert printed(page, f"mirror_core/decide/steps.py {kind} {mode}") == list(steps_table(kind, mode))


def test_commands_page_shows_what_each_verb_does_and_when() -> None:
    page = DOCS / "reference" / "commands-mirrors.md"
    assert printed(page, "mirror_core/decide/command_rules.py") == list(verbs_table())


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_expectations_page_shows_the_columns_of_each_table(suite: Suite) -> None:
    page = DOCS / "operate" / "expectations.md"
    assert printed(page, f"mirror_core/evidence/expectation_suites.py {suite.table_kind}") == list(columns_table(suite))


def test_page_of_tables_names_each_query() -> None:
    page = (DOCS / "operate" / "spark-tables.md").read_text(encoding="utf-8")
    assert [name for name in QUERIES if f"`, `{name}` |" not in page] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_page_of_tables_shows_the_columns_of_each(table: Table) -> None:
    page = DOCS / "operate" / "spark-tables.md"
    assert printed(page, f"mirror_core/evidence/table_schemas.py {table.name}") == list(format_table(table))


def test_the_file_that_the_expectations_page_shows_is_one() -> None:
    page = (DOCS / "operate" / "expectations.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = parse_expectations("page", yaml.safe_load(shown)["expectations"])
    assert found.tiers[0].limits.keys() == TIER_LIMITS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.relative_to(ROOT)}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(found), f"{page.relative_to(ROOT)}: {target}: there is no such heading"


@pytest.mark.parametrize("role", ClusterRole)
@pytest.mark.parametrize("principal", ["control", "data"])
def test_grants_to_paste_are_those_that_cluster_check_asks_for(role: ClusterRole, principal: str) -> None:
    wanted = [
        n.to_acl(f"User:mirror-{principal}") for n in REQUIRED_ACLS if n.role is role and n.principal == principal
    ]
    lines = printed(DOCS / "operate" / "access-rights.md", f"mirror_core/rights/required_acls.py {role} {principal}")
    assert [line for line in lines if line.startswith("kafka-acls.sh")] == [
        format_acl_command(acl).replace("BOOTSTRAP", "$BOOTSTRAP", 1) for acl in wanted
    ]


def test_requests_on_the_page_are_those_of_each_right() -> None:
    page, module = DOCS / "operate" / "access-rights.md", "mirror_core/rights/required_acls.py"
    assert printed(page, f"{module} requests") == list(format_requests_table())
    assert printed(page, f"{module} diagram") == ["```", *format_requests_diagram(), "```"]


def test_grants_of_a_replay_are_those_that_it_needs() -> None:
    page = DOCS / "operate" / "on-call" / "saved-records.md"
    lines = printed(page, "mirror_core/rights/required_acls.py replay")
    assert [line for line in lines if line.startswith("kafka-acls.sh")] == [
        format_acl_command(need.to_acl("User:mirror-replay")).replace("BOOTSTRAP", "$BOOTSTRAP", 1)
        for need in REPLAY_ACLS
    ]


def test_commands_pages_have_every_command_and_every_option_and_no_others() -> None:
    page = read_commands_pages()
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    known = {"--help", *(o for parameter in group.params for o in parameter.opts if o.startswith("--"))}
    for path, options in commands(group):
        assert re.search(rf"`{path}[ `]", page), f"no page of commands has {path}"
        known |= options
    assert set(re.findall(r"--[a-z][a-z-]+", page)) == known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_reached_from_the_readme_or_its_pages(page: Path) -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        current = waiting.pop()
        if current in seen or current.suffix != ".md" or not current.is_file():
            continue
        seen.add(current)
        waiting += [(current.parent / target.partition("#")[0]).resolve() for target in links(current)]
    assert page in seen, f"no page links to {page.relative_to(ROOT)}"


@pytest.mark.parametrize("name", ["architecture.md", "reference/state-topic.md"])
def test_paths_of_modules_on_the_architecture_pages_exist(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/])[a-z_]+(?:/[a-z_]+)*\.py(?!\w)", page))
    folders = (ROOT, ROOT / "mirror_core", ROOT / "mirror_core" / "runbook")
    assert named
    assert sorted(path for path in named if not any((folder / path).is_file() for folder in folders)) == []


def test_state_topic_page_has_the_key_of_each_record_and_no_other() -> None:
    page = (DOCS / "reference" / "state-topic.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([a-z_]+)((?:/<[a-z]+>)+)` \|", page, re.MULTILINE)
    assert {kind: names.count("/") for kind, names in shown if kind != PIECE_KIND} == SEGMENT_COUNTS
    assert PIECE_KIND in dict(shown)
    assert len(shown) == len(SEGMENT_COUNTS) + 1


def test_architecture_page_shows_every_room_and_no_other_folder() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "mirror_core").glob("*/__init__.py")}
    _, _, rest = page.partition("## Rooms")
    diagram, _, _ = rest.partition("Which line of code belongs where:")
    assert sorted(room for room in rooms if f"{room}/" not in diagram) == []
    named = re.findall(r"(?<![\w/])[a-z_]+(?:/[a-z_]+)*/(?![\w<])", page)
    assert (
        sorted({path for path in named if not any((ROOT / above / path).is_dir() for above in (".", "mirror_core"))})
        == []
    )


MAX_WORDS = 3_000
CASES = sorted((DOCS / "operate" / "on-call").glob("*.md"))
LEGENDS = ("the-plan.md",)
"""Pages that explain what is on a screen: nothing is decided by them."""


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_is_longer_than_people_read(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MAX_WORDS


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_reference_says_first_what_it_is_for(page: Path) -> None:
    title, purpose = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert title.startswith("# ")
    assert not purpose.startswith(("#", "|", "```", "- "))


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_a_case_on_call_says_what_one_sees_decides_does_and_checks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, purpose = text.split("\n\n")[:2]
    assert title.startswith("# ")
    assert not purpose.startswith(("#", "|", "**", "- "))
    parts = (
        r"\*\*Symptom\.\*\*",
        r"\*\*Decide\b",
        r"\*\*(?:D|d)o\b|^## Do it|\*\*do\*\*",
        r"\*\*Check\.\*\*|^## Check",
    )
    if page.name not in LEGENDS:
        found = [re.search(part, text, re.MULTILINE) for part in parts]
        assert all(found), page.name
