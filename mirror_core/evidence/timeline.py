"""A run as a picture: bars for attempts, numbered marks for events, and the write block.

Pure, from the audit log. Marks are also listed as text. Much longer stretches, such as a night of waiting, are cut
and labelled with their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from mirror_core.decide.steps import standing_still
from mirror_core.model.chronicle import Entry, Kind
from mirror_core.model.run import Run, StepRecord, StepState

WIDTH: Final = 820
LEAST: Final = 3.0
_TIMES: Final = 4
_CUT_MS: Final = 2_000
_SEAT: Final = 20.0
_APART: Final = 90.0


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    state: StepState


@dataclass(frozen=True, slots=True)
class Lane:
    step: str
    still: bool
    bars: tuple[Bar, ...]
    took: str


@dataclass(frozen=True, slots=True)
class Mark:
    number: int
    x: float
    seat: float
    """Where its number is drawn, not overlapping others."""
    after: str
    bad: bool
    words: str


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    still: tuple[float, float, str] | None
    """(from, to, duration text)"""
    cuts: tuple[Label, ...]
    axis: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class _Attempt:
    step: str
    number: int
    begun_ms: int
    ended_ms: int | None
    state: StepState


def timeline(run: Run, entries: Sequence[Entry]) -> Timeline | None:
    attempts = list(_attempts(entries))
    if not attempts:
        return None
    happened = list(_happened(run, entries))
    moments = sorted(
        {run.started_ms, *(ms for ms, _, _ in happened)}
        | {ms for a in attempts for ms in (a.begun_ms, a.ended_ms) if ms is not None}
    )
    scale = _Scale(moments)
    still = _still(run, attempts)
    return Timeline(
        lanes=tuple(_lanes(run, attempts, scale)),
        marks=tuple(_marks(run, happened, scale)),
        still=None if still is None else (scale.x(still[0]), scale.x(still[1]), _span(still[1] - still[0])),
        cuts=tuple(Label((scale.x(a) + scale.x(b)) / 2, _span(b - a)) for a, b in scale.cut),
        axis=tuple(_axis(run, moments, still, scale)),
    )


def entries_of(lines: Sequence[str]) -> list[Entry]:
    return [msgspec.json.decode(line, type=Entry) for line in lines]


class _Scale:
    def __init__(self, moments: Sequence[int]) -> None:
        stretches = list(pairwise(moments))
        shown, sum_ms, cut = dict[tuple[int, int], float](), 0.0, list[tuple[int, int]]()
        for stretch in sorted(stretches, key=lambda s: s[1] - s[0]):
            took: float = stretch[1] - stretch[0]
            if took > _CUT_MS and took > _TIMES * sum_ms > 0:
                cut.append(stretch)
                took = sum_ms / 2
            shown[stretch] = took
            sum_ms += took
        self.cut = tuple(sorted(cut))
        self._x = {moments[0]: 0.0}
        for stretch in stretches:
            self._x[stretch[1]] = self._x[stretch[0]] + WIDTH * shown[stretch] / sum_ms

    def x(self, ms: int) -> float:
        return round(self._x[ms], 1)


def _attempts(entries: Sequence[Entry]) -> Iterator[_Attempt]:
    """An attempt that another conductor repeated has no end: it lasted at most until then."""
    open_: _Attempt | None = None
    for entry in entries:
        if entry.kind is not Kind.STEP:
            continue
        step = msgspec.convert(entry.body, StepRecord)
        if open_ is not None and step.state is StepState.STARTED:
            yield open_
        open_ = None
        found = _Attempt(step.step, step.attempt, step.started_ms, step.ended_ms, step.state)
        if step.state is StepState.STARTED:
            open_ = found
        else:
            yield found
    if open_ is not None:
        yield open_


def _happened(run: Run, entries: Sequence[Entry]) -> Iterator[tuple[int, bool, str]]:
    last: StepRecord | None = None
    for entry in entries:
        match entry.kind:
            case Kind.BEGUN:
                yield run.started_ms, False, f"approved by {run.approved_by or 'nobody'}, begun by {run.started_by}"
            case Kind.AGREED:
                left = bool(entry.body.get("left_behind"))
                what = _left(entry) if left else "applications may be stopped"
                yield entry.at_ms, left, f"{entry.body.get('by')} said that {what}"
            case Kind.CONDUCTED:
                yield entry.at_ms, False, f"taken over by {entry.by}"
            case Kind.ABORTING:
                yield entry.at_ms, True, f"given up by {entry.by}"
            case Kind.STEP:
                step = msgspec.convert(entry.body, StepRecord)
                if step.state is StepState.FAILED:
                    yield step.ended_ms or step.started_ms, True, f"{step.step} failed: {_short(step.error)}"
                elif step.state is StepState.STARTED and step.attempt > 1:
                    broken = last is not None and last.state is StepState.STARTED
                    why = ", since the one before was broken off" if broken else ""
                    yield step.started_ms, False, f"{step.step}: attempt {step.attempt}{why}"
                last = step
            case Kind.ENDED | Kind.FILE:
                pass


def _marks(run: Run, happened: Sequence[tuple[int, bool, str]], scale: _Scale) -> Iterator[Mark]:
    seat = -_SEAT
    for number, (ms, bad, words) in enumerate(happened, start=1):
        x = scale.x(ms)
        seat = max(x, seat + _SEAT)
        yield Mark(number, x, min(seat, WIDTH), _since(run, ms), bad, words)


def _lanes(run: Run, attempts: Sequence[_Attempt], scale: _Scale) -> Iterator[Lane]:
    timed = standing_still(run.plan.kind, run.plan.mode)
    for name in dict.fromkeys(a.step for a in attempts):
        mine = [a for a in attempts if a.step == name]
        last = mine[-1]
        took = "not ended" if last.ended_ms is None else _span(last.ended_ms - last.begun_ms)
        tries = f", attempt {last.number}" if last.number > 1 else ""
        yield Lane(name, name in timed, tuple(_bar(a, scale) for a in mine), took + tries)


def _bar(attempt: _Attempt, scale: _Scale) -> Bar:
    x = scale.x(attempt.begun_ms)
    end = x if attempt.ended_ms is None else scale.x(attempt.ended_ms)
    width = max(LEAST, round(end - x, 1))
    return Bar(min(x, WIDTH - width), width, attempt.state)


def _still(run: Run, attempts: Sequence[_Attempt]) -> tuple[int, int] | None:
    """From the first attempt at the first of those steps to the last known end."""
    timed = standing_still(run.plan.kind, run.plan.mode)
    if not timed or not (begun := [a.begun_ms for a in attempts if a.step == timed[0]]):
        return None
    inside = [a for a in attempts if a.step in timed]
    return begun[0], max(a.begun_ms if a.ended_ms is None else a.ended_ms for a in inside)


def _axis(run: Run, moments: Sequence[int], still: tuple[int, int] | None, scale: _Scale) -> Iterator[Label]:
    placed = list[float]()
    for ms in (*(still or ()), moments[0], moments[-1]):
        x = scale.x(ms)
        if all(abs(x - other) >= _APART for other in placed):
            placed.append(x)
            yield Label(x, f"+{_since(run, ms)}")


def _span(ms: int) -> str:
    seconds = max(0, ms) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _since(run: Run, ms: int) -> str:
    """4.5 s, or 1:00:04.5."""
    tenths = max(0, ms - run.started_ms) // 100
    minutes, rest = divmod(tenths, 600)
    if minutes < 2:
        return f"{tenths / 10:.1f} s"
    return f"{minutes // 60}:{minutes % 60:02}:{rest / 10:04.1f}"


def _left(entry: Entry) -> str:
    if entry.body.get("step") == "settle":
        return "partitions that too few replicas hold up are left behind"
    return "what the source took may stay there"


def _short(text: str) -> str:
    first = text.splitlines()[0] if text else "no reason was given"
    return first if len(first) <= 160 else f"{first[:157]}..."
