"""From what is shown to HTML. Everything is escaped; nothing that would hide, or turn a line round, stays as it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import jinja2
from markupsafe import Markup, escape

from mirror_core.evidence.html_templates import make_visible
from mirror_core.model.text import format_count
from mirrorbook_airflow.page.number_format import format_number
from mirrorbook_airflow.page.prometheus_history import PLOT_HEIGHT, PLOT_WIDTH


def _make_visible(value: object) -> object:
    """What was rendered by a template of ours is markup, and stays it."""
    return value if isinstance(value, Markup) else make_visible(value)


def _format_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _format_code(text: str) -> Markup:
    """With the parts between backticks as code."""
    parts = (escape(make_visible(part)) for part in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


SHOWN_CARD_LINES: Final = 4
"""The rest is folded: nothing of a card is cut off."""
_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("mirrorbook_airflow.page", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_make_visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(when=_format_time, number=format_number, count=format_count, code=_format_code)
_ENVIRONMENT.globals.update(plot_width=PLOT_WIDTH, plot_height=PLOT_HEIGHT, card_lines=SHOWN_CARD_LINES)


def render(template: str, **values: object) -> str:
    """One of the templates of this package."""
    return _ENVIRONMENT.get_template(f"{template}.html.j2").render(**values)
