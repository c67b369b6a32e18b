"""Facts of a mirror: a stable key, a typed value, and one table of labels and texts."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from mirror_core.mirrors import describe, mirror_facts
from mirror_core.mirrors.mirror_facts import FACT_LABELS, FactKey, FactValue, MirrorFact, make_fact

PAGE = Path(__file__).parents[3] / "plugins" / "mirrorbook_airflow" / "page"


def test_each_fact_has_one_key_one_label_and_is_described() -> None:
    assert set(FACT_LABELS) == set(FactKey)
    assert len(set(FACT_LABELS.values())) == len(FactKey)
    trees = [ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")) for module in (describe, mirror_facts)]
    functions = [one for tree in trees for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    made = {node.attr for one in functions for node in ast.walk(one) if isinstance(node, ast.Attribute)}
    assert {key.name for key in FactKey} <= made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        ((), "none"),
        (("a", "b"), "a; b"),
        (0, "0"),
        (1234, "1,234"),
        (1.5, "1.5"),
        ("STARTED", "STARTED"),
    ],
)
def test_a_value_without_words_of_its_own_is_said_in_one_way(value: FactValue, text: str) -> None:
    assert make_fact(value) == MirrorFact(value=value, text=text)
    assert msgspec.json.decode(msgspec.json.encode(make_fact(value)), type=MirrorFact) == make_fact(value)


def test_no_code_reads_a_fact_by_its_words() -> None:
    """By key and value only: a label is for people."""
    for path in (*PAGE.glob("*.py"), Path(describe.__file__)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "facts":
                assert not isinstance(node.slice, ast.Constant), (path.name, node.lineno)
