"""Tasks for one mirror. The logic is in the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from mirror_core.decide.parity_result import LEVEL_RECORDS
from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.model.errors import BadRequest, HeldByRun, LostOwnership, Refused
from mirror_core.model.names import MirrorName
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.text import escape_invisible, format_count, format_items
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.airflow_variables import add_clusters, add_form_mirror
from mirrorbook_airflow.asset_events import PROVED_ALIAS, READY_ALIAS, SYNCED_ALIAS, emit_event
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.hooks import get_home_folder
from mirrorbook_airflow.mirror_lookup import (
    find_mirror,
    list_own_started_mirrors,
    list_silent_clusters,
    list_started_mirrors,
    provide_mirror_config,
)
from mirrorbook_airflow.page import get_page_root
from mirrorbook_airflow.params import NO_SPARK, read_receipts_location
from mirrorbook_airflow.worker_services import get_executor_config, make_parity_check, open_receipts_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.names import Partition
    from mirror_core.model.parity_verdict import ParityResult
    from mirror_core.page.reports import ReportKind
    from mirror_core.parity.parity_plan import ParityPlan

RETRIES: Final[dict[str, Any]] = {"retries": 2, "retry_delay": timedelta(seconds=2)}
"""For errors that may pass, and for tasks whose process was killed: every step of the core may be repeated."""
READ_TIMEOUT: Final = timedelta(minutes=30)
"""Execution timeout of a task that reads metadata."""
CHANGE_TIMEOUT: Final = timedelta(hours=6)
"""Execution timeout of a task that changes topics, groups or ACLs, or runs commands."""
CUT_OVER_TIMEOUT: Final = timedelta(days=1)
"""Execution timeout of the task that blocks writes: it compares what was not compared before."""
COPY_TIMEOUT: Final = timedelta(days=7)
"""Execution timeout of a task that reads or copies whole logs. Only a hang takes so long; the task is tried again."""
TASK_DEFAULTS: Final[dict[str, Any]] = {**RETRIES, "execution_timeout": READ_TIMEOUT}
MAX_ACTIVE_RUNS: Final = 10_000
"""`max_active_runs` of a DAG with a run for each mirror; Airflow's own default is 16, and 0 starts none."""
MAP_INDEX: Final = "{{ task.mirror[:250] }}"
"""Names a mapped task by its mirror. PostgreSQL and MySQL refuse more than 250 characters, and the task with them."""

URGENT_TASK_DEFAULTS: Final[dict[str, Any]] = {"priority_weight": 1000, "weight_rule": "absolute"}
"""For DAGs that move applications: their tasks take the next free slot, before what runs every minute."""
MAX_PARALLEL_TASKS: Final = 8
"""Tasks of a DAG that runs every minute, at a time: in a disaster of many they must leave slots to runbooks."""
PLAN_ADVICE: Final = "make room and rights there, or give another folder"
MAX_LOGGED_FINDINGS: Final = 20
"""Findings of a parity check in the task's log; the report has all."""


class MirrorOperator(BaseOperator):
    template_fields: Sequence[str] = ("mirror",)
    timeout: ClassVar[timedelta] = READ_TIMEOUT
    alias: ClassVar[AssetAlias | None] = None
    """A good end is an event of its asset."""

    def __init__(self, *, mirror: str, **kwargs: Any) -> None:
        super().__init__(**{**self._make_defaults(), **kwargs})
        self.mirror = mirror

    @classmethod
    def mapped_defaults(cls) -> dict[str, Any]:
        """Arguments for a mapped task, which `__init__` does not reach."""
        return {**cls._make_defaults(), "map_index_template": MAP_INDEX}

    @classmethod
    def _make_defaults(cls) -> dict[str, Any]:
        outlets = {"outlets": [cls.alias]} if cls.alias else {}
        return {**TASK_DEFAULTS, "execution_timeout": cls.timeout, **outlets}

    def emit_done(self, context: Context, **details: object) -> None:
        assert self.alias is not None
        emit_event(MirrorName(self.mirror), self.alias, context, details)


