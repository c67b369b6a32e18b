"""Tasks of DAG `mirror_replicate`: a data plane is started, watched, and watched again when it was ill."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.trigger_dagrun import DagIsPaused, TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import MirrorName, get_base_name
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.asset_events import UNHEALTHY_ALIAS, emit_event
from mirrorbook_airflow.data_plane_trigger import LIVED_KEY, DataPlaneTrigger, explain_watch_end
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.hooks import get_home_folder
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.operators import TASK_DEFAULTS, MirrorOperator, get_receipts_location
from mirrorbook_airflow.params import NO_SPARK, must_start_data_planes, read_spark_conf

if TYPE_CHECKING:
    from airflow.sdk import Context

DAG_ID: Final = "mirror_replicate"
MAX_PATIENCE_S: Final = 900
WATCH_RETRIES: Final[dict[str, Any]] = {
    "retries": 4,
    "retry_delay": timedelta(seconds=15),
    "retry_exponential_backoff": True,
}
"""For a watch that finds the destination silent, or whose trigger broke: minutes until its run is red."""
REFUSED_KEY: Final = "hopeless"
"""XCom of a watch that was refused."""
INCIDENT_KEY: Final = "incident"
"""XCom of a watch that has found a data plane ill; in a run's configuration: since when people know (ms)."""
FORWARDED_PARAMS: Final = ("runner", "master", "metrics", "prove_at", "patience_s")
"""Parameters of a data plane, which the run that starts it hands over."""


def format_replicate_options(params: Mapping[str, Any]) -> list[str]:
    """Options of `mirrorbook replicate` as a run's parameters want them."""
    options = ["--runner", params["runner"], "--receipts", get_receipts_location()]
    if params["runner"] == "spark":
        if params["master"] == NO_SPARK:
            raise BadRequest(f"runner spark needs a Spark master, and {NO_SPARK} was chosen: choose runner local")
        options += ["--master", params["master"]]
        options += [option for key, value in read_spark_conf().items() for option in ("--conf", f"{key}={value}")]
    if params["metrics"]:
        options += ["--metrics", params["metrics"]]
    if params["prove_at"]:
        parse_bytes_per_s(params["prove_at"])  # refused here, not in a log file
        options += ["--prove-at", params["prove_at"]]
    return options


class WatchDataPlane(MirrorOperator):
    """Make sure that the mirror has a supervisor here, unless a deployment runs them elsewhere; and wait, without a
    worker, until the mirror is stopped or its data plane is ill."""

    def execute(self, context: Context) -> None:
        from mirror_core.supervisor.lifecycle import ensure_supervisor

        params = context["params"]
        try:
            with airflow_errors():
                starts = must_start_data_planes()
                options = format_replicate_options(params) if starts else []
                link, state = find_mirror(self.mirror)
                if reason := explain_watch_end(state, link.mirror.name):
                    raise Refused(
                        f"replicate mirror {self.mirror}",
                        [f"{reason}: start it first"],
                        reason_code="mirror_not_started",
                    )
                if starts:
                    ensure_supervisor(link.config.path, link.mirror.name, get_home_folder("data-plane"), options)
        except AirflowFailException:
            context["ti"].xcom_push(key=REFUSED_KEY, value=True)
            raise
        trigger = DataPlaneTrigger(
            mirror=self.mirror,
            destination=link.destination.name,
            config_path=str(link.config.path) if starts else "",
            home=str(get_home_folder("data-plane")) if starts else "",
            args=options,
            patience_s=params["patience_s"],
        )
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Context, event: dict[str, Any]) -> str:
        with airflow_errors():
            if event["status"] == "ended":
                self._stop_supervisor()
                return str(event["reason"])
            context["ti"].xcom_push(key=INCIDENT_KEY, value={k: v for k, v in event.items() if k != "status"})
            where = self._format_log_location()
        raise AirflowFailException(f"the data plane of mirror {self.mirror} is not well: {event['reason']}; {where}")

    def _stop_supervisor(self) -> None:
        from mirror_core.supervisor.lifecycle import stop_supervisor

        if not must_start_data_planes():
            return
        try:
            stop_supervisor(get_home_folder("data-plane"), MirrorName(self.mirror))
        except Refused as error:  # it asks the mirror every few seconds, and copies nothing
            self.log.warning("%s", error)

    def _format_log_location(self) -> str:
        from mirror_core.supervisor.lifecycle import read_supervisor_status

        if not must_start_data_planes():
            return "Airflow starts none here ([mirrorbook] data_plane is watch): look at what runs it"
        status = read_supervisor_status(get_home_folder("data-plane"), MirrorName(self.mirror))
        return f"its output, on host {status.host or '(unknown)'}: {status.log}" if status else "it has no supervisor"


