"""Drills by Airflow: one task goes the whole way, another one takes away what it leaves, also when it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mirror_core.decide.drills import summarize_failed_drills
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.run import RunMode
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import config_path, find_mirror
from mirrorbook_airflow.operators import HOURS, MirrorOperator
from mirrorbook_airflow.runbook import conductor
from mirrorbook_airflow.worker_services import services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.runbook.drill import DrillOutcome

BOTH: Final = "both"
"""In place of a mode: planned, then unplanned. What was never drilled has no predicted seconds without writes."""


class DrillMirror(MirrorOperator):
    """Go through a failover of what stands for this mirror, in each mode that was asked for."""

    timeout = HOURS

    def execute(self, context: Context) -> dict[str, dict[str, str]]:
        from mirror_core.runbook.drill import run_drill

        asked, by = context["params"]["mode"], conductor(context)
        found, outcomes = dict[str, dict[str, str]](), dict[RunMode, str | MirrorError]()
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            equipment = services(link.config.path, (), "")
            for mode in (RunMode.PLANNED, RunMode.UNPLANNED) if asked == BOTH else (RunMode(asked),):
                try:
                    outcome = run_drill(link.config, self.mirror, mode, equipment, started_by=by, print_line=self.say)
                except LostOwnership:
                    raise  # somebody else drills this mirror now: another drill of ours would end that one
                except MirrorError as error:
                    outcomes[mode] = error
                    self.log.error("drill, %s: failed: %s", mode, escape_invisible_lines(str(error)))
                else:
                    found[mode] = self._told(outcome)
                    outcomes[mode] = f"{found[mode]['measured']} s without writes, lost {outcome.lost}"
            failure = summarize_failed_drills(self.mirror, outcomes)
            if failure is not None:
                raise failure
        return found

    def _told(self, found: DrillOutcome) -> dict[str, str]:
        one = found.drilled
        measured = "not measured" if one.measured_s is None else f"{one.measured_s:.1f}"
        group = found.group
        again = group.untried or f"{group.repeated} record(s) read again, {group.skipped} skipped"
        self.log.info(
            "%s: %s s without writes, predicted were %s; lost %s", one.mode, measured, one.predicted, found.lost
        )
        self.log.info("its group: %s; predicted: %s", escape_invisible_lines(again), group.predicted)
        return {
            "run": one.run,
            "measured": measured,
            "predicted": one.predicted,
            "lost": str(found.lost),
            "group": again,
            "group_predicted": group.predicted,
        }

    def say(self, words: str) -> None:
        """Into the task's log, which shows colours: names in it are anybody's."""
        self.log.info("%s", escape_invisible_lines(words))


class CleanDrill(MirrorOperator):
    """Take away what a drill of this mirror has left, if anything."""

    timeout = HOURS

    def execute(self, context: Context) -> None:
        from mirror_core.runbook.drill import clean_drill
        from mirror_core.state.mirror_link import load_clusters

        with airflow_errors():
            config = load_clusters(config_path(self.mirror))  # the mirror may have been deleted meanwhile
            equipment, by = services(config.path, (), ""), conductor(context)
            clean_drill(
                config,
                self.mirror,
                equipment,
                started_by=by,
                print_line=lambda line: self.log.info("%s", escape_invisible_lines(line)),
            )
