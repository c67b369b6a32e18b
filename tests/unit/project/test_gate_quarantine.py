"""The quarantine of this project's own tests is in order, and each way to break its rules is found."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.gate.quarantine import MOST, problems

TESTS = Path(__file__).parents[2]
TODAY = date(2026, 3, 10)
GOOD = '@pytest.mark.flaky(since="2026-03-01", because="a JVM starts slowly", until="2026-03-14")\ndef test_a(): ...\n'


def test_of_this_project() -> None:
    files = {path.relative_to(TESTS.parent).as_posix(): path.read_text() for path in TESTS.rglob("test_*.py")}
    files.pop("tests/unit/project/test_gate_quarantine.py")
    assert len(files) > 100

    assert problems(files, date.today()) == []


def test_a_few_with_reason_and_date_are_fine() -> None:
    assert problems({"tests/cluster/test_x.py": GOOD * MOST}, TODAY) == []


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("test_x.py", GOOD * (MOST + 1), "9 tests are quarantined"),
        ("test_x.py", GOOD.replace("2026-03-14", "2026-03-09"), "expired on 2026-03-09"),
        ("test_x.py", GOOD.replace("2026-03-14", "2026-03-16"), "more than 14 days"),
        ("test_x.py", GOOD.replace("2026-03-14", "soon"), "Invalid isoformat"),
        ("test_x.py", GOOD.replace("a JVM starts slowly", " "), "needs because"),
        ("test_x.py", GOOD.replace('until="2026-03-14"', "until=LATER"), "needs until"),
        ("test_x.py", "@pytest.mark.flaky\ndef test_a(): ...\n", "needs since, because, until"),
        ("test_x.py", "pytestmark = [mark.flaky]\n", "needs since, because, until"),
        ("test_x.py", GOOD + "assert_same(pair, topics)\n", "exactness"),
        ("test_fence.py", GOOD, "fence"),
        ("tests/unit/test_x.py", GOOD, "without brokers"),
    ],
)
def test_what_breaks_the_rules_is_found(path: str, text: str, problem: str) -> None:
    (found,) = problems({path: text}, TODAY)
    assert problem in found