FILTER_TEXTS: Final = MappingProxyType(
    {
        "topics": "all topics",
        "exclude_topics": "topics to leave out",
        "groups": "all groups",
        "exclude_groups": "groups to leave out",
        "principals": "all principals whose rights are synced",
        "exclude_principals": "principals whose rights are not synced",
        "exclude_rights": "rights not to sync, such as `READ TOPIC orders.*`",
        "exclude_settings": "topic settings not to sync",
    }
)
"""What DAG mirror_create takes and DAG mirror_control may change."""


class CreateMirror(MirrorOperator):
    """Check both clusters and record the mirror as the run's parameters describe it. Doing it twice is harmless."""

    timeout = CHANGE_TIMEOUT

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.mirror_creation import create_mirror, preview_creation
        from mirror_core.model.mirror import GapFilling
        from mirror_core.state.mirror_link import find_mirror_link, load_clusters

        params = context["params"]
        gaps = (
            GapFilling(params["gaps"]) if params.get("gaps") in [*GapFilling] else None
        )  # by rights, unless one is named
        wanted: dict[str, Any] = {name: params[name] for name in ("source", "destination")}
        with airflow_errors():
            clusters = (*wanted.values(),)
            wanted |= {name: tuple(params[name]) for name in FILTER_TEXTS}
            wanted["replication_factor"] = params["replication_factor"]
            config = load_clusters(provide_mirror_config(self.mirror, clusters))
            try:
                existing = find_mirror_link(config, self.mirror)[0].mirror
            except BadRequest:
                warnings = list[str]()
                created = create_mirror(config, self.mirror, **wanted, gaps=gaps, warn=warnings.append)
                add_clusters(clusters)  # each task looks at them from now on: not before they were checked
                add_form_mirror(created.name, created.destination)
                for line in preview_creation(config, created, warnings).lines:
                    self.log.info("%s", line)
                return
            wanted["gaps"] = gaps or existing.gaps
            differing = [name for name, value in wanted.items() if getattr(existing, name) != value]
            if differing:
                is_changeable = {*differing} <= {*FILTER_TEXTS, "replication_factor"}
                ways = [] if not is_changeable else ["DAG mirror_control, action change, changes its filters"]
                reasons = [*(f"with other {name}" for name in differing), *ways]
                raise Refused(f"mirror {self.mirror} exists already", reasons, reason_code="mirror_differs")
            add_clusters(clusters)


class StartMirror(MirrorOperator):
    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.mirror_commands import start_mirror

        with airflow_errors():
            start_mirror(find_mirror(self.mirror)[0])


class SyncMirror(MirrorOperator):
    """Bring topics, configurations, access rights and group offsets over. Skipped while a run holds the mirror."""

    timeout = CHANGE_TIMEOUT
    alias = SYNCED_ALIAS

    def execute(self, context: Context) -> dict[str, int]:
        from mirror_core.mirrors.mirror_commands import run_sync

        begun_ms = now_ms()
        with airflow_errors():
            try:
                report = run_sync(find_mirror(self.mirror)[0])
            except HeldByRun as error:
                raise AirflowSkipException(f"{error}; it syncs by itself") from None
            except LostOwnership as error:
                raise AirflowSkipException(f"{error}: the next sync looks again") from None
            for row in report.rows:
                self.log.info(
                    "%s %s: %s %s", row.part, escape_invisible(row.subject), row.action, escape_invisible(row.reason)
                )
            if report.refused:
                reasons = [f"{row.part} {row.subject}: {row.reason}" for row in report.refused]
                raise Refused(f"sync of mirror {self.mirror}, the rest is done", reasons, reason_code="sync_refused")
        done = {"differences": sum(row.done for row in report.rows)}
        self.emit_done(context, at_ms=begun_ms, **done)
        return done


