"""What a run's audit log concludes, and which flaws it has. Judged by its entries and its plan only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from mirror_core.decide import vouching
from mirror_core.model.chronicle import BEGINNING, Entry, Kind, hash_of
from mirror_core.model.parity import Verdict
from mirror_core.model.run import Mode, Plan, RunKind, RunState, StepRecord, StepState, is_hash_of

NOT_COMPARED: Final = "not_compared"
BOTH_EMPTY: Final = "neither side held a record"
"""Verdict of step parity when both logs were empty and had equal bounds."""
NONE: Final = "none"


class Conclusion(StrEnum):
    """How a run ended, as far as its chronicle shows."""

    PROVED = "moved, and proved equal"
    """All that was promoted was compared with the source, up to its end behind the fence."""
    UNPROVED = "moved; not proved equal"
    """By decision, since the source was lost, or partitions had FAILED; or since nothing was there to be compared."""
    HOME = "home"
    ABORTED = "aborted"
    SUPERSEDED = "another run went on from it"
    UNFINISHED = "not finished"


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that cannot be so."""

    where: str
    """`entry 7`, or a file's name."""
    what: str


def holds_contents(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return _SALVAGE.fullmatch(folder) is not None and rest not in ("_salvage.json", "_report.html")


_SALVAGE: Final = re.compile(r"_?salvage(-\d+)?(\.incomplete)?")


def concluded(entries: Sequence[Entry], plan: Plan) -> tuple[Conclusion, str]:
    """The conclusion, and why it is no stronger. Expects entries without flaws."""
    ends = [entry for entry in entries if entry.kind is Kind.ENDED]
    state = ends[-1].body.get("state") if ends else None
    if state == RunState.ABORTED:
        return Conclusion.ABORTED, ""
    if state == RunState.SUPERSEDED:
        return Conclusion.SUPERSEDED, str(ends[-1].body.get("note", ""))
    if state != RunState.DONE:
        return Conclusion.UNFINISHED, ""
    if plan.kind is RunKind.FAILBACK:
        return Conclusion.HOME, ""
    if plan.mode is Mode.UNPLANNED:
        before = _seen(entries, "record_lmo").get("compared_before")
        compared = f"; {before} had been compared before" if before else ""
        seen = _seen(entries, "report")
        vouched = f"; certificates: {vouching.sentence(seen)}" if vouching.VERDICT in seen else ""
        return Conclusion.UNPROVED, f"the source was lost: there was nothing to compare with{compared}{vouched}"
    gate = _seen(entries, "parity")
    if gate.get("verdict") == BOTH_EMPTY:
        return Conclusion.UNPROVED, "neither side held a record: where their logs begin and end was all to compare"
    if gate.get("verdict") != Verdict.PASSED:
        return Conclusion.UNPROVED, "step parity says nothing of a comparison that passed"
    if not _number(gate.get("records_in_all")) or not _number(gate.get("partitions")):
        return Conclusion.UNPROVED, "nothing was compared: the sample is empty"
    if (as_it_was := gate.get(NOT_COMPARED, NONE)) != NONE:
        return Conclusion.UNPROVED, f"promoted as they were, and not compared: {as_it_was}"
    return Conclusion.PROVED, ""


def flaws(entries: Sequence[Entry], plan: Plan, plan_sha256: str) -> Iterator[Flaw]:
    if not entries or entries[0].kind is not Kind.BEGUN:
        yield Flaw("entry 0", "a chronicle begins with the run's beginning, and this one doesn't")
    steps = _Steps(tuple(step.name for step in plan.steps))
    ended = filed = False
    for entry in entries:
        where = f"entry {entry.n}"
        if entry.kind is Kind.FILE:
            filed = True
            continue
        if filed:
            yield Flaw(where, f"{entry.kind}, and files are told of last")
        if ended:
            yield Flaw(where, f"{entry.kind}, and the run had ended before")
        match entry.kind:
            case Kind.BEGUN:
                yield from (Flaw(where, what) for what in _approval(entry, plan, plan_sha256))
            case Kind.STEP:
                yield from (Flaw(where, what) for what in steps.take(entry))
            case Kind.ENDED:
                ended = True
                if entry.body.get("state") == RunState.DONE and steps.left:
                    yield Flaw(where, f"the run is done, and step {steps.left[0]} is not")
            case Kind.CONDUCTED | Kind.AGREED | Kind.ABORTING:
                pass


def _approval(entry: Entry, plan: Plan, plan_sha256: str) -> Iterator[str]:
    if entry.n:
        yield "a run begins once"
    if entry.body.get("plan_sha256") != plan_sha256:
        yield "the plan that lies beside is another one than the run began with"
    if not is_hash_of(str(entry.body.get("plan_hash")), plan.hash):
        yield f"what was approved is plan {entry.body.get('plan_hash')}, and the plan's hash is {plan.hash}"
    for name, value in (("mirror", plan.mirror), ("kind", plan.kind), ("mode", plan.mode)):
        if entry.body.get(name) != value:
            yield f"{name} is {entry.body.get(name)!r}, and the plan's {value!r}"


class _Steps:
    def __init__(self, left: tuple[str, ...]) -> None:
        self.left = left
        self._last: StepRecord | None = None

    def take(self, entry: Entry) -> Iterator[str]:
        try:
            step = msgspec.convert(entry.body, StepRecord)
        except msgspec.ValidationError as error:
            yield f"not a step: {error}"
            return
        before, self._last = self._last, step
        if step.run != entry.run:
            yield f"a step of run {step.run}"
        if not self.left or step.step != self.left[0]:
            due = f"step {self.left[0]} is due" if self.left else "all steps are done"
            yield f"step {step.step}, and {due}"
            return
        if step.state is StepState.STARTED:
            tried = before.attempt if before is not None and before.step == step.step else 0
            if step.attempt != tried + 1:
                yield f"attempt {step.attempt} of step {step.step} after attempt {tried}"
            return
        if before is None or (before.step, before.attempt, before.state) != (
            step.step,
            step.attempt,
            StepState.STARTED,
        ):
            yield f"step {step.step} is {step.state}, and this attempt did not begin"
        if step.state is StepState.DONE:
            self.left = self.left[1:]


def broken_links(entries: Sequence[Entry], lines: Sequence[str], run: str) -> Iterator[Flaw]:
    """Where the hash chain is broken, or lines belong to another run."""
    before: str = BEGINNING
    for number, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        where = f"entry {number}"
        if entry.run != run:
            yield Flaw(where, f"it is of run {entry.run}")
        if entry.n != number:
            yield Flaw(where, f"it says that it is entry {entry.n}")
        if entry.before != before:
            yield Flaw(where, "the entry before it was altered, moved or taken out, or this one was")
        before = hash_of(line)


def _seen(entries: Sequence[Entry], step: str) -> Mapping[str, Any]:
    found = [e.body for e in entries if e.kind is Kind.STEP and e.body.get("step") == step]
    evidence = found[-1].get("evidence") if found else None
    return evidence if isinstance(evidence, dict) else _NOTHING


_NOTHING: Final[Mapping[str, Any]] = {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
