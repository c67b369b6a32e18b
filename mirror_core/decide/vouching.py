"""How much of what a run promoted its certificates cover.

Without the source there is nothing else to compare with. Certificates are compared with the destination after
promotion: applications write already, so a finding cannot stop the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.parity import Row
from mirror_core.decide.view import some
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.model.run import Evidence, StepRecord

NONE: Final = "none"
UNKNOWN: Final = "unknown"
VERDICT: Final = "certificates"
PROVED: Final = "proved_by_certificates"
LEFT: Final = "not_proved"
WHY: Final = "not_proved_because"
OTHER: Final = "not_as_copied"
WHERE: Final = "certificates_read_from"
PAGE: Final = "certificates_report"
AGAIN: Final = "to_prove_more"
REASONS: Final = 5

_NOTHING: Final[Mapping[Partition, str]] = MappingProxyType({})

Spans = tuple[tuple[Offset, Offset], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    held: int
    proved: int
    left: Spans


def parts(logs: Mapping[Partition, tuple[Offset, Offset]], rows: Iterable[Row]) -> dict[Partition, Part]:
    equal: dict[Partition, list[tuple[Offset, Offset]]] = {}
    for row in rows:
        if row.chunk >= 0 and row.equal:
            equal.setdefault(row.partition, []).append((row.start, row.end))
    return {p: _part(start, end, sorted(equal.get(p, ()))) for p, (start, end) in sorted(logs.items())}


def _part(start: Offset, end: Offset, equal: Sequence[tuple[Offset, Offset]]) -> Part:
    left, reached = list[tuple[Offset, Offset]](), start
    for first, behind in equal:
        if reached < min(first, end):
            left.append((reached, min(first, end)))
        reached = max(reached, min(behind, end))
    if reached < end:
        left.append((reached, end))
    held = max(0, end - start)
    return Part(held=held, proved=held - sum(behind - first for first, behind in left), left=tuple(left))


def compared(
    found: Mapping[Partition, Part],
    result: ParityResult,
    *,
    altered: Sequence[str] = (),
    left_out: Mapping[Partition, str] = _NOTHING,
    unmarked: Sequence[Partition] = (),
) -> Evidence:
    """`altered`: certificate files that were changed; `left_out`: not compared, and why; `unmarked`:
    partitions without a last mirrored offset, where it is unknown which records were copied.
    """
    held, proved = sum(part.held for part in found.values()), sum(part.proved for part in found.values())
    short = {p: part for p, part in found.items() if part.left}
    # One that is whole in what was compared is no proof of a mirror of which something was not.
    gone = sorted(left_out.keys() - found.keys())
    passed = result.verdict is Verdict.PASSED and held > 0 and not short and not gone and not unmarked
    failed = result.verdict is Verdict.FAILED
    verdict = Verdict.FAILED if failed else Verdict.PASSED if passed else Verdict.INDETERMINATE
    return {
        VERDICT: verdict.value,
        PROVED: f"{proved} of {held} offsets",
        LEFT: some([*_short(short), *_unseen(gone, unmarked)]) or NONE,
        WHY: NONE if passed else _first([*result.reasons, *(f"{p} {why}" for p, why in left_out.items())]) or NONE,
        OTHER: _first(_other(result, altered)) or NONE,
    }


def unknown(why: str) -> Evidence:
    return {VERDICT: Verdict.INDETERMINATE.value, PROVED: UNKNOWN, LEFT: UNKNOWN, WHY: why, OTHER: NONE}


def as_copied(steps: Iterable[StepRecord]) -> bool:
    return of_run(steps).get(OTHER, NONE) == NONE


def _short(found: Mapping[Partition, Part]) -> Iterator[str]:
    for partition, part in found.items():
        spans = some(f"[{first}, {behind})" for first, behind in part.left)
        yield f"{partition}: {part.held - part.proved} of {part.held} offsets, {spans}"


def _unseen(gone: Iterable[Partition], unmarked: Iterable[Partition]) -> Iterator[str]:
    yield from (f"{partition}: all of it" for partition in gone)
    yield from (f"{partition}: its last mirrored offset is not known" for partition in unmarked)


def _other(result: ParityResult, altered: Sequence[str]) -> Iterator[str]:
    yield from (f"{one.partition}: {one.detail}" for one in result.findings)
    yield from (f"certificate {path} is not as it was written" for path in altered)


def _first(lines: Iterable[str]) -> str:
    listed = list(lines)
    more = f"; and {len(listed) - REASONS} more" if len(listed) > REASONS else ""
    return "; ".join(listed[:REASONS]) + more


def in_full(seen: Evidence) -> bool:
    return seen.get(VERDICT) == Verdict.PASSED


def of_run(steps: Iterable[StepRecord]) -> Evidence:
    return next((s.evidence for s in steps if s.step == "report" and VERDICT in s.evidence), {})


class NotAsCopied(MirrorError):
    """A run is done, and what it promoted differs from its certificates."""


def refuse_other(*runs: tuple[str, Iterable[StepRecord]]) -> None:
    """NotAsCopied if a run's report shows a mismatch: it must not count as success."""
    told = {run: of_run(steps) for run, steps in runs}
    bad = {run: seen for run, seen in told.items() if seen.get(OTHER, NONE) != NONE}
    if bad:
        lines = (f"run {run}: {seen[OTHER]}. All differences: {seen.get(PAGE)}" for run, seen in bad.items())
        raise NotAsCopied(
            f"{'; '.join(lines)}. The run is done and applications write, but what was promoted is not what its "
            "certificates say. Find out who could write there, or to the certificates, before you trust these records"
        )


def sentence(seen: Evidence) -> str:
    if not seen:
        return UNKNOWN
    proved, left, why = (seen.get(name, UNKNOWN) for name in (PROVED, LEFT, WHY))
    other = seen.get(OTHER, NONE)
    if other != NONE:
        return f"NOT AS IT WAS COPIED: {other}. {proved} are as they were copied"
    if in_full(seen):
        return f"{proved} are as they were copied"
    if proved == UNKNOWN:
        return f"{UNKNOWN}: {why}"
    return f"{proved} are as they were copied; not proved: {left} ({why})"
