"""Alert rules and dashboard against the table of metrics: every expression parses, every name and link is real.

Whether alerts fire is for `promtool test rules`, in `make check`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from mirror_core.dataplane.metric_names import METRICS, format_metrics_table
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.dataplane.prometheus_collector import MetricsCollector
from mirror_core.decide.failover_readiness import MAX_AGES_S, FreshnessKind
from mirror_core.mirrors.fence_metrics import FENCE_METRICS as OF_THE_FENCE
from mirror_core.mirrors.readiness_metrics import READINESS_METRICS as OF_READINESS
from mirror_core.model.names import Partition
from tests.support.doc_pages import DOCS, ROOT, anchors, printed
from tests.support.metric_reports import MIRROR, counters, report, status

ALERTS = ROOT / "monitoring" / "alerts.yaml"
ALERT_TESTS = sorted((ROOT / "monitoring").glob("alerts_*test.yaml"))
DASHBOARD = json.loads((ROOT / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
PAGE = DOCS / "operate" / "metrics.md"
_ALL_RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
RULES = [rule for rule in _ALL_RULES if "alert" in rule]
RECORDED = [rule for rule in _ALL_RULES if "record" in rule]
DOCS_LINK = "{{ with $externalLabels.mirrorbook_docs }}{{ . }}/{{ end }}"
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]

ALL = (*METRICS, *OF_THE_FENCE, *OF_READINESS)
_LABELS = {described.name: {"mirror", *described.labels} for described in ALL} | {
    rule["record"]: {"mirror"} for rule in RECORDED
}
_HISTOGRAMS = {described.name for described in METRICS if described.kind == "histogram"}


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(promql_parser.parse(expression), visit)
    yield from found


def problems(expression: str) -> list[str]:
    """What is wrong with an expression: it does not parse, or speaks of a metric or a label that nobody serves."""
    # Grafana's variables are not PromQL: in a matcher they stand for a name.
    try:
        used = list(selectors(expression.replace("$mirror", "m")))
    except ValueError as error:
        return [str(error)]
    found = [] if used else ["it speaks of no metric"]
    for selector in used:
        name = selector.name or ""
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        known = _LABELS.get(base if base in _HISTOGRAMS else name)
        if known is None or (base in _HISTOGRAMS) is not (base != name):
            found.append(f"there is no metric {name}")
        else:
            found += [f"{name} has no label {m.name}" for m in selector.matchers.matchers if m.name not in known]
    return found


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("sum(mirrorbook_lag_offsets", "unexpected end|unclosed|invalid"),
        ("mirrorbook_lag_ofsets > 0", "there is no metric mirrorbook_lag_ofsets"),
        ("rate(mirrorbook_copied_records[5m])", "there is no metric mirrorbook_copied_records$"),
        ("rate(mirrorbook_epoch_duration_seconds[5m])", "there is no metric mirrorbook_epoch_duration_seconds"),
        ("mirrorbook_lag_seconds_count", "there is no metric mirrorbook_lag_seconds_count"),
        ('mirrorbook_partitions{stat="FAILED"}', "mirrorbook_partitions has no label stat"),
        ("rate(mirrorbook_lag_offsets)", "expected type"),
        ("vector(1)", "it speaks of no metric"),
    ],
)
def test_defects_of_an_expression_are_found(expression: str, words: str) -> None:
    assert re.search(words, "; ".join(problems(expression)), re.IGNORECASE), problems(expression)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_speaks_of_metrics_that_exist_and_leads_to_a_page_on_call(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"]) == []
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"].startswith(DOCS_LINK)
    page, _, anchor = rule["annotations"]["runbook_url"].removeprefix(DOCS_LINK).partition("#")
    assert (ROOT / page).is_file()
    assert not anchor or anchor in anchors(ROOT / page)
    assert rule["alert"] in PAGE.read_text(encoding="utf-8"), "metrics.md lacks it"


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule["record"])
def test_what_is_recorded_speaks_of_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"]) == []


@pytest.mark.parametrize("what", FreshnessKind)
def test_readiness_and_alerts_call_the_same_ages_old(what: FreshnessKind) -> None:
    (expression,) = (rule["expr"] for rule in RULES if f'{{what="{what}"}}' in rule["expr"])
    assert float(expression.rpartition(">")[2]) == MAX_AGES_S[what]


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not() -> None:
    cases = [
        case
        for file in ALERT_TESTS
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in RULES}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_a_panel_speaks_of_metrics_that_exist_and_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert [problems(expression) for expression in expressions(panel)] == [[] for _ in panel["targets"]]
    assert all('mirror=~"$mirror"' in expression for expression in expressions(panel))
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in asked)
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert "id" not in DASHBOARD, "an id belongs to one Grafana"
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == ["datasource", "mirror", "docs"]
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", DASHBOARD["templating"]["list"][1]["definition"])
    assert asked
    assert asked[2] in _LABELS[asked[1]]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_first_row_answers_its_title() -> None:
    assert PANELS[0]["title"] == "Can I fail over now, and what would be lost?"
    top = [panel for panel in GRAPHS if panel["gridPos"]["y"] == 1]
    names = [{s.name for e in expressions(p) for s in selectors(e.replace("$mirror", "m"))} for p in top]
    assert names == [
        {"mirrorbook_ready"},
        {"mirrorbook_unplanned_loss_offsets"},
        {"mirrorbook_lag_seconds"},
        {"mirrorbook_standing_fence"},
        {"mirrorbook_known_timestamp_seconds", "mirrorbook_readiness_known_timestamp_seconds"},
        {"mirrorbook_partitions"},
    ]


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_a_panel_links_to_a_page_on_call(panel: dict[str, Any]) -> None:
    (link,) = panel["links"]
    assert link["url"].startswith("${docs}/")
    assert (ROOT / link["url"].removeprefix("${docs}/")).is_file()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_a_command(rule: dict[str, Any]) -> None:
    assert "`mirrorbook " in " ".join(rule["annotations"]["description"].split())


def test_no_two_panels_lie_on_each_other() -> None:
    def apart(one: dict[str, int], two: dict[str, int]) -> bool:
        return (
            one["x"] + one["w"] <= two["x"]
            or two["x"] + two["w"] <= one["x"]
            or one["y"] + one["h"] <= two["y"]
            or two["y"] + two["h"] <= one["y"]
        )

    for one, two in combinations(PANELS, 2):
        assert apart(one["gridPos"], two["gridPos"]), f"{one['title']} and {two['title']}"
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def test_every_metric_is_shown_on_the_dashboard() -> None:
    shown = {s.name for panel in GRAPHS for e in expressions(panel) for s in selectors(e.replace("$mirror", "m"))}
    shown |= {re.sub(r"_(bucket|sum|count)$", "", name or "") for name in shown}
    assert {described.name for described in ALL} - shown == {"mirrorbook_data_plane_info"}


def test_the_page_of_metrics_shows_the_table_of_the_code() -> None:
    page = DOCS / "reference" / "metric-names.md"
    assert printed(page, "mirror_core/dataplane/metric_names.py") == list(format_metrics_table())
    assert printed(page, "mirror_core/mirrors/fence_metrics.py") == list(format_metrics_table(OF_THE_FENCE))
    assert printed(page, "mirror_core/mirrors/readiness_metrics.py") == list(format_metrics_table(OF_READINESS))


def test_promtool_has_nothing_to_say_about_names_and_types() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert not os.environ.get("CI"), "promtool is missing: .ci/run brings it"
        pytest.skip("promtool is not here; Debian's package prometheus holds it")
    partition = Partition("orders", 0)
    counting = counters(status(partition))
    counting.count_epoch([report(partition, 0, 50, 4000)], 30.0)
    registry = CollectorRegistry()
    registry.register(MetricsCollector(MIRROR, counting, ProgressTracker()))
    judged = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, b"", b"")
