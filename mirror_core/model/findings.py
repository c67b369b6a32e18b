"""What a rule found, as data. `findings.toml` has the sentences."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Final

from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.text import (
    escape_invisible,
    format_age,
    format_bytes,
    format_count,
    format_shell_command,
    format_time,
    join_limited,
)

if TYPE_CHECKING:
    import jinja2

CATALOGUE_FILE: Final = "findings.toml"
ERROR_VALUE: Final = "reason"

MAX_LISTED: Final = 100
"""Findings are recorded in plans, also of mirrors of tens of thousands of partitions."""
_TOTAL_SUFFIX: Final = "_total"
_REMEDIES: Final = "remedies"
_PHRASES: Final = "phrases"

FindingValue = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, init=False)
class Finding:
    code: str
    """Stable."""
    subject: str
    """Mirror, cluster, topic, partition or group."""
    values: Mapping[str, FindingValue] = field(hash=False)

    def __init__(self, code: str, subject: object = "", /, **values: object) -> None:
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "subject", str(subject))
        plain_values = dict[str, FindingValue]()
        for name, value in values.items():
            plain_values[name] = plain = _to_plain_value(value)
            if isinstance(plain, tuple) and len(plain) > MAX_LISTED:
                plain_values |= {name: plain[:MAX_LISTED], f"{name}{_TOTAL_SUFFIX}": len(plain)}
        object.__setattr__(self, "values", plain_values)

    def __str__(self) -> str:
        return format_finding(self)

    @property
    def facts(self) -> dict[str, FindingValue]:
        """Values without an error's words, which differ from one try to the next."""
        return {name: value for name, value in self.values.items() if name != ERROR_VALUE}


def identify_trouble(trouble: Finding | Exception) -> tuple[str, ...]:
    """Equal for one trouble whose figures have changed, so that it is reported once.

    An operator's mistake counts by its text, which holds no moving figure: the next mistake is news.
    """
    if isinstance(trouble, Finding):
        return trouble.code, trouble.subject
    if getattr(trouble, "exit_code", None) == BadRequest.exit_code:
        return type(trouble).__name__, str(trouble)
    if isinstance(trouble, Refused):
        nested = (identify_trouble(finding) for finding in trouble.findings if isinstance(finding, Finding))
        return trouble.code, trouble.summary, *chain.from_iterable(nested)
    return getattr(trouble, "code", type(trouble).__name__), getattr(trouble, "subject", "")


def _to_plain_value(value: object) -> FindingValue:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str) and not hasattr(value, "_fields"):
        return tuple(str(item) for item in value)
    return str(value)


def format_finding(finding: Finding) -> str:
    """Code and values where the sentence cannot be rendered."""
    try:
        return render_finding(finding)
    except Exception:  # noqa: BLE001 - a sentence must not stop a failover
        values = (f"{name}={value}" for name, value in finding.values.items())
        return " ".join(filter(None, (finding.code, finding.subject, *values)))


def render_finding(finding: Finding) -> str:
    """KeyError: no such code. UndefinedError: a value is missing."""
    return _render(load_catalogue()[finding.code], finding)


def format_remedy(finding: Finding) -> str:
    """Empty where the sentence says it."""
    try:
        return _render(load_remedies().get(finding.code, ""), finding)
    except Exception:  # noqa: BLE001 - as above
        return ""


def _render(source: str, finding: Finding) -> str:
    values = {name: _restore_total(name, value, finding.values) for name, value in finding.values.items()}
    if isinstance(reason := values.get(ERROR_VALUE), str):
        values[ERROR_VALUE] = " ".join(reason.split("\n"))  # an error lists its reasons in lines
    sentence = compile_template(source).render({**values, "subject": finding.subject})
    return escape_invisible(sentence)  # of names that anybody chose none may look like lines of ours


class _FirstItems(tuple[str, ...]):
    total: int


def _restore_total(name: str, value: FindingValue, values: Mapping[str, FindingValue]) -> FindingValue:
    total = values.get(name + _TOTAL_SUFFIX)
    if not isinstance(value, list | tuple) or not isinstance(total, int):
        return value
    first_items = _FirstItems(value)
    first_items.total = total
    return first_items


@cache
def load_catalogue() -> dict[str, str]:
    """Template source by code."""
    groups = {name: sources for name, sources in _read_catalogue().items() if name not in (_REMEDIES, _PHRASES)}
    return {code: source for sources in groups.values() for code, source in sources.items()}


@cache
def load_remedies() -> dict[str, str]:
    """Template source by finding code, where the sentence does not say what to do."""
    return _read_catalogue()[_REMEDIES]


@cache
def _read_catalogue() -> dict[str, dict[str, str]]:
    content = tomllib.loads(files("mirror_core.model").joinpath(CATALOGUE_FILE).read_text(encoding="utf-8"))
    return {
        group: {code: " ".join(source.split()) for code, source in sources.items()}
        for group, sources in content.items()
    }


@cache
def compile_template(source: str) -> jinja2.Template:
    return create_environment().from_string(source)


@cache
def create_environment() -> jinja2.Environment:
    import jinja2  # most commands show no finding, and are done in the time that this import takes

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, loader=jinja2.DictLoader(_read_catalogue()[_PHRASES])
    )
    environment.filters.update(
        age=format_age,
        count=format_count,
        limited=_join_limited,
        no_acl_reason=format_no_acl_reason,
        phrase=lambda code: _read_catalogue()[_PHRASES][code],
        quoted=repr,
        size=format_bytes,
        time=format_time,
        shell=_format_argv,
    )
    return environment


def _join_limited(items: Iterable[str]) -> str:
    return join_limited(items, total=items.total if isinstance(items, _FirstItems) else None)


_NO_ACL_REASONS: Final[Mapping[str, str]] = {
    "kafka": "has no authorizer",
    "none": "gets no ACLs from Mirrorbook (`authorizer: none`)",
    "foreign": "has an authorizer that is not Kafka's",
}


def format_no_acl_reason(authorizer: str) -> str:
    """Follows the cluster's name. `authorizer`: as mirrorbook.yaml says."""
    return _NO_ACL_REASONS[authorizer]


def _format_argv(argv: Iterable[str]) -> str:
    return format_shell_command(*argv)
