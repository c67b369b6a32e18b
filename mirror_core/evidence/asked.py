"""Great Expectations: judges tables by suites, including user expectations from a file."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from mirror_core.decide.expected import Expected, Own, expected_of
from mirror_core.evidence.expectations import great_expectations, made, tried
from mirror_core.evidence.suites import Demands, Expect, Suite, columns_of
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest

_OURS: Final = frozenset(
    {"id", "meta", "notes", "description", "result_format", "catch_exceptions", "windows", "batch_id"}
)


def expected(config: Config, *suites: Suite) -> Expected:
    """Raises BadRequest with the file, the place in it, the error and what is valid."""
    if not isinstance(config.expectations, Path):
        found = expected_of(f"{config.path}: expectations", config.expectations)
    else:
        try:
            raw = yaml.safe_load(config.expectations.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{config.path}: expectations: {config.expectations} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" line {mark.line + 1}" if mark else ""
            raise BadRequest(f"{config.expectations}{where}: not valid YAML") from None
        found = expected_of(str(config.expectations), raw)
    for suite in suites:
        own = found.own.get(suite.judging, ())
        for one in own:
            with great_expectations():
                _check_words(suite, one)
                _check_meaning(suite, one)
    return found


def _check_meaning(suite: Suite, own: Own) -> None:
    """Evaluate on a specimen table: finds bad conditions before any cluster is read."""
    try:
        errors = [held.error for held in tried(Demands(suite=suite, more=Expected(own={suite.judging: (own,)})))]
    except Exception as error:  # noqa: BLE001 - unforeseen; report before reading clusters
        errors = [f"{type(error).__name__}: {error}"]
    if why := next(filter(None, errors), ""):
        raise BadRequest(f"{own.at}: {own.type} cannot be evaluated on the table of {suite.judging}: {why}")


def _check_words(suite: Suite, own: Own) -> None:
    pydantic: Any = import_module("great_expectations.compatibility.pydantic")
    faults: Any = import_module("great_expectations.exceptions")
    registry: Any = import_module("great_expectations.expectations.registry")
    known = [column.name for column in suite.columns]
    if odd := own.kwargs.keys() & _OURS:
        raise BadRequest(f"{own.at}.kwargs: {min(odd)!r} cannot be given here; leave it out")
    try:
        made(Expect(type=own.type, kwargs=own.kwargs))
    except faults.ExpectationNotFoundError:
        near = get_close_matches(own.type, registry.list_registered_expectation_implementations(), n=3)
        instead = f"do you mean {' or '.join(near)}?" if near else "see https://greatexpectations.io/expectations"
        raise BadRequest(f"{own.at}.type: Great Expectations knows no {own.type!r}; {instead}") from None
    except pydantic.ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise BadRequest(f"{own.at}.kwargs: {own.type} does not take them so: {said}") from None
    if strange := [name for name in columns_of(own.kwargs) if name not in known]:
        raise BadRequest(
            f"{own.at}.kwargs: the table of {suite.judging} has no column {strange[0]!r}; it has {', '.join(known)}"
        )
