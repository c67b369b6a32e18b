"""Properties files as Java reads them; hostile ones end with a line number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import BadRequest
from mirrorbook_tools.mirrormaker.java_properties import MAX_FILE_BYTES, Property, parse_properties, read_properties


def parse(text: str) -> dict[str, str]:
    return {one.key: one.value for one in parse_properties(text, "file")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a b", {"a": "b"}),
        (" \t\fa : b ", {"a": "b "}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a\\ b\\=c\\:d = e", {"a b=c:d": "e"}),
        ("# a = b\n! c = d\n\n", {}),
        ("a = b # no comment", {"a": "b # no comment"}),
        ("a = b,\\\n   c", {"a": "b,c"}),
        ("a = b\\\n# no comment", {"a": "b# no comment"}),
        ("a = b\\\\\nc = d", {"a": "b\\", "c": "d"}),
        ("a = b\\\r\n  c\rd = e", {"a": "bc", "d": "e"}),
        ("a = b\\", {"a": "b"}),
        ('a = \\t\\n\\r\\f\\q\\"', {"a": '\t\n\r\fq"'}),
        ("na\\u00efve = \\ud83d\\ude00", {"naïve": "😀"}),
        ("east->west.topics = orders\\\\..*", {"east->west.topics": "orders\\..*"}),
        ("a = 1\na = 2", {"a": "2"}),
    ],
)
def test_a_property_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse(text) == expected


def test_a_continued_property_has_the_number_of_its_first_line() -> None:
    assert list(parse_properties("# c\n\na = b\\\n  c\nd=e", "file")) == [Property("a", "bc", 3), Property("d", "e", 5)]


@pytest.mark.parametrize("escape", ["\\u12", "\\uzzzz", "\\ud83d", "\\ude00 "])
def test_a_malformed_character_is_refused_with_its_line(escape: str) -> None:
    with pytest.raises(BadRequest, match=r"^file line 2: "):
        parse(f"a = b\nsecret = hunter2{escape}")


def test_no_refusal_shows_what_the_line_holds() -> None:
    with pytest.raises(BadRequest) as refused:
        parse("a = hunter2\\u12")
    assert "hunter2" not in str(refused.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = list(parse_properties(text, "file"))
    except BadRequest:
        return
    lines = [one.line for one in parsed]
    assert lines == sorted(set(lines))


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_what_is_escaped_comes_back(properties: dict[str, str]) -> None:
    def escape(text: str) -> str:
        units = text.encode("utf-16-be")
        return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))

    assert parse("\n".join(f"{escape(key)}={escape(value)}" for key, value in properties.items())) == properties


def test_a_file_that_is_no_properties_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    with pytest.raises(BadRequest):
        read_properties(path)
    path.write_bytes(b"a=b\nc=\0d")
    with pytest.raises(BadRequest, match="line 2: "):
        read_properties(path)
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(BadRequest):
        read_properties(path)
    with pytest.raises(BadRequest):
        read_properties(Path("/dev/zero"))


def test_a_file_is_latin_1_as_for_java(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_bytes("a=é".encode("latin-1"))
    assert read_properties(path) == (Property("a", "é", 1),)
