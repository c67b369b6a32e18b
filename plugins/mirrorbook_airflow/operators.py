"""Tasks of the DAGs about one mirror: each asks the core for one thing. All logic is there."""

from __future__ import annotations

import faulthandler
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mirror_core.model.errors import BadRequest, HeldByRun, LostOwnership, Refused
from mirror_core.model.names import MirrorName
from mirror_core.model.parity import Verdict
from mirror_core.model.text import visible
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.hooks import home
from mirrorbook_airflow.mirrors import config_path, find_mirror, owing_mirrors, remember_clusters, started_mirrors
from mirrorbook_airflow.watching import DataPlaneTrigger, ended

if TYPE_CHECKING:
    from airflow.sdk import Context

RETRIES: Final[dict[str, Any]] = {"retries": 2, "retry_delay": timedelta(seconds=2)}
"""For errors that may pass, and for tasks whose process was killed: every step of the core may be repeated."""

MAX_PATIENCE_S: Final = 900
STILL_AT_WORK_S: Final = 60
PASSED_ON: Final = ("runner", "master", "metrics", "patience_s")
"""Parameters of a data plane, which the run that starts it hands over."""
WAIT_S: Final = 45
"""A silent cluster that is owed a fence is waited for so long; the next run of the DAG is due soon after."""
SHOWN: Final = 20
"""Findings of a parity check in the task's log; the report has all."""


class MirrorOperator(BaseOperator):
    """A task about the mirror of this name."""

    template_fields: Sequence[str] = ("mirror",)

    def __init__(self, *, mirror: str, **kwargs: Any) -> None:
        super().__init__(**{**RETRIES, **kwargs})
        self.mirror = mirror

    def pre_execute(self, context: Any) -> None:
        # While applications stand still, a task that hangs must say where it does, in its log.
        faulthandler.dump_traceback_later(STILL_AT_WORK_S, file=2)

    def post_execute(self, context: Any, result: Any = None) -> None:
        faulthandler.cancel_dump_traceback_later()


class CreateMirror(MirrorOperator):
    """Check both clusters and record the mirror as the run's parameters describe it. Doing it twice is harmless."""

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.creation import create
        from mirror_core.mirrors.describe import GAPS
        from mirror_core.mirrors.estimate import lines
        from mirror_core.mirrors.gaps import limit_in_words
        from mirror_core.model.mirror import Gaps
        from mirror_core.state.link import configured, find, link_of

        params = context["params"]
        gaps = Gaps(params["gaps"]) if params.get("gaps") in [*Gaps] else None  # by rights, unless one is named
        asked: dict[str, Any] = {name: params[name] for name in ("source", "destination")}
        with airflow_errors():
            remember_clusters(asked.values())
            asked |= {name: tuple(params[name]) for name in ("topics", "exclude_topics", "groups")}
            config = configured(config_path(self.mirror))
            try:
                found = find(config, self.mirror)[0].mirror
            except BadRequest:
                made = create(config, self.mirror, **asked, gaps=gaps)
                self.log.info("gaps are %s", GAPS[made.gaps])
                if limit := limit_in_words(config.cluster(made.destination), made.gaps):
                    self.log.info(limit)
                for line in lines(link_of(config, made)):
                    self.log.info(line)
                return
            asked["gaps"] = gaps or found.gaps
            differing = [name for name, value in asked.items() if getattr(found, name) != value]
            if differing:
                raise Refused(f"mirror {self.mirror} exists already", [f"with other {name}" for name in differing])


class StartMirror(MirrorOperator):
    """Let the mirror run. Its data plane is another DAG's business."""

    def execute(self, context: Context) -> None:
        from mirror_core.mirrors.verbs import start

        with airflow_errors():
            start(find_mirror(self.mirror)[0])


class SyncMirror(MirrorOperator):
    """Bring topics, configurations, access rights and group offsets over. Skipped while a run holds the mirror."""

    def execute(self, context: Context) -> dict[str, int]:
        from mirror_core.mirrors.verbs import sync

        with airflow_errors():
            try:
                report = sync(find_mirror(self.mirror)[0])
            except HeldByRun as error:
                raise AirflowSkipException(f"{error}; it syncs by itself") from None
            except LostOwnership as error:
                raise AirflowSkipException(f"{error}: the next sync looks again") from None
            for row in report.rows:
                self.log.info("%s %s: %s %s", row.part, visible(row.subject), row.deed, visible(row.reason))
            if report.refused:
                reasons = [f"{row.part} {row.subject}: {row.reason}" for row in report.refused]
                raise Refused(f"sync of mirror {self.mirror}, the rest is done", reasons)
        return {"differences": sum(row.done for row in report.rows)}


