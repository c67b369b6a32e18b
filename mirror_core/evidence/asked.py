"""Great Expectations: judges tables by suites, including user expectations from a file."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from mirror_core.decide.expected import UserExpectation, UserExpectations, parse_expectations
from mirror_core.evidence.expectations import create_expectation, evaluate_specimen, quiet_great_expectations
from mirror_core.evidence.suites import Expectation, Suite, TableExpectations, list_columns
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest

_RESERVED_ARGUMENTS: Final = frozenset(
    {"id", "meta", "notes", "description", "result_format", "catch_exceptions", "windows", "batch_id"}
)


def load_expectations(config: Config, *suites: Suite) -> UserExpectations:
    """Raises BadRequest with the file, the place in it, the error and what is valid."""
    if not isinstance(config.expectations, Path):
        user_expectations = parse_expectations(f"{config.path}: expectations", config.expectations)
    else:
        try:
            raw = yaml.safe_load(config.expectations.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{config.path}: expectations: {config.expectations} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line_text = f" line {mark.line + 1}" if mark else ""
            raise BadRequest(f"{config.expectations}{line_text}: not valid YAML") from None
        user_expectations = parse_expectations(str(config.expectations), raw)
    for suite in suites:
        own_expectations = user_expectations.expectations.get(suite.table_kind, ())
        for own_expectation in own_expectations:
            with quiet_great_expectations():
                _check_arguments(suite, own_expectation)
                _check_evaluation(suite, own_expectation)
    return user_expectations


def _check_evaluation(suite: Suite, own_expectation: UserExpectation) -> None:
    """Evaluate on a specimen table: finds bad conditions before any cluster is read."""
    try:
        errors = [
            result.error
            for result in evaluate_specimen(
                TableExpectations(
                    suite=suite, user_expectations=UserExpectations(expectations={suite.table_kind: (own_expectation,)})
                )
            )
        ]
    except Exception as error:  # noqa: BLE001 - unforeseen; report before reading clusters
        errors = [f"{type(error).__name__}: {error}"]
    if reason := next(filter(None, errors), ""):
        raise BadRequest(
            f"{own_expectation.location}: {own_expectation.type} cannot be evaluated on the table of {suite.table_kind}: {reason}"
        )


def _check_arguments(suite: Suite, own_expectation: UserExpectation) -> None:
    pydantic: Any = import_module("great_expectations.compatibility.pydantic")
    gx_exceptions: Any = import_module("great_expectations.exceptions")
    registry: Any = import_module("great_expectations.expectations.registry")
    column_names = [column.name for column in suite.columns]
    if reserved := own_expectation.kwargs.keys() & _RESERVED_ARGUMENTS:
        raise BadRequest(f"{own_expectation.location}.kwargs: {min(reserved)!r} cannot be given here; leave it out")
    try:
        create_expectation(Expectation(type=own_expectation.type, kwargs=own_expectation.kwargs))
    except gx_exceptions.ExpectationNotFoundError:
        similar = get_close_matches(own_expectation.type, registry.list_registered_expectation_implementations(), n=3)
        hint = f"do you mean {' or '.join(similar)}?" if similar else "see https://greatexpectations.io/expectations"
        raise BadRequest(
            f"{own_expectation.location}.type: Great Expectations knows no {own_expectation.type!r}; {hint}"
        ) from None
    except pydantic.ValidationError as error:
        faults_text = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise BadRequest(
            f"{own_expectation.location}.kwargs: {own_expectation.type} does not take them so: {faults_text}"
        ) from None
    if unknown_columns := [name for name in list_columns(own_expectation.kwargs) if name not in column_names]:
        raise BadRequest(
            f"{own_expectation.location}.kwargs: the table of {suite.table_kind} has no column {unknown_columns[0]!r}; it has {', '.join(column_names)}"
        )
