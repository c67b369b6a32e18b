"""Great Expectations judges the result table of a parity check, and publishes its Data Docs.

A second opinion by a tool that others know; it must agree with our own rule. Nothing leaves the machine: no analytics,
and the published pages load nothing from elsewhere.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mirror_core.model.errors import BadRequest

INDEX: Final = ["topic", "partition", "chunk"]
_FOREIGN: Final = re.compile(
    r"""<script\b[^>]*\bsrc=["'](?:https?:)?//[^>]*>\s*</script>
    | <(?:link|img|source|iframe)\b[^>]*\b(?:href|src|srcset)=["'](?:https?:)?//[^>]*>
    | \burl\(\s*["']?(?:https?:)?//[^)]*\)""",
    re.IGNORECASE | re.VERBOSE,
)
"""All that a browser would load from elsewhere: scripts, styles, pictures, and those that styles name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The answer of Great Expectations."""

    success: bool
    expectations: tuple[tuple[str, bool, str], ...]
    """(what was expected, whether it held, where it did not)."""
    docs: str
    """Path of the start page of the Data Docs; empty when none were asked for."""


def judge_table(table: pa.Table, docs: Path | None) -> Judged:
    """Equal counts and digests, no differences, no errors, at least one row and one record. Takes about 5 s to load."""
    # The variable must be there before the import, which already would report home.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the package; not ours to mend
        try:
            gx: Any = import_module("great_expectations")  # 5 s, and typed for its own callers only
            settings: Any = import_module("great_expectations.data_context.types.base")
        except ImportError:
            raise BadRequest("Great Expectations is not installed: install mirrorbook[spark]") from None
        context = gx.get_context(
            mode="ephemeral",
            project_config=settings.DataContextConfig(
                store_backend_defaults=settings.InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
                analytics_enabled=False,
                progress_bars={"globally": False},
            ),
        )
        asset = context.data_sources.add_pandas("mirrorbook").add_dataframe_asset("parity")
        suite = context.suites.add(gx.ExpectationSuite(name="parity", expectations=_expectations(gx.expectations)))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name="parity", data=asset.add_batch_definition_whole_dataframe("all"), suite=suite)
        )
        actions = []
        if docs is not None:
            context.add_data_docs_site("local", _site(docs))
            actions.append(gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=["local"]))
        checkpoint = gx.Checkpoint(
            name="parity",
            validation_definitions=[definition],
            actions=actions,
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": INDEX},
        )
        # A null in a pair would be left out of the comparison; -1 and "" are compared.
        frame = table.to_pandas()
        for column, filler in (("src_count", -1), ("dst_count", -1), ("src_digest", ""), ("dst_digest", "")):
            frame[column] = frame[column].fillna(filler)
        answer = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    if docs is not None:
        _cut_foreign_links(docs)
    held = tuple(_row(result) for run in answer.run_results.values() for result in run.results)
    return Judged(success=bool(answer.success), expectations=held, docs=str(docs / "index.html") if docs else "")


def _expectations(kinds: Any) -> list[Any]:
    return [
        kinds.ExpectTableRowCountToBeBetween(min_value=1),
        kinds.ExpectColumnSumToBeBetween(column="compared", min_value=1),
        kinds.ExpectColumnPairValuesToBeEqual(column_A="src_count", column_B="dst_count"),
        kinds.ExpectColumnPairValuesToBeEqual(column_A="src_digest", column_B="dst_digest"),
        kinds.ExpectColumnValuesToBeInSet(column="differing", value_set=[0]),
        kinds.ExpectColumnValuesToBeInSet(column="error", value_set=[""]),
    ]


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
    }


def _row(result: Any) -> tuple[str, bool, str]:
    config = result.expectation_config
    columns = [str(config.kwargs[name]) for name in ("column", "column_A", "column_B") if name in config.kwargs]
    where = (result.result or {}).get("unexpected_index_list") or []
    shown = "; ".join(f"{at['topic']}-{at['partition']} chunk {at['chunk']}" for at in where[:20])
    more = f"; and {len(where) - 20} more" if len(where) > 20 else ""
    return f"{config.type}({', '.join(columns)})", bool(result.success), shown + more


def _cut_foreign_links(folder: Path) -> None:
    """Scripts, styles and a logo come from seven hosts otherwise. Without them the pages are plain, and complete."""
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_FOREIGN.sub("", text), encoding="utf-8")
