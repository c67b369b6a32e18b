"""Judges tables by Great Expectations, and publishes its Data Docs.

Nothing leaves the machine: no analytics, and pages load nothing external. Names chosen by others are escaped.
"""

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
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mirror_core.evidence.suites import TIER, Demands, Expect, Suite, columns_of
from mirror_core.model.errors import BadRequest
from mirror_core.model.parity import Verdict

SHOWN: Final = 20
_FOREIGN: Final = re.compile(
    r"""<script\b[^>]*\bsrc=["'](?:https?:)?//[^>]*>\s*</script>
    | <(?:link|img|source|iframe)\b[^>]*\b(?:href|src|srcset)=["'](?:https?:)?//[^>]*>
    | \burl\(\s*["']?(?:https?:)?//[^)]*\)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Everything a browser would load from elsewhere."""
_NUMBER: Final = "mirrorbook"
_SOURCE: Final = "mirrorbook"
_SITE: Final = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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
class Judged:
    held: tuple[Held, ...]
    docs: str = ""

    @property
    def success(self) -> bool:
        """By Mirrorbook's expectations."""
        return all(one.held for one in self.held if not one.by)

    @property
    def unmet(self) -> tuple[Held, ...]:
        return tuple(one for one in self.held if one.by and not one.held)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.held)


def verdict_of(held: Iterable[Held]) -> Verdict:
    """FAILED if something known failed. Unknown is never a pass."""
    missed = [one for one in held if not one.held]
    if any(one.known for one in missed):
        return Verdict.FAILED
    return Verdict.INDETERMINATE if missed else Verdict.PASSED


def judge_table(table: pa.Table, docs: Path | None, demands: Demands) -> Judged:
    """Takes about 5 s to load."""
    return judge_tables([(demands, table)], docs)[0]


def judge_tables(tables: Sequence[tuple[Demands, pa.Table]], docs: Path | None) -> tuple[Judged, ...]:
    with great_expectations():
        context = _context(docs)
        found = [
            _run(context, demands.suite, demands.expectations(), _frame(demands, table), publish=docs is not None)
            for demands, table in tables
        ]
    if docs is not None:
        _cut_foreign_links(docs)
    page = str(docs / "index.html") if docs else ""
    return tuple(Judged(held=held, docs=page) for held in found)


def tried(demands: Demands) -> tuple[Held, ...]:
    suite = demands.suite
    rows = [{c.name: _SPECIMEN[str(c.type)][n] for c in suite.columns if c.name != TIER} for n in range(3)]
    return judge_table(pa.Table.from_pylist(rows, schema=suite.schema), None, demands).held


_SPECIMEN: Final[Mapping[str, Sequence[object]]] = {
    "string": ("a", "b", "c"),
    "bool": (False, True, False),
    "double": (1.0, 2.0, 3.0),
    **dict.fromkeys(("int8", "int32", "int64"), (1, 2, 3)),
}


@contextmanager
def great_expectations() -> Iterator[None]:
    """Imported without output and analytics. Raises BadRequest if missing."""
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


def made(one: Expect, number: int = 0) -> Any:
    registry: Any = import_module("great_expectations.expectations.registry")
    told = {"description": one.by} if one.by else {}
    return registry.get_expectation_impl(one.type)(**one.kwargs, meta={_NUMBER: number}, **told)


def _context(docs: Path | None) -> Any:
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
    context.data_sources.add_pandas(_SOURCE)
    if docs is not None:
        context.add_data_docs_site(_SITE, _site(docs))
    return context


def _run(context: Any, suite: Suite, expectations: Sequence[Expect], frame: Any, *, publish: bool) -> tuple[Held, ...]:
    gx: Any = import_module("great_expectations")
    name = str(suite.judging)
    asset = context.data_sources.get(_SOURCE).add_dataframe_asset(name)
    definition = gx.ValidationDefinition(
        name=name,
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(
            gx.ExpectationSuite(name=name, expectations=[made(one, n) for n, one in enumerate(expectations)])
        ),
    )
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[context.validation_definitions.add(definition)],
        actions=[gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=[_SITE])] if publish else [],
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": list(suite.index)},
    )
    answer = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    results = {
        result.expectation_config.meta[_NUMBER]: result for run in answer.run_results.values() for result in run.results
    }
    return tuple(_held(suite, one, results[number]) for number, one in enumerate(expectations))


def _frame(demands: Demands, table: pa.Table) -> Any:
    frame = table.to_pandas()
    for column, filler in demands.suite.fills.items():
        frame[column] = frame[column].fillna(filler)
    frame[TIER] = [demands.more.tier_of(topic) for topic in frame["topic"]]
    for column in (c.name for c in demands.suite.columns if str(c.type) == "string" and c.name != TIER):
        frame[column] = [html.escape(text, quote=False) for text in frame[column]]
    return frame[[column.name for column in demands.suite.columns]]


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
    }


def _held(suite: Suite, one: Expect, result: Any) -> Held:
    condition = one.kwargs.get("row_condition")
    error = _error(result.exception_info)
    found = result.result or {}
    nothing = "observed_value" in found and found["observed_value"] is None
    return Held(
        what=f"{one.type}({', '.join(columns_of(one.kwargs))})" + (f" where {condition}" if condition else ""),
        by=one.by,
        held=bool(result.success),
        known=not (one.looks or error or nothing),
        where="" if result.success else error or _where(suite, one, found),
        error=error,
    )


def _where(suite: Suite, one: Expect, result: Mapping[str, Any]) -> str:
    places = result.get("unexpected_index_list") or []
    if not places and "observed_value" in result:
        return f"found {result['observed_value']}"
    shown = "; ".join(_place(suite, one, at) for at in places[:SHOWN])
    return shown + (f"; and {len(places) - SHOWN} more" if len(places) > SHOWN else "")


def _place(suite: Suite, one: Expect, at: Mapping[str, Any]) -> str:
    value = _said(at.get(str(one.kwargs.get("column"))))
    return html.unescape(suite.place.format(**{**at, "value": value}))


def _said(value: object) -> object:
    """Integer offsets become floats in a column with unknown values."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return "unknown"
    return "never" if math.isinf(value) else int(value) if value.is_integer() else round(value, 3)


def _error(info: Any) -> str:
    one = "raised_exception" in (info or {})
    errors = [info] if one else list((info or {}).values())
    return next((str(e["exception_message"]) for e in errors if e.get("exception_message")), "")


def _cut_foreign_links(folder: Path) -> None:
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_FOREIGN.sub("", text), encoding="utf-8")
