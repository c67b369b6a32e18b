"""Deploy files, shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mirror_core.cli.lazy_group import list_lazy_commands, load_command

ROOT: Final = Path(__file__).parents[2]

DOCKERFILE: Final = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters that a command line of ours comes to; what is wrong with it is raised."""
    name, *arguments = words
    found: dict[str, Any] = load_command(name, list_lazy_commands()[name]).make_context(name, arguments).params
    return found