class ListMirrors(BaseOperator):
    """Names for the tasks that follow: those of parameter `mirrors`, or every mirror that is meant to run."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**RETRIES, **kwargs})

    def execute(self, context: Context) -> list[str]:
        with airflow_errors():
            return list(context["params"]["mirrors"]) or started_mirrors()


class ListDebtors(BaseOperator):
    """Names for the tasks that follow: those of parameter `mirrors`, or every mirror that owes something."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**RETRIES, **kwargs})

    def execute(self, context: Context) -> list[str]:
        with airflow_errors():
            return list(context["params"]["mirrors"]) or owing_mirrors()


class KeepFenced(MirrorOperator):
    """Pay what the mirror owes its old source, waiting for it for most of a minute; look after what is paid."""

    def execute(self, context: Context) -> str:
        from mirror_core.mirrors.standing import look_and_wait

        with airflow_errors():
            try:
                found = look_and_wait(find_mirror(self.mirror)[0], WAIT_S)
            except LostOwnership as error:
                raise AirflowSkipException(f"{error}: the next run looks again") from None
        for judgement in found:
            for line in judgement.lines:
                self.log.info("%s", visible(line))
        alarms = [alarm for judgement in found for alarm in judgement.alarms]
        if alarms:
            raise AirflowFailException(visible(f"mirror {self.mirror}: {'; '.join(alarms)}"))
        return found[-1].standing


class CheckParity(MirrorOperator):
    """Compare both sides as a Spark job; red unless everything in scope was equal. The report's path is its result."""

    def execute(self, context: Context) -> str:
        from mirror_core.parity.scope import scope
        from mirror_core.spark.parity import SparkParity

        with airflow_errors():
            link, state = find_mirror(self.mirror)
            compared = scope(link, state)
            output = home("evidence") / self.mirror / f"parity-{context['dag_run'].start_date:%Y%m%dT%H%M%SZ}"
            check = SparkParity(link.config.path, context["params"]["master"])
            found = check(link.mirror.source, link.mirror.destination, compared.ranges, output)
        self.log.info("%s: %s records in %s chunks, %.1f s", found.verdict, found.records, found.chunks, found.seconds)
        for left_out, why in compared.left_out.items():
            self.log.warning("%s is not in scope: it is %s", left_out, why)
        if found.verdict is not Verdict.PASSED:
            details = [*found.reasons, *(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in found.findings)]
            listed = "".join(f"\n  - {line}" for line in details[:SHOWN])
            raise AirflowFailException(f"parity of mirror {self.mirror}: {found.verdict}; {found.report}{listed}")
        return found.report


def replicate_options(params: Mapping[str, Any]) -> list[str]:
    """Options of `mirrorbook replicate` as a run's parameters want them."""
    options = ["--runner", params["runner"], "--receipts", str(home("evidence") / "receipts")]
    if params["runner"] == "spark":
        options += ["--master", params["master"]]
    if params["metrics"]:
        options += ["--metrics", params["metrics"]]
    return options


class WatchDataPlane(MirrorOperator):
    """Make sure that the mirror has a supervisor here, and wait, without a worker, until it is stopped or ill."""

    def execute(self, context: Context) -> None:
        from mirror_core.supervisor.supervise import ensure

        params = context["params"]
        options = replicate_options(params)
        with airflow_errors():
            link, state = find_mirror(self.mirror)
            if reason := ended(state, link.mirror.name):
                raise Refused(f"replicate mirror {self.mirror}", [f"{reason}: start it first"])
            ensure(link.config.path, link.mirror.name, home("data-plane"), options)
        trigger = DataPlaneTrigger(
            mirror=self.mirror,
            destination=link.destination.name,
            config_path=str(link.config.path),
            home=str(home("data-plane")),
            args=options,
            patience_s=params["patience_s"],
        )
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Context, event: dict[str, str]) -> str:
        from mirror_core.supervisor.supervise import status, stop

        with airflow_errors():
            if event["status"] == "ended":
                stop(home("data-plane"), MirrorName(self.mirror))
                return event["reason"]
            found = status(home("data-plane"), MirrorName(self.mirror))
        where = f"its output: {found.log}" if found else "it has no supervisor"
        raise AirflowFailException(f"the data plane of mirror {self.mirror} is not well: {event['reason']}; {where}")


class ReplicateMirror(TriggerDagRunOperator):
    """Start a run of DAG `mirror_replicate` for this mirror, with this run's choice of a runner."""

    template_fields = ("mirror",)

    def __init__(self, *, mirror: str, **kwargs: Any) -> None:
        super().__init__(trigger_dag_id="mirror_replicate", logical_date=None, **kwargs)
        self.mirror = mirror

    def execute(self, context: Context) -> None:
        params = context["params"]
        self.conf = {"mirror": self.mirror, **{name: params[name] for name in PASSED_ON}}
        super().execute(context)


class WatchAgain(ReplicateMirror):
    """The next run of the same DAG, with twice the patience: hours of incident are a dozen red runs, not hundreds."""

    def execute(self, context: Context) -> None:
        params = context["params"]
        patience_s = min(MAX_PATIENCE_S, 2 * params["patience_s"])
        super().execute({**context, "params": {**params, "patience_s": patience_s}})
