"""Tasks of DAG `mirror_replicate`: a data plane is watched, and watched again when it was ill."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.trigger_dagrun import DagIsPaused, TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mirror_core.model.errors import Refused
from mirror_core.model.names import MirrorName, get_base_name
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.asset_events import UNHEALTHY_ALIAS, emit_event
from mirrorbook_airflow.data_plane_trigger import LIVED_KEY, DataPlaneTrigger, explain_watch_end
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import find_mirror
from mirrorbook_airflow.operators import TASK_DEFAULTS, MirrorOperator

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


class WatchDataPlane(MirrorOperator):
    """Wait, without a worker, until the mirror is stopped or its data plane is ill."""

    def execute(self, context: Context) -> None:
        try:
            with airflow_errors():
                link, state = find_mirror(self.mirror)
                if reason := explain_watch_end(state, link.mirror.name):
                    raise Refused(
                        f"replicate mirror {self.mirror}",
                        [f"{reason}: start it first"],
                        reason_code="mirror_not_started",
                    )
        except AirflowFailException:
            context["ti"].xcom_push(key=REFUSED_KEY, value=True)
            raise
        trigger = DataPlaneTrigger(self.mirror, link.destination.name, context["params"]["patience_s"])
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Context, event: dict[str, Any]) -> str:
        if event["status"] == "ended":
            return str(event["reason"])
        context["ti"].xcom_push(key=INCIDENT_KEY, value={k: v for k, v in event.items() if k != "status"})
        raise AirflowFailException(
            f"the data plane of mirror {self.mirror} is not well: {event['reason']}; look at what runs it, or start "
            f"one: mirrorbook supervise {get_base_name(MirrorName(self.mirror))}"
        )


def make_triggered_run_id(mirror: str, dag_id: str, run_id: str, task_id: str) -> str:
    """The id of the run that this task triggers: the same however often it runs, of a length that Airflow can keep."""
    digest = hashlib.sha256(f"{dag_id}/{run_id}/{task_id}".encode()).hexdigest()[:16]
    return f"{mirror[:200]}-{digest}"


class ReplicateMirror(TriggerDagRunOperator):
    """Start a run of DAG `mirror_replicate`, or of the mirror's own one. `{mirror}` in `replicate_dag` stands for the
    mirror.

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
            "patience_s": params["patience_s"],
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
