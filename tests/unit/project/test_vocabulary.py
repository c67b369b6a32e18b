"""Each rule of the vocabulary, seeded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import vocabulary
from tests.vocabulary import check_class_names, check_names, check_subjects, read_sources


@pytest.mark.parametrize(
    ("path", "source", "offence"),
    [
        ("mirror_core/kafka/lent.py", "", 'mirror_core/kafka/lent.py: a module is not named by "lent"'),
        ("a.py", "class Told: ...", 'a.py:1: Told is not named by "told"'),
        ("a.py", "class LastLook: ...", 'a.py:1: LastLook is not named by "look"'),
        ("a.py", "def in_words(): ...", 'a.py:1: in_words is not named by "words"'),
        ("a.py", "class A:\n    async def seen(self): ...", 'a.py:2: seen is not named by "seen"'),
        ("a.py", '"""Of the newest."""', 'a.py:1: a docstring does not begin with "Of"'),
        ("a.py", 'class A:\n    a: int\n    """None: unknown."""', 'a.py:3: a docstring does not begin with "None:"'),
    ],
)
def test_a_name_or_docstring_that_must_be_decoded_is_an_offence(path: str, source: str, offence: str) -> None:
    assert list(check_names(path, source)) == [offence]


@pytest.mark.parametrize("path", ["mirror_core/kafka/told.py", "plugins/mirrorbook_airflow/told.py", "dags/told.py"])
def test_the_core_the_plugins_and_the_dags_are_checked(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("", encoding="utf-8")
    offences = [offence for name, source in read_sources(tmp_path).items() for offence in check_names(name, source)]
    assert offences == [f'{path}: a module is not named by "told"']


@pytest.mark.parametrize(
    "source",
    [
        "def _told(): ...",
        "class Standby: ...",
        "def lookup(): ...",
        '"""Offsets of a partition."""',
        '"""Whole days."""',
        "told = 1",
    ],
)
def test_private_functions_and_longer_words_are_free(source: str) -> None:
    assert list(check_names("mirror_core/state/lease.py", source)) == []


def test_a_public_class_name_means_one_thing() -> None:
    twice = {"a.py": "class Lease: ...", "b.py": "class Lease: ...\nclass _Row: ...", "c.py": "class _Row: ..."}
    assert list(check_class_names(twice)) == ["class Lease is defined in a.py and b.py: a name means one thing"]


def test_commit_subjects_are_short_and_imperative() -> None:
    long, longer = "copy: " + "retry " * 12, "copy: " + "retry " * 13
    assert [
        offence.split(":")[0] for offence in check_subjects([long.strip(), longer.strip(), "Merge branch 'x'"])
    ] == [
        "commit subject of 83 characters, at most 72",
        "commit subject of 77 characters, at most 72",
    ]
    assert list(check_subjects(["copy: retry a denied partition every five minutes"])) == []
    assert list(check_subjects(["Retry"])) == ["commit subject without `room: `: Retry"]
    for text in ("the lease is renewed", "fixed the lease", "adding a lease", "a lease"):
        assert list(check_subjects([f"state: {text}"])) == [f"commit subject that is not imperative: state: {text}"]


def test_the_project_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert vocabulary.main() == 0, capsys.readouterr().err
