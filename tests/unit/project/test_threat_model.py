"""The security model names the tests that try to break its promises; they are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs" / "explain" / "security.md").read_text(encoding="utf-8")
NAMES: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NAMED: Final = NAMES.findall(PAGE)


def test_every_test_that_the_threat_model_names_is_there() -> None:
    assert len(NAMED) > 20
    gone = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (ROOT / file).is_file() or f"def {name}" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert gone == []


def test_every_credential_has_its_worst_and_its_limit() -> None:
    table = PAGE.partition("### What a thief of one credential can do")[2].partition("###")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row[0].split(" (")[0].strip() for row in rows] == [
        "control principal", "data principal", "an application's", "Airflow user", "Airflow operator", "user of a host",
    ]  # fmt: skip
    assert all(len(row) == 3 for row in rows)


def test_three_attempts_beyond_each_credential_are_tests() -> None:
    listed = PAGE.partition("Tests try at least three things")[2].partition("###")[0]
    tried = {line.partition(":")[0].strip(): NAMES.findall(line) for line in listed.split("\n- ")[1:]}
    for credential in ("Airflow user", "Airflow operator", "user of a host"):
        assert len(tried[credential]) >= 3
