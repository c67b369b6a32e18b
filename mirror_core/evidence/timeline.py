"""A run as a picture. Long waits are cut and labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from mirror_core.decide.steps import list_standstill_steps, list_step_names
from mirror_core.model.audit_log import AuditEntry, AuditEntryKind
from mirror_core.model.run import Run, StepRecord, StepState

TIMELINE_WIDTH: Final = 820
MIN_BAR_WIDTH: Final = 3.0
_CUT_FACTOR: Final = 4
_MIN_CUT_MS: Final = 2_000
_MARK_SPACING: Final = 20.0
_MIN_LABEL_DISTANCE: Final = 90.0


@dataclass(frozen=True, slots=True)
class TimelineBar:
    x: float
    width: float
    state: StepState


@dataclass(frozen=True, slots=True)
class TimelineLane:
    step: str
    still: bool
    bars: tuple[TimelineBar, ...]
    took: str


@dataclass(frozen=True, slots=True)
class TimelineMark:
    number: int
    x: float
    seat: float
    """Where its number is drawn, not overlapping others."""
    after: str
    bad: bool
    words: str


@dataclass(frozen=True, slots=True)
class TimelineLabel:
    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[TimelineLane, ...]
    marks: tuple[TimelineMark, ...]
    still: tuple[float, float, str] | None
    """(from, to, duration text)"""
    cuts: tuple[TimelineLabel, ...]
    axis: tuple[TimelineLabel, ...]


@dataclass(frozen=True, slots=True)
class _Attempt:
    step: str
    number: int
    begun_ms: int
    ended_ms: int | None
    state: StepState


def build_timeline(run: Run, entries: Sequence[AuditEntry]) -> Timeline | None:
    attempts = list(_list_attempts(entries))
    if not attempts:
        return None
    events = list(_list_events(run, entries))
    moments = sorted(
        {run.started_ms, *(ms for ms, _, _ in events)}
        | {ms for a in attempts for ms in (a.begun_ms, a.ended_ms) if ms is not None}
    )
    scale = _TimeScale(moments)
    standstill = _find_standstill(run, attempts)
    return Timeline(
        lanes=tuple(_build_lanes(run, attempts, scale)),
        marks=tuple(_place_marks(run, events, scale)),
        still=None
        if standstill is None
        else (scale.to_x(standstill[0]), scale.to_x(standstill[1]), _format_duration(standstill[1] - standstill[0])),
        cuts=tuple(TimelineLabel((scale.to_x(a) + scale.to_x(b)) / 2, _format_duration(b - a)) for a, b in scale.cut),
        axis=tuple(_place_labels(run, moments, standstill, scale)),
    )


def parse_entries(lines: Sequence[str]) -> list[AuditEntry]:
    return [msgspec.json.decode(line, type=AuditEntry) for line in lines]


class _TimeScale:
    def __init__(self, moments: Sequence[int]) -> None:
        stretches = list(pairwise(moments))
        shown_ms, sum_ms, cut = dict[tuple[int, int], float](), 0.0, list[tuple[int, int]]()
        for stretch in sorted(stretches, key=lambda s: s[1] - s[0]):
            duration_ms: float = stretch[1] - stretch[0]
            if duration_ms > _MIN_CUT_MS and duration_ms > _CUT_FACTOR * sum_ms > 0:
                cut.append(stretch)
                duration_ms = sum_ms / 2
            shown_ms[stretch] = duration_ms
            sum_ms += duration_ms
        self.cut = tuple(sorted(cut))
        self._x = {moments[0]: 0.0}
        for stretch in stretches:
            self._x[stretch[1]] = self._x[stretch[0]] + TIMELINE_WIDTH * shown_ms[stretch] / sum_ms

    def to_x(self, ms: int) -> float:
        return round(self._x[ms], 1)


def _list_attempts(entries: Sequence[AuditEntry]) -> Iterator[_Attempt]:
    """An attempt that another conductor repeated has no end: it lasted at most until then."""
    open_attempt: _Attempt | None = None
    for entry in entries:
        if entry.kind is not AuditEntryKind.STEP:
            continue
        step = msgspec.convert(entry.body, StepRecord)
        if open_attempt is not None and step.state is StepState.STARTED:
            yield open_attempt
        open_attempt = None
        attempt = _Attempt(step.step, step.attempt, step.started_ms, step.ended_ms, step.state)
        if step.state is StepState.STARTED:
            open_attempt = attempt
        else:
            yield attempt
    if open_attempt is not None:
        yield open_attempt


def _list_events(run: Run, entries: Sequence[AuditEntry]) -> Iterator[tuple[int, bool, str]]:
    last_step: StepRecord | None = None
    for entry in entries:
        match entry.kind:
            case AuditEntryKind.BEGUN:
                yield run.started_ms, False, f"approved by {run.approved_by or 'nobody'}, begun by {run.started_by}"
            case AuditEntryKind.STOP_CONFIRMED:
                is_left_behind = bool(entry.body.get("left_behind"))
                subject = _describe_left_behind(entry) if is_left_behind else "applications may be stopped"
                yield entry.at_ms, is_left_behind, f"{entry.body.get('by')} said that {subject}"
            case AuditEntryKind.CONDUCTOR_CHANGED:
                yield entry.at_ms, False, f"taken over by {entry.by}"
            case AuditEntryKind.ABORTING:
                yield entry.at_ms, True, f"given up by {entry.by}"
            case AuditEntryKind.STEP:
                step = msgspec.convert(entry.body, StepRecord)
                if step.state is StepState.FAILED:
                    yield step.ended_ms or step.started_ms, True, f"{step.step} failed: {_shorten(step.error)}"
                elif step.state is StepState.STARTED and step.attempt > 1:
                    broken = last_step is not None and last_step.state is StepState.STARTED
                    suffix = ", since the one before was broken off" if broken else ""
                    yield step.started_ms, False, f"{step.step}: attempt {step.attempt}{suffix}"
                last_step = step
            case AuditEntryKind.ENDED | AuditEntryKind.FILE:
                pass


def _place_marks(run: Run, events: Sequence[tuple[int, bool, str]], scale: _TimeScale) -> Iterator[TimelineMark]:
    seat = -_MARK_SPACING
    for number, (ms, bad, text) in enumerate(events, start=1):
        x = scale.to_x(ms)
        seat = max(x, seat + _MARK_SPACING)
        yield TimelineMark(number, x, min(seat, TIMELINE_WIDTH), _format_since_begin(run, ms), bad, text)


def _build_lanes(run: Run, attempts: Sequence[_Attempt], scale: _TimeScale) -> Iterator[TimelineLane]:
    timed = list_standstill_steps(run.plan.kind, run.plan.mode)
    report_step = list_step_names(run.plan.kind, run.plan.mode)[-1]
    for name in dict.fromkeys(a.step for a in attempts):
        step_attempts = [a for a in attempts if a.step == name]
        last_attempt = step_attempts[-1]
        if last_attempt.ended_ms is not None:
            took = _format_duration(last_attempt.ended_ms - last_attempt.begun_ms)
        else:
            took = "wrote this page" if name == report_step else "not ended"
        tries = f", attempt {last_attempt.number}" if last_attempt.number > 1 else ""
        yield TimelineLane(name, name in timed, tuple(_build_bar(a, scale) for a in step_attempts), took + tries)


def _build_bar(attempt: _Attempt, scale: _TimeScale) -> TimelineBar:
    x = scale.to_x(attempt.begun_ms)
    end = x if attempt.ended_ms is None else scale.to_x(attempt.ended_ms)
    width = max(MIN_BAR_WIDTH, round(end - x, 1))
    return TimelineBar(min(x, TIMELINE_WIDTH - width), width, attempt.state)


def _find_standstill(run: Run, attempts: Sequence[_Attempt]) -> tuple[int, int] | None:
    timed = list_standstill_steps(run.plan.kind, run.plan.mode)
    if not timed or not (begun := [a.begun_ms for a in attempts if a.step == timed[0]]):
        return None
    inside = [a for a in attempts if a.step in timed]
    return begun[0], max(a.begun_ms if a.ended_ms is None else a.ended_ms for a in inside)


def _place_labels(
    run: Run, moments: Sequence[int], standstill: tuple[int, int] | None, scale: _TimeScale
) -> Iterator[TimelineLabel]:
    placed = list[float]()
    for ms in (*(standstill or ()), moments[0], moments[-1]):
        x = scale.to_x(ms)
        if all(abs(x - placed_x) >= _MIN_LABEL_DISTANCE for placed_x in placed):
            placed.append(x)
            yield TimelineLabel(x, f"+{_format_since_begin(run, ms)}")


def _format_duration(ms: int) -> str:
    seconds = max(0, ms) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _format_since_begin(run: Run, ms: int) -> str:
    """4.5 s, or 1:00:04.5."""
    tenths = max(0, ms - run.started_ms) // 100
    minutes, tenths_left = divmod(tenths, 600)
    if minutes < 2:
        return f"{tenths / 10:.1f} s"
    return f"{minutes // 60}:{minutes % 60:02}:{tenths_left / 10:04.1f}"


def _describe_left_behind(entry: AuditEntry) -> str:
    if entry.body.get("step") == "settle":
        return "partitions that too few replicas hold up are left behind"
    return "what the source took may stay there"


def _shorten(text: str) -> str:
    first_line = text.splitlines()[0] if text else "no reason was given"
    return first_line if len(first_line) <= 160 else f"{first_line[:157]}..."
