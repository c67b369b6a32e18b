"""A plan as the Markdown of an approval page. Pure.

A page of more than about a hundred rows is slow to show: long lists are cut, and say so. Airflow strips HTML there, and
makes links of whatever looks like one. Names of groups and principals are anybody's: none may become more than text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from mirror_core.decide.drills import FORECAST_KEYS
from mirror_core.decide.steps import list_standstill_steps
from mirror_core.model.figures import FigureKey, Figures, format_figures, format_value, list_figure_rows
from mirror_core.model.run import Plan, Run, RunKind, StepEvidence, StepRecord, shorten_hash
from mirror_core.model.text import escape_invisible, format_count

if TYPE_CHECKING:
    from mirror_core.model.config_sections import MirrorSet

MAX_PARTITIONS: Final = 50
MAX_GROUPS: Final = 20
MAX_LINES: Final = 15
MAX_RECOVERY_LINES: Final = 90
MIN_TABLE_ROWS: Final = 5
"""Also where many plans share the page."""
PROVE_STEP: Final = "prove"
"""The last step before applications stop; then a person is asked again."""
UNKNOWN: Final = "unknown"

_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#!|~&$]")
_LIST: Final = re.compile(r"(?:[-+=]|\d+(?=[.)]))")
_LINK: Final = re.compile(r"://|www\.|@", re.IGNORECASE)


def format_set_plans(mirror_set: MirrorSet, joint_hash: str, plans: Sequence[Plan]) -> str:
    mirrors = ", ".join(_format_code(plan.mirror) for plan in plans)
    head = (
        f"**{_format_verb(plans[0])} set {_format_code(mirror_set.name)}**, {mirror_set.order.replace('_', ' ')}: "
        f"{mirrors}. All plans together are **{shorten_hash(joint_hash)}**: approving approves exactly these; when the "
        "state of one of them has changed, none is run. Rejecting them leaves everything as it is."
    )
    head = "\n\n".join([head, *_format_bullets("Left out", mirror_set.left_out)])
    return "\n\n---\n\n".join([head, *(format_plan(plan, share=len(plans)) for plan in plans)])


def format_plan(plan: Plan, share: int = 1) -> str:
    """`share`: number of plans on the page."""
    figures = dict(plan.figures)
    owner = figures.pop(FigureKey.OWNER, None)
    parts = [
        f"**{_format_verb(plan)} mirror {_format_code(plan.mirror)}**, {plan.mode}. Plan **{shorten_hash(plan.hash)}**"
        ": approving approves exactly this; when the state it was made from has changed, it is not run. Rejecting it "
        "leaves everything as it is.",
        f"Owner: {_escape_text(str(owner))}" if owner else "",
        *_format_bullets("Warnings", plan.warnings),
        *_format_bullets("Not known", plan.unknown),
        _format_table(("what it costs, by what is known", "now"), _escape_rows(list_figure_rows(figures))),
        _format_table(("step", "what is done", ""), _list_step_rows(plan)),
    ]
    if plan.strategies:
        parts.append(
            _format_table(("topic", "strategy"), _escape_rows(sorted(plan.strategies.items())), MAX_PARTITIONS)
        )
    parts.append(
        _format_table(("partition", "state"), _list_rows(plan.partitions), max(MIN_TABLE_ROWS, MAX_PARTITIONS // share))
    )
    parts.append(
        _format_table(("consumer group", "progress"), _list_rows(plan.groups), max(MIN_TABLE_ROWS, MAX_GROUPS // share))
    )
    parts.append(
        _format_table(("right given at promotion",), _escape_rows((r,) for r in plan.rights or ()), MAX_GROUPS // share)
    )
    return "\n\n".join(part for part in parts if part)


def _format_verb(plan: Plan) -> str:
    return "Fail over" if plan.kind is RunKind.FAILOVER else "Fail back"


def format_comparisons(compared_runs: Iterable[tuple[Run, Sequence[StepRecord]]], root: str) -> str:
    """What the comparison of each run found. `root`: path of the DR page."""
    runs = list(compared_runs)
    parts = [
        _format_comparison(run, next((s.evidence for s in steps if s.step == PROVE_STEP), {}), root)
        for run, steps in runs
    ]
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


def _format_amount(count: object, noun: str) -> str:
    return format_count(count, noun) if isinstance(count, int) else f"an unknown number of {noun}s"


def _format_comparison(run: Run, evidence: StepEvidence, root: str) -> str:
    shown = {name: _escape_text(format_value(name, value)) for name, value in evidence.items()}
    amount = _format_amount(evidence.get("records"), "record")
    if "partitions" in shown:
        amount += f" of {_format_amount(evidence['partitions'], 'partition')}"
    earlier = (
        f", and {shown['records_proved_before']} by earlier comparisons" if "records_proved_before" in shown else ""
    )
    page = f"{root}/runs/{quote(run.id, safe='')}/files/prove/index.html"
    report = f"; [its report]({page})" if "report" in shown else ""
    predicted = format_value(FORECAST_KEYS[run.plan.mode], run.plan.predicted_s)
    lines = [
        f"**Mirror {_format_code(run.plan.mirror)}**, compared while applications write: "
        f"**{shown.get(FigureKey.PARITY_VERDICT, UNKNOWN)}**. {amount} now{earlier}{report}.",
        f"- Left to compare while they stand still: {shown.get('left_for_the_gate', UNKNOWN)}",
        f"- Seconds without writes, predicted: {_escape_text(predicted)}",
    ]
    return f"{lines[0]}\n\n{lines[1]}\n{lines[2]}"


def format_recovery(mirror: str, plan_hash: str, lines: Sequence[str]) -> str:
    """What a recovery would do, in the words of the command line; what is indented there belongs to the line before."""
    parts = [
        f"**Recover FAILED partitions of mirror {_format_code(mirror)}**. Plan **{shorten_hash(plan_hash)}**: "
        "approving approves exactly this; when a log has grown since, it is not done.",
        "\n".join(
            f"{'    ' if line.startswith(' ') else ''}- {_escape_text(line.strip())}"
            for line in lines[:MAX_RECOVERY_LINES]
        ),
    ]
    if len(lines) > MAX_RECOVERY_LINES:
        parts.append(
            f"... and {len(lines) - MAX_RECOVERY_LINES} more lines: `mirrorbook mirror recover --dry-run` has all"
        )
    return "\n\n".join(parts)


def format_action(action: str, mirror: str, plan_hash: str, lines: Iterable[str]) -> str:
    plan = f"Plan **{shorten_hash(plan_hash)}**: approving approves this."
    head = f"**{_escape_text(action)}, mirror {_format_code(mirror)}**. {plan}"
    return "\n\n".join([head, "\n".join(f"- {_escape_text(line)}" for line in lines)])


def _list_step_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for step in plan.steps:
        yield (
            _escape_text(step.name),
            _escape_text(step.action),
            "" if step.reversible else "**no way back but a failback**",
        )


def _format_bullets(title: str, lines: Sequence[object]) -> Iterator[str]:
    if lines:
        more = [f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
        yield "\n".join([f"**{title}**", "", *(f"- {_escape_text(str(line))}" for line in [*lines[:MAX_LINES], *more])])


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]], limit: int = MAX_PARTITIONS) -> str:
    """Rows are escaped already."""
    listed = list(rows)
    if not listed:
        return ""
    lines = [_format_row(head), _format_row(["---"] * len(head)), *(_format_row(row) for row in listed[:limit])]
    if len(listed) > limit:
        lines.append(_format_row([f"... and {len(listed) - limit} more", *[""] * (len(head) - 1)]))
    return "\n".join(lines)


def _escape_rows(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    return ([_escape_text(cell) for cell in row] for row in rows)


def _list_rows(figures_by_name: Mapping[str, Figures]) -> Iterator[Sequence[str]]:
    return _escape_rows((name, format_figures(figures)) for name, figures in figures_by_name.items())


def _format_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape_text(text: str) -> str:
    """In one line, escaped for a table cell or a list item."""
    line = escape_invisible(text)
    if _LINK.search(line):
        return _format_code(line)  # links are looked for in text once more after Markdown was read, escaped or not
    escaped = _MARKUP.sub(r"\\\g<0>", line)
    return _LIST.sub(lambda match: _escape_list_mark(match[0]), escaped, count=1) if _LIST.match(escaped) else escaped


def _escape_list_mark(mark: str) -> str:
    return f"\\{mark}" if not mark.isdecimal() else f"{mark}\\"


def _format_code(text: str) -> str:
    """Replaces the two characters that would end the code or the cell."""
    inside = escape_invisible(text).replace("`", "\\x60").replace("|", "\\x7c")
    return f"`{inside}`"
