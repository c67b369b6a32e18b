"""Text of others, as a person is shown it: nothing moves the cursor, hides, or turns the line round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import Refused
from mirror_core.model.text import escape_invisible, escape_invisible_lines, format_items, indent_further_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shop-eu", "shop-eu"),
        ("épicerie 日本 🙂", "épicerie 日本 🙂"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("two\nlines\tand\ra half", r"two\nlines\tand\ra half"),
        ("abc\u202etxt.exe", r"abc\u202etxt.exe"),
        ("pay\u200bpal", r"pay\u200bpal"),
        ("no\u00a0break", r"no\xa0break"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("[red]a[/b]", "[red]a[/b]"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown


@given(st.text(alphabet=st.characters()))
def test_everything_that_is_shown_can_be_seen_and_encoded(text: str) -> None:
    assert escape_invisible(text).isprintable()
    escape_invisible(text).encode()
    assert escape_invisible_lines(text).count("\n") == text.count("\n")


def test_a_message_of_ours_keeps_its_lines() -> None:
    assert escape_invisible_lines("refused:\n  - group a\x1b[2J") == "refused:\n  - group a\\x1b[2J"


def test_no_name_with_a_line_break_looks_like_an_item_of_a_list_or_a_line_of_ours() -> None:
    forged = "g\n  - nothing is lost\nhash: forged\x1b[2J"
    assert format_items(["a", forged]) == ("\n  - a\n  - g\n      - nothing is lost\n    hash: forged\\x1b[2J")
    assert str(Refused("mirror m", [forged], "forged")).splitlines() == [
        "mirror m:",
        "  - g",
        "      - nothing is lost",
        "    hash: forged\\x1b[2J",
    ]
    nested = Refused("set s", [Refused("mirror m", ["topic t is missing"], "missing")], "member")
    assert str(nested) == "set s:\n  - mirror m:\n      - topic t is missing"
    assert indent_further_lines("run: r\nhash: forged\n\n  - as it was") == "run: r\n  hash: forged\n\n  - as it was"
