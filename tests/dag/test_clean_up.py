"""The line that keeps Airflow's database small, as the documentation has it."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "install.md"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def runs_of(dag: str) -> set[str]:
    """Ids of its runs from long ago that are still there."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as database:
        of_old = select(DagRun.run_id).where(DagRun.dag_id == dag, DagRun.start_date < LONG_AGO + timedelta(days=9))
        return set(database.scalars(of_old))


def test_the_documented_line_takes_old_syncs_and_nothing_that_is_evidence(airflow_database: None) -> None:
    from airflow.cli.cli_parser import get_parser
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunType
    from sqlalchemy import func, select

    with create_session() as database:
        for dag in ("mirror_watch", "mirror_failover", "mirror_replicate"):
            for day in range(3):
                when = LONG_AGO + timedelta(days=day)
                kind = DagRunType.SCHEDULED if dag == "mirror_watch" else DagRunType.MANUAL
                run = DagRun(dag_id=dag, run_id=f"old-{day}", run_type=kind, logical_date=when, start_date=when)
                run.state = DagRunState.SUCCESS
                database.add(run)
    (line,) = re.findall(r"^airflow (db clean .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    words = shlex.split(re.sub(r"\$\(.*\)", (LONG_AGO + timedelta(days=9)).isoformat(), line))

    arguments = get_parser().parse_args(words)
    arguments.func(arguments)

    assert runs_of("mirror_watch") <= {"old-2"}
    with create_session() as database:
        left = database.scalar(select(func.count()).where(DagRun.dag_id == "mirror_watch"))
        assert left, "the schedule goes on from the newest one"
    assert runs_of("mirror_failover") == runs_of("mirror_replicate") == {"old-0", "old-1", "old-2"}
