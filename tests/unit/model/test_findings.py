"""The catalogue of sentences: each code is used, each use has its values, and one file shows them all."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jinja2.meta
import msgspec
import pytest

from mirror_core.model.errors import BadRequest, LostOwnership, Refused, Unreachable
from mirror_core.model.findings import (
    Finding,
    FindingValue,
    create_environment,
    format_remedy,
    identify_trouble,
    load_catalogue,
    load_remedies,
    render_finding,
)
from mirror_core.model.names import Partition
from tests.unit.model.finding_examples import EXAMPLES, SUBJECT_EXAMPLES

ROOT: Final = Path(__file__).parents[3]
GOLDEN: Final = Path(__file__).with_name("findings_golden.txt")
WRITE_GOLDEN: Final = "MIRRORBOOK_WRITE_GOLDEN"
_PLACEHOLDER: Final = re.compile(r"{{ *\w+ *(?:\| *\w+ *)*}}")
_CONDITION: Final = re.compile(r"{%-? (?:el)?if (.+?) -?%}")


def find_uses() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Each `Finding("code", subject, name=value)` of the product: where, code, names of its values."""
    for folder in ("mirror_core", "mirrorbook_tools", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Finding(" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    code = node.args[0]
                    assert isinstance(code, ast.Constant), f"{where}: a code is a literal, so that it can be searched"
                    assert isinstance(code.value, str), where
                    assert all(keyword.arg for keyword in node.keywords), f"{where}: name each value"
                    yield where, code.value, frozenset(str(keyword.arg) for keyword in node.keywords)


USES: Final = tuple(find_uses())


def expand_source(code: str) -> str:
    environment, source = create_environment(), load_catalogue()[code]
    included = jinja2.meta.find_referenced_templates(environment.parse(source))
    assert environment.loader is not None
    return source + "".join(environment.loader.get_source(environment, str(name))[0] for name in included)


def find_variables(code: str) -> frozenset[str]:
    syntax_tree = create_environment().parse(expand_source(code) + load_remedies().get(code, ""))
    return frozenset(jinja2.meta.find_undeclared_variables(syntax_tree)) - {"subject"}


def build_example(code: str, **changes: object) -> Finding:
    own = SUBJECT_EXAMPLES.get(code, "orders")
    return Finding(code, own, **{name: EXAMPLES[name] for name in find_variables(code)} | changes)


def list_sentences(code: str) -> list[str]:
    """With all values; and with none of those that a sentence can do without."""
    conditions = {name for found in _CONDITION.findall(expand_source(code)) for name in re.findall(r"\w+", found)}
    optional = {name: type(EXAMPLES[name])() for name in conditions & find_variables(code)}
    examples = [build_example(code, **changes) for changes in ({}, optional)]
    remedies = [f"remedy: {remedy}" for remedy in map(format_remedy, examples) if remedy]
    return list(dict.fromkeys([*map(render_finding, examples), *remedies]))


def test_each_code_of_the_catalogue_is_used_and_each_used_one_is_there() -> None:
    assert {code for _, code, _ in USES} == load_catalogue().keys()
    assert load_remedies().keys() <= load_catalogue().keys()
    assert all(format_remedy(build_example(code)) for code in load_remedies())


@pytest.mark.parametrize(("where", "code", "names"), USES, ids=[f"{code} {where}" for where, code, _ in USES])
def test_a_rule_gives_each_value_that_its_sentence_needs(where: str, code: str, names: frozenset[str]) -> None:
    assert find_variables(code) <= names, where


def test_the_catalogues_sentences_are_those_of_the_golden_file() -> None:
    """The one place where a copy editor sees what he changed."""
    lines = [f"{code}:\n" + "".join(f"  {text}\n" for text in list_sentences(code)) for code in load_catalogue()]
    if os.environ.get(WRITE_GOLDEN):
        GOLDEN.write_text("".join(lines), encoding="utf-8")
    assert "".join(lines) == GOLDEN.read_text(encoding="utf-8"), f"{WRITE_GOLDEN}=1 writes it"


def test_a_message_keeps_the_first_items_of_a_long_list_and_their_number() -> None:
    finding = Finding("source_partitions_offline", "east", partitions=[Partition("a", n) for n in range(50_000)])
    assert len(msgspec.json.encode(finding)) < 2_000
    assert finding.values["partitions_total"] == 50_000
    read_again = msgspec.json.decode(msgspec.json.encode(finding.values), type=dict[str, FindingValue])
    for same in (finding, Finding(finding.code, finding.subject, **read_again)):
        assert "a-9 and 49990 more on east" in str(same)


def test_a_sentence_has_no_doubled_blank_and_no_open_bracket() -> None:
    for code in load_catalogue():
        for text in list_sentences(code):
            assert text == " ".join(text.split()), code
            assert all(text.count(left) == text.count(right) for left, right in ("()", "[]", "{}")), code
            assert text.count("`") % 2 == 0, code


def test_a_value_is_plain_and_survives_json() -> None:
    finding = Finding(
        "any", Partition("a", 0), count=3, seconds=0.5, partitions=[Partition("a", 1)], reason=None, yes=True
    )
    assert finding.subject == "a-0"
    assert finding.values == {"count": 3, "seconds": 0.5, "partitions": ("a-1",), "reason": None, "yes": True}
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
    assert len({finding, Finding("any", "a-0")}) == 2


def test_a_message_without_a_sentence_still_says_what_it_knows() -> None:
    """One that another version wrote, or a value that is missing, must not stop a failover."""
    assert str(Finding("from_the_future", "orders", offsets=3)) == "from_the_future orders offsets=3"
    code = next(code for code in load_catalogue() if find_variables(code))
    assert str(Finding(code, "orders")) == f"{code} orders"
    with pytest.raises(jinja2.UndefinedError):
        render_finding(Finding(code, "orders"))


def test_each_sentence_has_words_of_its_own() -> None:
    """One that shows a value and nothing else would be a sentence that travels as a value."""
    assert not [
        code for code, source in load_catalogue().items() if not re.search(r"[A-Za-z]{3}", _PLACEHOLDER.sub("", source))
    ]


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (Finding("fence_bypassed", "east", partitions=["a-0"]), Finding("fence_bypassed", "east", partitions=[]), True),
        (Finding("fence_bypassed", "east", partitions=[]), Finding("fence_bypassed", "west", partitions=[]), False),
        (Finding("fence_bypassed", "east", partitions=[]), Finding("fence_pending", "east", since_ms=1), False),
        (Unreachable("no answer for 3 s"), Unreachable("no answer for 33 s"), True),
        (Unreachable("no answer"), LostOwnership("no answer"), False),
        (Unreachable("no answer", subject="east"), Unreachable("no answer", subject="west"), False),
        (Refused("a: sync", []), Refused("b: sync", []), False),
        (BadRequest("no key a"), BadRequest("no key b"), False),
        (Refused("m", ["3 s"], "late"), Refused("m", ["4 s"], "late"), True),
        (Refused("m", [Finding("mirror_deleted", "a")]), Refused("m", [Finding("mirror_deleted", "b")]), False),
    ],
)
def test_a_trouble_is_the_same_however_its_figures_change(
    first: Finding | Exception, second: Finding | Exception, is_same: bool
) -> None:
    assert (identify_trouble(first) == identify_trouble(second)) is is_same


def test_names_in_a_command_are_quoted_for_the_shell() -> None:
    template = create_environment().from_string("{{ ['mirrorbook', 'guard', name] | shell }}")
    assert template.render(name="a b; rm") == "mirrorbook guard 'a b; rm'"
