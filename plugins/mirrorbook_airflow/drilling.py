"""Drills by Airflow: one task goes the whole way, another one takes away what it leaves, also when it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirror_core.model.run import Mode
from mirror_core.model.text import visible_lines
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirrors import config_path, find_mirror
from mirrorbook_airflow.operators import MirrorOperator
from mirrorbook_airflow.runbook import conductor
from mirrorbook_airflow.services import services

if TYPE_CHECKING:
    from airflow.sdk import Context


class DrillMirror(MirrorOperator):
    """Go through a failover of what stands for this mirror."""

    def execute(self, context: Context) -> dict[str, str]:
        from mirror_core.runbook.drill import drill

        with airflow_errors():
            link, _ = find_mirror(self.mirror)
            mode, by = Mode(context["params"]["mode"]), conductor(context)
            found = drill(
                link.config, self.mirror, mode, services(link.config.path, (), ""), started_by=by, say=self.say
            )
        one = found.drilled
        measured = "not measured" if one.measured_s is None else f"{one.measured_s:.1f}"
        group = found.group
        again = group.untried or f"{group.repeated} record(s) read again, {group.skipped} skipped"
        self.log.info("%s s without writes, predicted were %s; lost %s", measured, one.predicted, found.lost)
        self.log.info("its group: %s; predicted: %s", visible_lines(again), group.predicted)
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
        self.log.info("%s", visible_lines(words))


class CleanDrill(MirrorOperator):
    """Take away what a drill of this mirror has left, if anything."""

    def execute(self, context: Context) -> None:
        from mirror_core.runbook.drill_clean import clean
        from mirror_core.state.link import configured

        with airflow_errors():
            config = configured(config_path(self.mirror))  # the mirror may have been deleted meanwhile
            equipment, by = services(config.path, (), ""), conductor(context)
            clean(
                config,
                self.mirror,
                equipment,
                started_by=by,
                say=lambda line: self.log.info("%s", visible_lines(line)),
            )
