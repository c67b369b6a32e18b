"""How values of a report are shown: HTML's own characters are the template engine's to escape, the others ours."""

from __future__ import annotations

from mirror_core.model.text import visible_lines


def shown(value: object) -> object:
    """For Jinja's `finalize`: text without characters that could turn the line round or hide."""
    return visible_lines(value) if isinstance(value, str) else value
