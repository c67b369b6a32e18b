"""What a run's audit log concludes, and its flaws, from its entries and the plan alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from mirror_core.decide import certificate_coverage
from mirror_core.model.audit_log import FIRST_LINE_HASH, AuditEntry, AuditEntryKind, hash_line
from mirror_core.model.figures import FigureKey, format_share, list_values
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import Plan, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState, is_hash_of

BOTH_EMPTY_VERDICT: Final = "both_empty"
"""Verdict of step parity when both logs were empty and had equal bounds."""


class RunConclusion(StrEnum):
    """How a run ended, as far as its audit log shows."""

    VERIFIED = "moved, and proved equal"
    """All that was promoted was compared with the source, up to its end behind the fence; Mirrorbook's own heartbeats
    may be left out.
    """
    UNVERIFIED = "moved; not proved equal"
    """By decision, since the source was lost, or partitions had FAILED; or since nothing was there to be compared."""
    FAILED_BACK = "home"
    ABORTED = "aborted"
    SUPERSEDED = "another run went on from it"
    UNFINISHED = "not finished"


@dataclass(frozen=True, slots=True)
class AuditFlaw:
    """Something that cannot be so."""

    where: str
    """`entry 7`, or a file's name."""
    what: str


def has_topic_contents(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return _SALVAGE_FOLDER.fullmatch(folder) is not None and rest not in ("_salvage.json", "_report.html")


_SALVAGE_FOLDER: Final = re.compile(r"_?salvage(-\d+)?(\.incomplete)?")


def conclude_run(entries: Sequence[AuditEntry], plan: Plan) -> tuple[RunConclusion, str]:
    """The conclusion, and why it is no stronger. Expects entries without flaws."""
    ends = [entry for entry in entries if entry.kind is AuditEntryKind.ENDED]
    state = ends[-1].body.get("state") if ends else None
    if state == RunState.ABORTED:
        return RunConclusion.ABORTED, ""
    if state == RunState.SUPERSEDED:
        return RunConclusion.SUPERSEDED, str(ends[-1].body.get("note", ""))
    if state != RunState.DONE:
        return RunConclusion.UNFINISHED, ""
    if plan.kind is RunKind.FAILBACK:
        return RunConclusion.FAILED_BACK, ""
    if plan.mode is RunMode.UNPLANNED:
        recorded = _get_step_evidence(entries, "record_lmo")
        compared_text = f"; {format_compared(recorded)} had been compared before" if _has_compared(recorded) else ""
        report_evidence = _get_step_evidence(entries, "report")
        certificate_text = (
            f"; certificates: {certificate_coverage.format_coverage(report_evidence)}"
            if FigureKey.CERTIFICATES_VERDICT in report_evidence
            else ""
        )
        return (
            RunConclusion.UNVERIFIED,
            f"the source was lost: there was nothing to compare with{compared_text}{certificate_text}",
        )
    gate = _get_step_evidence(entries, "parity")
    if gate.get(FigureKey.PARITY_VERDICT) == BOTH_EMPTY_VERDICT:
        return RunConclusion.UNVERIFIED, "neither side held a record: where their logs begin and end was all to compare"
    if gate.get(FigureKey.PARITY_VERDICT) != ParityVerdict.PASSED:
        return RunConclusion.UNVERIFIED, "step parity says nothing of a comparison that passed"
    if not _to_count(gate.get("records_in_all")) or not _to_count(gate.get("partitions")):
        return RunConclusion.UNVERIFIED, "nothing was compared: the sample is empty"
    if not_compared := list_values(gate, FigureKey.NOT_COMPARED):
        return RunConclusion.UNVERIFIED, f"promoted as they were, and not compared: {', '.join(not_compared)}"
    heartbeats = FigureKey.HEARTBEATS_NOT_COMPARED in gate
    return RunConclusion.VERIFIED, "not compared: Mirrorbook's own heartbeats" if heartbeats else ""


def format_compared(evidence: StepEvidence) -> str:
    return format_share(evidence, FigureKey.COMPARED_BEFORE_OFFSETS, FigureKey.MIRRORED_OFFSETS)


def _has_compared(evidence: StepEvidence) -> bool:
    return evidence.get(FigureKey.COMPARED_BEFORE_OFFSETS) is not None


def find_audit_flaws(entries: Sequence[AuditEntry], plan: Plan, plan_sha256: str) -> Iterator[AuditFlaw]:
    if not entries or entries[0].kind is not AuditEntryKind.BEGUN:
        yield AuditFlaw("entry 0", "a chronicle begins with the run's beginning, and this one doesn't")
    step_order = _StepOrder(tuple(step.name for step in plan.steps))
    has_ended = has_files = False
    for entry in entries:
        location = f"entry {entry.n}"
        if entry.kind is AuditEntryKind.FILE:
            has_files = True
            continue
        if has_files:
            yield AuditFlaw(location, f"{entry.kind}, and files are told of last")
        if has_ended:
            yield AuditFlaw(location, f"{entry.kind}, and the run had ended before")
        match entry.kind:
            case AuditEntryKind.BEGUN:
                yield from (AuditFlaw(location, problem) for problem in _check_beginning(entry, plan, plan_sha256))
            case AuditEntryKind.STEP:
                yield from (AuditFlaw(location, problem) for problem in step_order.check_entry(entry))
            case AuditEntryKind.ENDED:
                has_ended = True
                if entry.body.get("state") == RunState.DONE and step_order.remaining:
                    yield AuditFlaw(location, f"the run is done, and step {step_order.remaining[0]} is not")
            case AuditEntryKind.CONDUCTOR_CHANGED | AuditEntryKind.STOP_CONFIRMED | AuditEntryKind.ABORTING:
                pass


def _check_beginning(entry: AuditEntry, plan: Plan, plan_sha256: str) -> Iterator[str]:
    if entry.n:
        yield "a run begins once"
    if entry.body.get("plan_sha256") != plan_sha256:
        yield "the plan that lies beside is another one than the run began with"
    if not is_hash_of(str(entry.body.get("plan_hash")), plan.hash):
        yield f"what was approved is plan {entry.body.get('plan_hash')}, and the plan's hash is {plan.hash}"
    for name, value in (("mirror", plan.mirror), ("kind", plan.kind), ("mode", plan.mode)):
        if entry.body.get(name) != value:
            yield f"{name} is {entry.body.get(name)!r}, and the plan's {value!r}"


class _StepOrder:
    def __init__(self, remaining: tuple[str, ...]) -> None:
        self.remaining = remaining
        self._previous: StepRecord | None = None

    def check_entry(self, entry: AuditEntry) -> Iterator[str]:
        try:
            step = msgspec.convert(entry.body, StepRecord)
        except msgspec.ValidationError as error:
            yield f"not a step: {error}"
            return
        previous, self._previous = self._previous, step
        if step.run != entry.run:
            yield f"a step of run {step.run}"
        if not self.remaining or step.step != self.remaining[0]:
            due_text = f"step {self.remaining[0]} is due" if self.remaining else "all steps are done"
            yield f"step {step.step}, and {due_text}"
            return
        if step.state is StepState.STARTED:
            earlier_attempts = previous.attempt if previous is not None and previous.step == step.step else 0
            if step.attempt != earlier_attempts + 1:
                yield f"attempt {step.attempt} of step {step.step} after attempt {earlier_attempts}"
            return
        if previous is None or (previous.step, previous.attempt, previous.state) != (
            step.step,
            step.attempt,
            StepState.STARTED,
        ):
            yield f"step {step.step} is {step.state}, and this attempt did not begin"
        if step.state is StepState.DONE:
            self.remaining = self.remaining[1:]


def find_broken_links(entries: Sequence[AuditEntry], lines: Sequence[str], run: str) -> Iterator[AuditFlaw]:
    previous_hash: str = FIRST_LINE_HASH
    for number, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        location = f"entry {number}"
        if entry.run != run:
            yield AuditFlaw(location, f"it is of run {entry.run}")
        if entry.n != number:
            yield AuditFlaw(location, f"it says that it is entry {entry.n}")
        if entry.before != previous_hash:
            yield AuditFlaw(location, "the entry before it was altered, moved or taken out, or this one was")
        previous_hash = hash_line(line)


def _get_step_evidence(entries: Sequence[AuditEntry], step: str) -> Mapping[str, Any]:
    step_bodies = [e.body for e in entries if e.kind is AuditEntryKind.STEP and e.body.get("step") == step]
    evidence = step_bodies[-1].get("evidence") if step_bodies else None
    return evidence if isinstance(evidence, dict) else _NO_EVIDENCE


_NO_EVIDENCE: Final[Mapping[str, Any]] = {}


def _to_count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
