"""HTML templates. Jinja escapes HTML; control and bidirectional characters are escaped here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirror_core.model.figures import FIRST_STEP_TEXT
from mirror_core.model.findings import Finding
from mirror_core.model.text import escape_invisible_lines

if TYPE_CHECKING:
    import jinja2


def make_visible(value: object) -> object:
    return escape_invisible_lines(str(value)) if isinstance(value, str | Finding) else value


def load_template(template: str, **filters: Callable[..., object]) -> jinja2.Template:
    import jinja2  # a copying process starts sooner without it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mirror_core.evidence", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["first_step"] = FIRST_STEP_TEXT
    environment.filters.update(filters)
    return environment.get_template(template)
