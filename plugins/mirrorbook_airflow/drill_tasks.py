"""Drills by Airflow: one task goes the whole way, another one takes away what it leaves, also when it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mirror_core.decide.drills import FORECAST_KEYS, summarize_failed_drills
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.figures import FigureKey, format_value
from mirror_core.model.run import RunMode
from mirror_core.model.text import escape_invisible_lines, format_count
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.asset_events import DRILLED_ALIAS
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import find_mirror, provide_mirror_config
from mirrorbook_airflow.operators import CHANGE_TIMEOUT, MirrorOperator
from mirrorbook_airflow.runbook import format_conductor
from mirrorbook_airflow.worker_services import make_services

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.runbook.drill import DrillOutcome

BOTH_MODES: Final = "both"
"""In place of a mode: planned, then unplanned. What was never drilled has no predicted seconds without writes."""


class DrillMirror(MirrorOperator):
    """Go through a failover of what stands for this mirror, in each mode that was asked for."""

    timeout = CHANGE_TIMEOUT
    alias = DRILLED_ALIAS

    def execute(self, context: Context) -> dict[str, dict[str, str]]:
        from mirror_core.runbook.drill import run_drill

        chosen_mode, started_by = context["params"]["mode"], format_conductor(context)
        results, outcomes = dict[str, dict[str, str]](), dict[RunMode, str | MirrorError]()
        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            equipment = make_services(link.config.path, (), "")
            for mode in (RunMode.PLANNED, RunMode.UNPLANNED) if chosen_mode == BOTH_MODES else (RunMode(chosen_mode),):
                try:
                    outcome = run_drill(
                        link.config, self.mirror, mode, equipment, started_by=started_by, print_line=self.log_line
                    )
                except LostOwnership:
                    raise  # somebody else drills this mirror now: another drill of ours would end that one
                except MirrorError as error:
                    outcomes[mode] = error
                    self.log.error("drill, %s: failed: %s", mode, escape_invisible_lines(str(error)))
                else:
                    results[mode] = self._log_outcome(outcome)
                    outcomes[mode] = f"{results[mode]['measured']} s without writes, lost {outcome.lost}"
            failure = summarize_failed_drills(self.mirror, outcomes)
            if failure is not None:
                raise failure
        self.emit_done(context, at_ms=now_ms(), modes={mode: result["run"] for mode, result in results.items()})
        return results

    def _log_outcome(self, outcome: DrillOutcome) -> dict[str, str]:
        drill = outcome.drilled
        measured = "not measured" if drill.measured_s is None else f"{drill.measured_s:.1f}"
        group = outcome.group
        predicted, group_predicted = (
            format_value(FORECAST_KEYS[drill.mode], drill.predicted_s),
            format_value(FigureKey.READ_AGAIN_MOST, group.predicted_most),
        )
        repeated = format_count(group.repeated or 0, "record")
        read_again = group.untried or f"{repeated} read again, {group.skipped} skipped"
        self.log.info(
            "%s: %s s without writes, predicted were %s; lost %s", drill.mode, measured, predicted, outcome.lost
        )
        self.log.info("its group: %s; predicted: %s", escape_invisible_lines(read_again), group_predicted)
        return {
            "run": drill.run,
            "measured": measured,
            "predicted": predicted,
            "lost": str(outcome.lost),
            "group": read_again,
            "group_predicted": group_predicted,
        }

    def log_line(self, line: str) -> None:
        """Into the task's log, which shows colours: names in it are anybody's."""
        self.log.info("%s", escape_invisible_lines(line))


class CleanDrill(MirrorOperator):
    """Take away what a drill of this mirror has left, if anything."""

    timeout = CHANGE_TIMEOUT

    def execute(self, context: Context) -> None:
        from mirror_core.runbook.drill import clean_drill
        from mirror_core.state.mirror_link import load_clusters

        with airflow_errors():
            config = load_clusters(provide_mirror_config(self.mirror))  # the mirror may have been deleted meanwhile
            equipment, started_by = make_services(config.path, (), ""), format_conductor(context)
            clean_drill(
                config,
                self.mirror,
                equipment,
                started_by=started_by,
                print_line=lambda line: self.log.info("%s", escape_invisible_lines(line)),
            )
