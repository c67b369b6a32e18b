"""The first lines of a run's page say what is known at its own end, not what was foretold."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.evidence.run_report import answer_questions
from mirror_core.model.figures import FigureKey, FigureValue
from mirror_core.model.forecast import TransactionArrival
from mirror_core.model.run import RunMode, StepRecord, StepState
from tests.support.evidence_desk import plan
from tests.support.memory_state import run_of

RUN = run_of("r", plan(mode=RunMode.UNPLANNED))
SEEN: dict[str, FigureValue] = {
    FigureKey.CUT_TRANSACTIONS: 1,
    FigureKey.DOUBTFUL_TRANSACTIONS: {"tx": TransactionArrival.PARTIAL},
}
RECORDED = StepRecord(
    run="r", step="record_lmo", state=StepState.DONE, attempt=1, started_ms=2, evidence={"partitions": 3, **SEEN}
)


def test_transactions_are_told_where_the_copy_has_ended() -> None:
    said = dict(answer_questions(RUN, [RECORDED], "east", "west"))
    assert said["Transactions cut in half, of those seen"] == "1"
    assert said["Transactions in doubt, tx"] == "cut in half"
    assert "partitions" not in {key.lower() for key in said}
    failed = replace(RECORDED, state=StepState.FAILED)
    assert not [key for key in dict(answer_questions(RUN, [failed], "east", "west")) if key.startswith("Transactions")]
