"""Judges tables by suites with Great Expectations, without its analytics."""

from __future__ import annotations

import html
import logging
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import yaml

from mirror_core.decide.expectation_config import UserExpectation, UserExpectations, parse_expectations
from mirror_core.evidence.expectation_suites import TIER, Expectation, Suite, TableExpectations, list_columns
from mirror_core.evidence.html_templates import load_template
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName
from mirror_core.model.parity_verdict import ParityVerdict

MAX_LISTED_PLACES: Final = 20
_EXTERNAL_LINKS: Final = re.compile(
    r"""<script\b[^>]*\bsrc=["'](?:https?:)?//[^>]*>\s*</script>
    | <(?:link|img|source|iframe)\b[^>]*\b(?:href|src|srcset)=["'](?:https?:)?//[^>]*>
    | \burl\(\s*["']?(?:https?:)?//[^)]*\)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Everything a browser would load from elsewhere."""
_NUMBER_KEY: Final = "mirrorbook"
_DATA_SOURCE_NAME: Final = "mirrorbook"
_SITE_NAME: Final = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationResult:
    what: str
    by: str
    held: bool
    known: bool = True
    """False: nothing to judge, some values unknown, or evaluation failed."""
    where: str = ""
    error: str = ""

    def __str__(self) -> str:
        return f"{f'{self.by}: ' if self.by else ''}{self.what}: {self.where or 'does not hold'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJudgement:
    held: tuple[ExpectationResult, ...]
    docs: str = ""
    validation_page: str = ""
    """Relative to the folder of the Data Docs."""

    @property
    def success(self) -> bool:
        """By Mirrorbook's expectations."""
        return all(result.held for result in self.held if not result.by)

    @property
    def unmet(self) -> tuple[ExpectationResult, ...]:
        return tuple(result for result in self.held if result.by and not result.held)

    @property
    def verdict(self) -> ParityVerdict:
        return combine_verdicts(self.held)


def combine_verdicts(results: Iterable[ExpectationResult]) -> ParityVerdict:
    """FAILED if something known failed."""
    missed = [result for result in results if not result.held]
    if any(result.known for result in missed):
        return ParityVerdict.FAILED
    return ParityVerdict.INDETERMINATE if missed else ParityVerdict.PASSED


def judge_table(table: pa.Table, docs: Path | None, demands: TableExpectations) -> TableJudgement:
    """Takes about 5 s to load."""
    return judge_tables([(demands, table)], docs)[0]


def judge_tables(tables: Sequence[tuple[TableExpectations, pa.Table]], docs: Path | None) -> tuple[TableJudgement, ...]:
    with quiet_great_expectations():
        context = _create_context(docs)
        results = [
            _run_checkpoint(
                context, demands.suite, demands.list_expectations(), _to_frame(demands, table), publish=docs is not None
            )
            for demands, table in tables
        ]
    pages = {} if docs is None else _finish_docs(docs, [str(demands.suite.table_kind) for demands, _ in tables])
    return tuple(
        TableJudgement(
            held=table_results,
            docs=str(docs / _DOCS_INDEX) if docs else "",
            validation_page=pages.get(str(demands.suite.table_kind), ""),
        )
        for (demands, _), table_results in zip(tables, results, strict=True)
    )


def evaluate_specimen(demands: TableExpectations) -> tuple[ExpectationResult, ...]:
    suite = demands.suite
    rows = [{c.name: _SPECIMEN_VALUES[str(c.type)][n] for c in suite.columns if c.name != TIER} for n in range(3)]
    return judge_table(pa.Table.from_pylist(rows, schema=suite.schema), None, demands).held


_SPECIMEN_VALUES: Final[Mapping[str, Sequence[object]]] = {
    "string": ("a", "b", "c"),
    "bool": (False, True, False),
    "double": (1.0, 2.0, 3.0),
    **dict.fromkeys(("int8", "int32", "int64"), (1, 2, 3)),
}


@contextmanager
def quiet_great_expectations() -> Iterator[None]:
    """Without output and analytics. BadRequest if it is not installed."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before the import, which already reports
    logging.getLogger("great_expectations").setLevel(logging.WARNING)  # 300 lines otherwise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own deprecations
        try:
            import_module("great_expectations")
        except ImportError:
            raise BadRequest(
                "Great Expectations is not installed: install your Mirrorbook wheel with [spark]"
            ) from None
        yield


def create_expectation(expectation: Expectation, number: int = 0) -> Any:
    registry: Any = import_module("great_expectations.expectations.registry")
    description = {"description": expectation.by} if expectation.by else {}
    return registry.get_expectation_impl(expectation.type)(
        **expectation.kwargs, meta={_NUMBER_KEY: number}, **description
    )


def _create_context(docs: Path | None) -> Any:
    gx: Any = import_module("great_expectations")  # takes 5 s
    settings: Any = import_module("great_expectations.data_context.types.base")
    context = gx.get_context(
        mode="ephemeral",
        project_config=settings.DataContextConfig(
            store_backend_defaults=settings.InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            analytics_enabled=False,
            progress_bars={"globally": False},
        ),
    )
    context.data_sources.add_pandas(_DATA_SOURCE_NAME)
    if docs is not None:
        context.add_data_docs_site(_SITE_NAME, _site_config(docs))
    return context


def _run_checkpoint(
    context: Any, suite: Suite, expectations: Sequence[Expectation], frame: Any, *, publish: bool
) -> tuple[ExpectationResult, ...]:
    gx: Any = import_module("great_expectations")
    name = str(suite.table_kind)
    asset = context.data_sources.get(_DATA_SOURCE_NAME).add_dataframe_asset(name)
    definition = gx.ValidationDefinition(
        name=name,
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(
            gx.ExpectationSuite(
                name=name,
                expectations=[create_expectation(expectation, n) for n, expectation in enumerate(expectations)],
            )
        ),
    )
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[context.validation_definitions.add(definition)],
        actions=[gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=[_SITE_NAME])] if publish else [],
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": list(suite.index)},
    )
    checkpoint_result = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    results = {
        result.expectation_config.meta[_NUMBER_KEY]: result
        for run in checkpoint_result.run_results.values()
        for result in run.results
    }
    return tuple(_to_result(suite, expectation, results[number]) for number, expectation in enumerate(expectations))


def _to_frame(demands: TableExpectations, table: pa.Table) -> Any:
    frame = table.to_pandas()
    for column, filler in demands.suite.fills.items():
        frame[column] = frame[column].fillna(filler)
    frame[TIER] = [demands.user_expectations.find_tier(topic) for topic in frame["topic"]]
    for column in (c.name for c in demands.suite.columns if str(c.type) == "string" and c.name != TIER):
        frame[column] = [html.escape(text, quote=False) for text in frame[column]]
    return frame[[column.name for column in demands.suite.columns]]


def _site_config(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
    }


def _to_result(suite: Suite, expectation: Expectation, result: Any) -> ExpectationResult:
    condition = expectation.kwargs.get("row_condition")
    error = _find_error(result.exception_info)
    details = result.result or {}
    nothing_observed = "observed_value" in details and details["observed_value"] is None
    return ExpectationResult(
        what=f"{expectation.type}({', '.join(list_columns(expectation.kwargs))})"
        + (f" where {condition}" if condition else ""),
        by=expectation.by,
        held=bool(result.success),
        known=not (expectation.is_precondition or error or nothing_observed),
        where="" if result.success else error or _format_failures(suite, expectation, details),
        error=error,
    )


def _format_failures(suite: Suite, expectation: Expectation, result: Mapping[str, Any]) -> str:
    places = result.get("unexpected_index_list") or []
    if not places and "observed_value" in result:
        return f"found {result['observed_value']}"
    places_text = "; ".join(_format_place(suite, expectation, at) for at in places[:MAX_LISTED_PLACES])
    return places_text + (f"; and {len(places) - MAX_LISTED_PLACES} more" if len(places) > MAX_LISTED_PLACES else "")


def _format_place(suite: Suite, expectation: Expectation, index_values: Mapping[str, Any]) -> str:
    value = _to_readable(index_values.get(str(expectation.kwargs.get("column"))))
    return html.unescape(suite.place_format.format(**{**index_values, "value": value}))


def _to_readable(value: object) -> object:
    """Integer offsets become floats in a column with unknown values."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return "unknown"
    return "never" if math.isinf(value) else int(value) if value.is_integer() else round(value, 3)


def _find_error(info: Any) -> str:
    is_single = "raised_exception" in (info or {})
    errors = [info] if is_single else list((info or {}).values())
    return next((str(error["exception_message"]) for error in errors if error.get("exception_message")), "")


_DOCS_INDEX: Final = "index.html"


def _finish_docs(docs: Path, table_kinds: Sequence[str]) -> dict[str, str]:
    """Newest validations. Replaces their index, which shows nothing without scripts from elsewhere."""
    _remove_external_links(docs)
    paths_by_kind = {kind: sorted((docs / "validations" / kind).rglob("*.html")) for kind in table_kinds}
    pages = {kind: paths[-1].relative_to(docs).as_posix() for kind, paths in paths_by_kind.items() if paths}
    (docs / _DOCS_INDEX).write_text(load_template("data_docs.html.j2").render(pages=pages), encoding="utf-8")
    return pages


def _remove_external_links(folder: Path) -> None:
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_EXTERNAL_LINKS.sub("", text), encoding="utf-8")


_RESERVED_ARGUMENTS: Final = frozenset(
    {"id", "meta", "notes", "description", "result_format", "catch_exceptions", "windows", "batch_id"}
)


def load_expectations(config: Config, *suites: Suite) -> UserExpectations:
    """BadRequest has the file, the place in it, the error and what is valid."""
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


def load_table_expectations(config: Config, suite: Suite, mirror: str) -> TableExpectations:
    """With the user's of this mirror. Raises BadRequest as `load_expectations` does."""
    user_expectations = load_expectations(config, suite).for_mirror(MirrorName(mirror))
    return TableExpectations(suite=suite, user_expectations=user_expectations)


def _check_evaluation(suite: Suite, own_expectation: UserExpectation) -> None:
    """On a specimen table: finds bad conditions before any cluster is read."""
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
            f"{own_expectation.location}: {own_expectation.type} cannot be evaluated on the table of"
            f" {suite.table_kind}: {reason}"
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
            f"{own_expectation.location}.kwargs: the table of {suite.table_kind} has no column {unknown_columns[0]!r};"
            f" it has {', '.join(column_names)}"
        )