def make_triggered_run_id(mirror: str, dag_id: str, run_id: str, task_id: str) -> str:
    """The id of the run that this task triggers: the same however often it runs, of a length that Airflow can keep."""
    digest = hashlib.sha256(f"{dag_id}/{run_id}/{task_id}".encode()).hexdigest()[:16]
    return f"{mirror[:200]}-{digest}"


class ReplicateMirror(TriggerDagRunOperator):
    """Start a run of DAG `mirror_replicate`, or of the mirror's own one, with this run's choice of a runner. `{mirror}`
    in `replicate_dag` stands for the mirror.

    A retry or a clear starts no second run: it goes on with the first one, and clears that if it has ended.
    """

    template_fields = ("mirror",)

    def __init__(self, *, mirror: str, replicate_dag: str = DAG_ID, **kwargs: Any) -> None:
        super().__init__(
            trigger_dag_id=replicate_dag,
            logical_date=None,
            reset_dag_run=True,
            fail_when_dag_is_paused=True,
            **{**TASK_DEFAULTS, **kwargs},
        )
        self.mirror = mirror

    def execute(self, context: Context) -> None:
        params, ti, run = context["params"], context["ti"], context["dag_run"]
        dag_id = self.trigger_dag_id = self.trigger_dag_id.format(mirror=get_base_name(MirrorName(self.mirror)))
        self.conf = {
            "mirror": self.mirror,
            **{name: params[name] for name in FORWARDED_PARAMS if name in params},
            **self.make_extra_conf(context),
        }
        self.trigger_run_id = make_triggered_run_id(self.mirror, run.dag_id, run.run_id, self.task_id)
        if ti.get_dr_count(dag_id=dag_id, run_ids=[self.trigger_run_id], states=["queued", "running"]):
            self.log.info("run %s of DAG %s goes on: an earlier try has started it", self.trigger_run_id, dag_id)
            return
        try:
            super().execute(context)
        except DagIsPaused:
            message = (
                f"DAG {dag_id} is paused, so nothing watches mirror {self.mirror}: unpause it, then clear this task"
            )
            raise AirflowFailException(message) from None

    def make_extra_conf(self, context: Context) -> dict[str, int]:
        """What else the run is to know: nothing."""
        return {}


class WatchAgain(ReplicateMirror):
    """The next run of the same DAG, with twice the patience: hours of incident are a dozen red runs, not hundreds.

    None when the watch could not even begin: what was refused once would be refused again, without end. The first one
    of an incident emits the asset event: `watch` has failed, and Airflow keeps no event of a failed task.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(outlets=[UNHEALTHY_ALIAS], **kwargs)

    def execute(self, context: Context) -> None:
        if context["ti"].xcom_pull(task_ids="watch", key=REFUSED_KEY):
            raise AirflowSkipException("not again: a person must look at why it was refused, and trigger it then")
        params = context["params"]
        patience_s = min(MAX_PATIENCE_S, 2 * params["patience_s"])
        super().execute({**context, "params": {**params, "patience_s": patience_s}})

    def make_extra_conf(self, context: Context) -> dict[str, int]:
        """Since when this incident is told of. If the data plane lived meanwhile, it is another one, told of now."""
        incident = context["ti"].xcom_pull(task_ids="watch", key=INCIDENT_KEY) or {}
        reported_ms = (context["dag_run"].conf or {}).get(INCIDENT_KEY)
        if incident.pop(LIVED_KEY, False) or reported_ms is None:
            reported_ms = now_ms()
            emit_event(
                get_base_name(MirrorName(self.mirror)), UNHEALTHY_ALIAS, context, {**incident, "at_ms": reported_ms}
            )
        return {INCIDENT_KEY: reported_ms}
