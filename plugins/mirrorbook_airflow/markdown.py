"""A plan as the Markdown of an approval page. Pure.

A page of more than about a hundred rows is slow to show: long lists are cut, and say so. Airflow strips HTML there, and
makes links of whatever looks like one. Names of groups and principals are anybody's: none may become more than text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

from mirror_core.decide.drills import FORECAST_FIGURES
from mirror_core.decide.steps import list_standstill_steps
from mirror_core.model.config_sections import OWNER_KEY
from mirror_core.model.run import Plan, Run, RunKind, StepEvidence, StepRecord, shorten_hash
from mirror_core.model.text import escape_invisible

MAX_PARTITIONS: Final = 50
MAX_GROUPS: Final = 20
MAX_LINES: Final = 15
MAX_RECOVERY: Final = 90
LEAST: Final = 5
"""Rows of a table, however many plans share the page."""
PROVE: Final = "prove"
"""The step behind which a person is asked once more."""
UNKNOWN: Final = "unknown"

_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#!|~&$]")
_LIST: Final = re.compile(r"(?:[-+=]|\d+(?=[.)]))")
_LINK: Final = re.compile(r"://|www\.|@", re.IGNORECASE)


def set_markdown(name: str, order: str, joint_hash: str, plans: Sequence[Plan]) -> str:
    """The same of several plans, which are approved together. Each gets its share of the rows."""
    mirrors = ", ".join(_code(plan.mirror) for plan in plans)
    head = (
        f"**Fail over set {_code(name)}**, {order.replace('_', ' ')}: {mirrors}. All plans together are "
        f"**{shorten_hash(joint_hash)}**: approving approves exactly these; when the state of one of them has changed, "
        "none is run. Rejecting them leaves everything as it is."
    )
    return "\n\n---\n\n".join([head, *(plan_markdown(plan, share=len(plans)) for plan in plans)])


def plan_markdown(plan: Plan, share: int = 1) -> str:
    """Everything that a person needs in order to say yes or no, most important first. `share`: as one of so many."""
    verb, figures = "Fail over" if plan.kind is RunKind.FAILOVER else "Fail back", dict(plan.figures)
    owner = figures.pop(OWNER_KEY, "")
    parts = [
        f"**{verb} mirror {_code(plan.mirror)}**, {plan.mode}. Plan **{shorten_hash(plan.hash)}**: approving approves "
        "exactly this; when the state it was made from has changed, it is not run. Rejecting it leaves everything "
        "as it is.",
        f"Owner: {_cell(owner)}" if owner else "",
        *_bullets("Warnings", plan.warnings),
        *_bullets("Not known", plan.unknown),
        _table(("what it costs, by what is known", "now"), _cells(figures.items())),
        _table(("step", "what is done", ""), _steps(plan)),
    ]
    if plan.strategies:
        parts.append(_table(("topic", "strategy"), _cells(sorted(plan.strategies.items())), MAX_PARTITIONS))
    parts.append(_table(("partition", "state"), _cells(plan.partitions.items()), max(LEAST, MAX_PARTITIONS // share)))
    parts.append(_table(("consumer group", "progress"), _cells(plan.groups.items()), max(LEAST, MAX_GROUPS // share)))
    parts.append(_table(("right given at promotion",), _cells((r,) for r in plan.rights or ()), MAX_GROUPS // share))
    return "\n\n".join(part for part in parts if part)


def proved_markdown(proved: Iterable[tuple[Run, Sequence[StepRecord]]], root: str) -> str:
    """What a person needs who says that applications may be stopped now: what the proof of each run found, by its steps
    so far. `root`: path of the DR page."""
    runs = list(proved)
    parts = [_proved(run, next((s.evidence for s in steps if s.step == PROVE), {}), root) for run, steps in runs]
    if any(step.step in list_standstill_steps(RunKind.FAILOVER) for _, steps in runs for step in steps):
        end = "**Applications are stopped already.** Approve goes on; Reject gives up what can still be given up."
    else:
        end = (
            "**Approve** stops the applications now, until they may write on the other side. **Reject** gives "
            f"{'the runs' if len(runs) > 1 else 'the run'} up: nobody has been stopped."
        )
    if any(run.failback_run for run, _ in runs):
        end += " The failback that this is a part of stays open, then: clear its task, or abort it."
    return "\n\n".join([*parts, end])


def _proved(run: Run, evidence: StepEvidence, root: str) -> str:
    said = {name: _cell(str(value)) for name, value in evidence.items()}
    amount = f"{said.get('records', UNKNOWN)} record(s)"
    if "partitions" in said:
        amount += f" of {said['partitions']} partition(s)"
    earlier = f", and {said['records_proved_before']} by earlier comparisons" if "records_proved_before" in said else ""
    page = f"{root}/runs/{quote(run.id, safe='')}/files/prove/index.html"
    report = f"; [its report]({page})" if "report" in said else ""
    lines = [
        f"**Mirror {_code(run.plan.mirror)}**, compared while applications write: "
        f"**{said.get('verdict', UNKNOWN)}**. {amount} now{earlier}{report}.",
        f"- Left to compare while they stand still: {said.get('left_for_the_gate', UNKNOWN)}",
        f"- Seconds without writes, predicted: {_cell(run.plan.figures.get(FORECAST_FIGURES[run.plan.mode], UNKNOWN))}",
    ]
    return f"{lines[0]}\n\n{lines[1]}\n{lines[2]}"


def recovery_markdown(mirror: str, plan_hash: str, lines: Sequence[str]) -> str:
    """What a recovery would do, in the words of the command line; what is indented there belongs to the line before."""
    parts = [
        f"**Recover FAILED partitions of mirror {_code(mirror)}**. Plan **{shorten_hash(plan_hash)}**: "
        "approving approves exactly this; when a log has grown since, it is not done.",
        "\n".join(f"{'    ' if line.startswith(' ') else ''}- {_cell(line.strip())}" for line in lines[:MAX_RECOVERY]),
    ]
    if len(lines) > MAX_RECOVERY:
        parts.append(f"... and {len(lines) - MAX_RECOVERY} more lines: `mirrorbook mirror recover --dry-run` has all")
    return "\n\n".join(parts)


def action_markdown(action: str, mirror: str, plan_hash: str, lines: Iterable[str]) -> str:
    """What an action of `mirror_control` would do."""
    head = f"**{_cell(action)}, mirror {_code(mirror)}**. Plan **{shorten_hash(plan_hash)}**: approving approves this."
    return "\n\n".join([head, "\n".join(f"- {_cell(line)}" for line in lines)])


def _steps(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for step in plan.steps:
        yield _cell(step.name), _cell(step.action), "" if step.reversible else "**no way back but a failback**"


def _bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        more = [f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
        yield "\n".join([f"**{title}**", "", *(f"- {_cell(line)}" for line in [*lines[:MAX_LINES], *more])])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], limit: int = MAX_PARTITIONS) -> str:
    """Rows of Markdown, that is of `_cells`."""
    listed = list(rows)
    if not listed:
        return ""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in listed[:limit])]
    if len(listed) > limit:
        lines.append(_row([f"... and {len(listed) - limit} more", *[""] * (len(head) - 1)]))
    return "\n".join(lines)


def _cells(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    return ([_cell(cell) for cell in row] for row in rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    """The text in one line, as nothing but text, in a cell of a table or behind a bullet."""
    line = escape_invisible(text)
    if _LINK.search(line):
        return _code(line)  # links are looked for in text once more after Markdown was read, escaped or not
    escaped = _MARKUP.sub(r"\\\g<0>", line)
    return _LIST.sub(lambda found: _unlisted(found[0]), escaped, count=1) if _LIST.match(escaped) else escaped


def _unlisted(mark: str) -> str:
    """What would begin a list at the start of a line, so that it doesn't."""
    return f"\\{mark}" if not mark.isdecimal() else f"{mark}\\"


def _code(text: str) -> str:
    """As code: shown letter for letter, but for the two that would end it, or the cell around it."""
    inside = escape_invisible(text).replace("`", "\\x60").replace("|", "\\x7c")
    return f"`{inside}`"
