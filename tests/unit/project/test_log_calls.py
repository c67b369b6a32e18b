"""Every log call in the code: its fields are those of a line, and its words take as many values as it gives.

Most lines are written at a level that tests do not run at; a call that is wrong there would end whatever made it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.model.logs import LOG_FIELDS, get_logger

ROOT = Path(__file__).parents[3]
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
TAKEN = {*LOG_FIELDS, "exc_info"}
_PLACE = re.compile(r"%(?:%|[-#0 +]*[\d*]*(?:\.[\d*]+)?[sdrfgxeic])")


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """`_log.info(…)` and its like, whatever the logger's name."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name | ast.Attribute)
            and "log" in ast.unparse(node.func.value).lower()
        ):
            yield node


def wrong(call: ast.Call, fields: set[str]) -> list[str]:
    """What is wrong with a call, in words."""
    found = [f"field {one.arg}" for one in call.keywords if one.arg not in fields]
    words = call.args[0] if call.args else None
    if not (isinstance(words, ast.Constant) and isinstance(words.value, str)):
        return found if len(call.args) == 1 else [*found, "words that are no constant"]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return [*found, "values that cannot be counted"]
    places = sum(place != "%%" for place in _PLACE.findall(words.value))
    left = _PLACE.sub("", words.value)
    if len(call.args) > 1 and (places != len(call.args) - 1 or "%" in left):
        found.append(f"{places} places, {len(call.args) - 1} values")
    if len(call.args) == 1 and places:
        found.append(f"{places} places, no value")
    return found


def modules() -> list[Path]:
    packages = ("mirror_core", "mirrorbook_tools", "plugins", "dags", "demo")
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def test_every_log_call_gives_known_fields_and_as_many_values_as_its_words_have_places() -> None:
    seen, found = 0, list[str]()
    for path in modules():
        fields = TAKEN if path.is_relative_to(ROOT / "mirror_core") else {"exc_info"}
        for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            seen += 1
            found += [f"{path.relative_to(ROOT)}:{call.lineno}: {one}" for one in wrong(call, fields)]
    assert found == []
    assert seen > 60  # the loggers are found at all


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('_log.info("not committed: %s", word, grupp=group)', "field grupp"),
        ('_log.debug("%s of %d", word)', "2 places, 1 values"),
        ('self._log.debug("100 %% of %s")', "1 places, no value"),
        ("_log.info(words, word)", "words that are no constant"),
    ],
)
def test_a_wrong_call_is_found(source: str, what: str) -> None:
    (call,) = calls(ast.parse(source))
    assert wrong(call, TAKEN) == [what]


def test_a_field_that_no_line_has_is_refused_at_every_level() -> None:
    """So that whichever test runs the call finds it, though the level is not written."""
    log = get_logger("mirror_core.test")
    for method in (log.debug, log.info, log.warning, log.error):
        with pytest.raises(TypeError, match="no fields of a log line: grupp"):
            method("words", grupp="g")  # type: ignore[call-arg]