class ListMirrors(BaseOperator):
    """Names for the tasks that follow: those of parameter `mirrors`, or every mirror that is meant to run; in a DAG of
    one mirror those of its own."""

    def __init__(self, *, own_mirrors: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})
        self.own_mirrors = tuple(own_mirrors)

    def execute(self, context: Context) -> list[str]:
        with airflow_errors():
            if self.own_mirrors:
                return list_own_started_mirrors(self.own_mirrors)
            return list(context["params"]["mirrors"] or ()) or list_started_mirrors()


class CheckClusters(BaseOperator):
    """Red when a known cluster does not tell of the mirrors towards it: of these nothing was looked at. Green where the
    run names its mirrors: those are looked for by their names."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})

    def execute(self, context: Context) -> None:
        if context["params"]["mirrors"]:
            return
        with airflow_errors():
            silent = list_silent_clusters()
        if silent:
            listed = format_items(f"{name}: {why}" for name, why in sorted(silent.items()))
            raise AirflowException(f"mirrors towards these clusters were not looked at:{listed}")  # perhaps it passes


class CheckParity(MirrorOperator):
    """Compare both sides, by Spark or without; red unless all in scope was equal, and what else is expected is so.

    The report's path is its result; where Airflow shows it, is in the log and in the error.
    """

    timeout = COPY_TIMEOUT
    alias = PROVED_ALIAS

    def execute(self, context: Context) -> str:
        from mirror_core.evidence.expectation_suites import PARITY
        from mirror_core.evidence.expectations import load_table_expectations
        from mirror_core.mirrors.incremental_verification import compare_and_record
        from mirror_core.page.reports import ReportKind
        from mirror_core.parity.comparable_ranges import read_parity_scope
        from mirror_core.state.mirror_link import find_mirror_link, load_clusters

        with airflow_errors():
            config = load_clusters(provide_mirror_config(self.mirror))
            expectations = load_table_expectations(config, PARITY, self.mirror)
            link, state = find_mirror_link(config, self.mirror)
            begun_ms, scope = now_ms(), read_parity_scope(link, state)
            folder = _name_report_folder(ReportKind.PARITY, context)
            output = get_home_folder("evidence") / self.mirror / folder
            params = context["params"]
            check = make_parity_check(link.config.path, params["master"], expectations, params["bytes_per_s"] or None)
            result = compare_and_record(
                link,
                state,
                scope.ranges,
                lambda rest, so_far: check(
                    link.mirror.source_identity, link.mirror.destination_identity, rest, output, so_far
                ),
                compare_all=context["params"]["whole"],
                report=self.log.info,
            )
        _report_comparison(self, context, result, folder, begun_ms, len(scope.ranges), scope.left_out)
        return result.report


class PlanParity(MirrorOperator):
    """Write what a Spark job has to compare. Its result is the plan's path, which ends with the plan's digest."""

    template_fields = ("mirror", "folder")

    def __init__(self, *, folder: str, whole: bool = False, throttle: str = "", **kwargs: Any) -> None:
        """`folder`: a path or a URL that the job reads, too. `throttle`: of each cluster, as 50MB/s."""
        super().__init__(**kwargs)
        self.folder = folder
        self.whole = whole
        self.throttle = parse_bytes_per_s(throttle) if throttle else None

    def execute(self, context: Context) -> str:
        from mirror_core.mirrors.incremental_verification import plan_comparison
        from mirror_core.parity.comparable_ranges import read_parity_scope
        from mirror_core.parity.parity_plan import PLAN_NAME, encode_plan
        from mirror_core.state.mirror_link import find_mirror_link, load_clusters

        with airflow_errors():
            folder = open_receipts_folder(NO_SPARK, self.folder)
            folder.check(PLAN_NAME, PLAN_ADVICE)
            link, state = find_mirror_link(load_clusters(provide_mirror_config(self.mirror)), self.mirror)
            plan = plan_comparison(
                link,
                state,
                read_parity_scope(link, state),
                level=LEVEL_RECORDS,
                compare_all=self.whole,
                throttle=self.throttle,
                opened_by_tasks=get_executor_config(),
            )
            folder.write(PLAN_NAME, _name_plan(plan), encode_plan(plan), PLAN_ADVICE)
        self.log.info("%s to compare", format_count(len(plan.spans), "span"))
        return f"{folder.where}/{_name_plan(plan)}"


class JudgeParity(MirrorOperator):
    """Find the verdict on what a Spark job has compared by this plan, and end as `CheckParity` does. Without Spark."""

    template_fields = ("mirror", "plan", "table")
    alias = PROVED_ALIAS

    def __init__(self, *, plan: str, table: str, **kwargs: Any) -> None:
        """`plan`: the result of `PlanParity`. `table`: a path or a URL, as the job was given it."""
        super().__init__(**kwargs)
        self.plan = plan
        self.table = table

    def execute(self, context: Context) -> str:
        from mirror_core.evidence.expectation_suites import PARITY
        from mirror_core.evidence.expectations import load_table_expectations
        from mirror_core.mirrors.incremental_verification import judge_plan
        from mirror_core.page.reports import ReportKind
        from mirror_core.parity.parity_plan import read_plan
        from mirror_core.parity.parity_table import open_table_folder, read_parity_rows
        from mirror_core.state.mirror_link import find_mirror_link, load_clusters

        with airflow_errors():
            config = load_clusters(provide_mirror_config(self.mirror))
            expectations = load_table_expectations(config, PARITY, self.mirror)
            link, _ = find_mirror_link(config, self.mirror)
            parent, _, name = self.plan.rpartition("/")
            plan = read_plan(open_receipts_folder(NO_SPARK, parent), name)
            if name != _name_plan(plan):  # the job's user may write there; nobody but a task writes results of tasks
                raise BadRequest(f"{self.plan}: it is another plan than the one that was written there: make a new one")
            rows = read_parity_rows(plan, open_table_folder(self.table, partial(open_receipts_folder, NO_SPARK)))
            folder = _name_report_folder(ReportKind.PARITY, context)
            output = get_home_folder("evidence") / self.mirror / folder
            result = judge_plan(link, plan, rows, output, expectations, self.log.info)
        left_out = dict(plan.left_out)
        _report_comparison(self, context, result, folder, plan.planned_ms, len(plan.ranges), left_out)
        return result.report


def _name_plan(plan: ParityPlan) -> str:
    return f"{plan.digest}.json"


def _report_comparison(
    task: MirrorOperator,
    context: Context,
    result: ParityResult,
    folder: str,
    begun_ms: int,
    partitions: int,
    left_out: Mapping[Partition, object],
) -> None:
    """Raises AirflowFailException unless all in scope was equal."""
    from mirror_core.page.reports import ReportKind

    task.log.info("%s: %s records in %s chunks, %.1f s", result.verdict, result.records, result.chunks, result.seconds)
    where = _log_report_path(task, ReportKind.PARITY, folder, result.report)
    for partition, why in left_out.items():
        task.log.warning("%s is not in scope: it is %s", partition, why)
    if result.verdict is not ParityVerdict.PASSED:
        details = [
            *(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in result.findings),
            *result.unmet_expectations,
            *result.reasons,
        ]
        listed = format_items(details[:MAX_LOGGED_FINDINGS])
        raise AirflowFailException(f"parity of mirror {task.mirror}: {result.verdict}; {where}{listed}")
    if not left_out:
        task.emit_done(context, at_ms=begun_ms, partitions=partitions, report=result.report)


class CheckMirror(MirrorOperator):
    """Judge readiness and what a sync would find, by our rules and by what else is expected; red unless all is so, also
    where something is not known. Skipped while a run holds the mirror, and red where nobody goes on with it.

    The path of the Data Docs is its result; where Airflow shows them, is in the log and in the error.
    """

    alias = READY_ALIAS

    def execute(self, context: Context) -> str:
        from mirror_core.evidence.expectation_suites import READINESS, SYNC
        from mirror_core.evidence.expectations import load_expectations
        from mirror_core.model.files import check_writable
        from mirror_core.page.reports import ReportKind
        from mirror_core.runbook.expectation_check import CHECK_ADVICE, CHECK_NAME, check_mirror
        from mirror_core.runbook.run_outcome import explain_abandoned
        from mirror_core.state.mirror_link import find_mirror_link, load_clusters

        with airflow_errors():
            config = load_clusters(provide_mirror_config(self.mirror))
            expectations = load_expectations(config, READINESS, SYNC).for_mirror(MirrorName(self.mirror))
            link, state = find_mirror_link(config, self.mirror)
            if (run := state.active_run(link.mirror.name)) is not None:
                if reason := explain_abandoned(link, state, run):
                    raise Refused(f"run {run.id} holds mirror {self.mirror}", [reason], reason_code="run_abandoned")
                raise AirflowSkipException(f"run {run.id} holds mirror {self.mirror}: the next check is after it")
            folder = _name_report_folder(ReportKind.CHECK, context)
            output = get_home_folder("evidence") / self.mirror / folder
            check_writable(CHECK_NAME, output, CHECK_ADVICE)
            begun_ms = now_ms()
            result = check_mirror(link, state, expectations, output)
        self.log.info("%s; tiers: %s", result.verdict, ", ".join(result.tiers) or "none")
        where = _log_report_path(self, ReportKind.CHECK, folder, result.report)
        if result.verdict is not ParityVerdict.PASSED:
            listed = format_items(result.unmet[:MAX_LOGGED_FINDINGS])
            raise AirflowFailException(f"check of mirror {self.mirror}: {result.verdict}; {where}{listed}")
        self.emit_done(context, at_ms=begun_ms, report=result.report)
        return result.report


def _name_report_folder(kind: ReportKind, context: Context) -> str:
    """By the start of the DAG run, so that a retry writes the same report."""
    from mirror_core.page.reports import format_folder_name

    begun = context["dag_run"].start_date
    assert begun is not None  # a task of it runs
    return format_folder_name(kind, begun)


def _log_report_path(task: MirrorOperator, kind: ReportKind, folder: str, path: str) -> str:
    from mirror_core.page.reports import format_page_path

    where = f"report: {format_page_path(get_page_root(), task.mirror, kind, folder)}, on this worker {path}"
    task.log.info("%s", where)
    return where


class CompactReceipts(MirrorOperator):
    """Put receipts of past days together; red when some were lost or altered. Skipped while a run holds the mirror."""

    timeout = CHANGE_TIMEOUT

    def execute(self, context: Context) -> int:
        from mirror_core.mirrors.receipt_maintenance import compact_receipts, first_open_day

        if not (location := read_receipts_location()):
            raise AirflowSkipException(
                "where data planes keep their receipts is not known here: name the folder or URL in "
                "[mirrorbook] receipts, or run `mirrorbook receipts compact` beside them"
            )
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            folder = open_receipts_folder(context["params"]["master"], location)
            try:
                done = compact_receipts(link, folder, first_open_day())
            except HeldByRun as error:
                raise AirflowSkipException(str(error)) from None
            except LostOwnership as error:
                raise AirflowSkipException(f"{error}: the next run does it") from None
        for day, (before, after) in done.files.items():
            self.log.info("%s: %d files are %d now", day, before, after)
        if done.troubled:
            listed = format_items(f"{day}: {path}" for day, path in done.troubled.items())
            raise AirflowFailException(
                f"receipts of mirror {self.mirror} were lost, altered or are not ours; `mirrorbook receipts rebuild "
                f"{self.mirror}` looks at what they vouched for:{listed}"
            )
        return len(done.files)
