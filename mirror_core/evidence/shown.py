"""How values of a report are shown: HTML's own characters are the template engine's to escape, the others ours."""

from __future__ import annotations

from collections.abc import Callable

import jinja2

from mirror_core.model.text import visible_lines


def shown(value: object) -> object:
    """For Jinja's `finalize`: text without characters that could turn the line round or hide."""
    return visible_lines(value) if isinstance(value, str) else value


def html(template: str, **filters: Callable[..., object]) -> jinja2.Template:
    """A page's template: whatever is put into it is text, and what is missing an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mirror_core.evidence", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template)
