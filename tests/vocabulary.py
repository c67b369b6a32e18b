"""Checks the words of names, docstrings and commit subjects. Part of `make check`.

`docs/developing.md` says what the rules are for. A name may hold no word of `BANNED`: such a word says nothing without
its docstring. A class name means one thing. Commits are checked from the one on that added this file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CHECKED_FOLDERS: Final = ("mirror_core", "mirrorbook_tools", "plugins", "dags")
BANNED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        aside asked asking beside calm debt debts elsewhere found heart homecoming insisting kept lanes lent lively look
        looked lookout looks meanwhile mine one owe owed paid patiently pulse said seen slip slipped some someone
        standing thirds told what who whom word words
        """,
    )
)
DEFENDED_CLASSES: Final[Mapping[str, str]] = {
    "Counters": "Prometheus' counters; the demonstration's counts on the screen",
}
BANNED_OPENINGS: Final = re.compile(r"(Of|The same|Who|Whoever|Whom|Nobody|Somebody|None:)(?=\W)")
MAX_SUBJECT_LENGTH: Final = 72
SUBJECT: Final = re.compile(r"[a-z][a-z0-9 ,/_-]*: (?P<text>\S.*)")
NOT_IMPERATIVE: Final = re.compile(r"(?:an?|the|no|there|what|who|it|its)\b|\w+(?:ed|ing)\b", re.IGNORECASE)


def check_names(path: str, source: str) -> Iterator[str]:
    """Offences in the names of a module, its classes and its public functions, and in its docstrings."""
    stem = Path(path).stem
    if banned := BANNED.intersection(stem.split("_")):
        yield f"{path}: a module is not named by {_list(banned)}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", node.name)
            yield from _check_words(path, node, words)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield from _check_words(path, node, node.name.split("_"))
        for text, line in _list_docstrings(node):
            if opening := BANNED_OPENINGS.match(text):
                yield f'{path}:{line}: a docstring does not begin with "{opening[0]}"'


def _check_words(
    path: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, words: Iterable[str]
) -> Iterator[str]:
    if banned := BANNED.intersection(word.lower() for word in words):
        yield f"{path}:{node.lineno}: {node.name} is not named by {_list(banned)}"


def check_class_names(sources: Mapping[str, str]) -> Iterator[str]:
    """Public classes that share a name."""
    paths = defaultdict[str, list[str]](list)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths[node.name].append(path)
    for name, defined_in in paths.items():
        if len(defined_in) > 1 and name not in DEFENDED_CLASSES:
            yield f"class {name} is defined in {' and '.join(defined_in)}: a name means one thing"


def check_subjects(subjects: Iterable[str]) -> Iterator[str]:
    """Subjects that are too long, longest first; then those that are not `room: verb ...`."""
    checked = [subject for subject in subjects if not subject.startswith("Merge ")]
    for subject in sorted(checked, key=len, reverse=True):
        if len(subject) > MAX_SUBJECT_LENGTH:
            yield f"commit subject of {len(subject)} characters, at most {MAX_SUBJECT_LENGTH}: {subject}"
    for subject in checked:
        match = SUBJECT.fullmatch(subject)
        if match is None:
            yield f"commit subject without `room: `: {subject}"
        elif NOT_IMPERATIVE.match(match["text"]):
            yield f"commit subject that is not imperative: {subject}"


def _list_docstrings(node: ast.AST) -> Iterator[tuple[str, int]]:
    body = getattr(node, "body", ())
    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, ast.Expr) and isinstance(value := statement.value, ast.Constant):
            yield str(value.value).lstrip(), statement.lineno


def _list(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in sorted(words))


def _read_subjects() -> list[str]:
    """Since this file was added; none where the history is not here, as in an archive."""
    git = ("git", "-C", str(ROOT), "log")
    added = subprocess.run(
        [*git, "--diff-filter=A", "--format=%H", "-1", "--", "tests/vocabulary.py"], capture_output=True, text=True
    ).stdout.strip()
    if not added:
        return []
    return subprocess.run(
        [*git, "--format=%s", f"{added}..HEAD"], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def read_sources(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for folder in CHECKED_FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    }


def main() -> int:
    sources = read_sources(ROOT)
    offences = [offence for path, source in sources.items() for offence in check_names(path, source)]
    offences += [*check_class_names(sources), *check_subjects(_read_subjects())]
    for offence in offences:
        print(offence, file=sys.stderr)
    return bool(offences)


if __name__ == "__main__":
    sys.exit(main())
