"""The security model names the tests that try to break its promises; they are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / "docs" / "explain"
PAGE: Final = (FOLDER / "security.md").read_text(encoding="utf-8")
RISKS: Final = (FOLDER / "accepted-risks.md").read_text(encoding="utf-8")
NAMES: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NAMED: Final = NAMES.findall(PAGE + RISKS)


def test_every_test_that_the_threat_model_names_is_there() -> None:
    assert len(NAMED) > 20
    gone = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (ROOT / file).is_file() or f"def {name}" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert gone == []


def list_credentials() -> list[list[str]]:
    table = PAGE.partition("### What a thief of one credential can do")[2].partition("\n#")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]


def test_every_credential_has_its_worst_and_its_limit() -> None:
    rows = list_credentials()
    assert [row[0].split(" (")[0].strip() for row in rows] == [
        "control principal", "data principal", "an application's", "Airflow user", "Airflow operator", "user of a host",
    ]  # fmt: skip
    assert all(len(row) == 3 for row in rows)


def test_each_promise_about_a_credential_names_the_tests_that_try_to_break_it() -> None:
    for name, _, limits in list_credentials():
        without = [promise for promise in limits.split("; ") if not NAMES.search(promise)]
        assert without == [], name
        assert all(test for _, test in NAMES.findall(limits)), f"{name}: a file alone is no test"
        assert len({*NAMES.findall(limits)}) >= 3, name
