"""What a plan costs applications, and the question that ends it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mirror_core.cli.command_options import require_confirmation, require_typed_name
from mirror_core.cli.output import format_block, print_line, wrap_text
from mirror_core.decide.approval_rules import count_failed
from mirror_core.decide.run_result import find_uncounted_loss, format_uncounted
from mirror_core.decide.steps import find_no_return_step
from mirror_core.model.figures import FIRST_STEP_TEXT, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast, UncountedReread
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.run import FailbackStrategy, Plan, RunKind, RunMode
from mirror_core.model.text import format_count, format_elapsed


def list_costs(plan: Plan, mirror: Mirror) -> Iterator[tuple[str, str]]:
    forecast = plan.forecast if isinstance(plan.forecast, PlanForecast) else None
    if plan.kind is RunKind.FAILBACK:
        yield "saved, then discarded", f"{_format_discarded(plan.discarded)} that only {mirror.source} has"
        yield from list_recreated(plan, mirror)
        yield "without writes", "0 s now; the failover home has a plan and a question of its own"
    else:
        yield "lost", format_loss(forecast, mirror.source) + format_uncounted(find_uncounted_loss(plan))
        yield "without writes", _format_seconds(plan.mode, forecast, mirror.source)
        yield "read again", _format_read_again(plan, forecast, mirror)
    no_return_step = find_no_return_step(plan.kind, plan.mode)
    yield (
        "no way back",
        f"from step {no_return_step} on" + (", but a failback" if plan.kind is RunKind.FAILOVER else ""),
    )


def list_recreated(plan: Plan, mirror: Mirror) -> Iterator[tuple[str, str]]:
    if recreated := list_topics(plan, FailbackStrategy.RECREATE):
        cost = Finding(
            "topics_recreated",
            mirror.source,
            topics=recreated,
            source=mirror.destination,
            offsets=plan.figures.get(FigureKey.RECREATED_OFFSETS),
            size_bytes=plan.figures.get(FigureKey.RECREATED_BYTES),
        )
        yield f"deleted on {mirror.source}", str(cost)


def list_topics(plan: Plan, *strategies: FailbackStrategy) -> list[str]:
    return sorted(topic for topic, strategy in plan.strategies.items() if strategy in strategies)


def format_loss(forecast: PlanForecast | None, source: ClusterName) -> str:
    if forecast is None:
        return "unknown"
    if forecast.lost_offsets == 0 and not forecast.lost_is_minimum:
        return "nothing"
    least = "an unknown number of offsets" if forecast.lost_offsets is None else _format_at_least(forecast)
    if not forecast.gives_up_source:
        return least
    least = "" if forecast.lost_offsets == 0 else f"{least}, and "  # "at least 0" would be read as 0
    if forecast.unseen_s is None:
        return f"{least}what {source} took since it was last observed: when that was is unknown"
    if forecast.refused_s is not None:
        probable = _format_unseen(forecast, "at")
        return (
            f"{least}what {source} took in the {forecast.taking_s:,.1f} s after it was last observed ({probable});"
            f" it has refused our connections for {format_elapsed(forecast.refused_s)}:"
            " more only if applications still reach it another way"
        )
    probable = _format_unseen(forecast, "if it wrote on at")
    return f"{least}what {source} took in the last {forecast.unseen_s:,.1f} s ({probable}, none once it was down)"


def _format_unseen(forecast: PlanForecast, rate_words: str) -> str:
    copied, taken = forecast.copied_unseen_offsets, forecast.taken_unseen_offsets
    if taken is None:
        return "an unknown number of offsets" + (f", {copied:,} of them copied since" if copied else "")
    less_copied = f", less {copied:,} copied since" if copied else ""
    rate = f"{forecast.offsets_per_s:,.0f}/s"
    if forecast.unseen_offsets is None:
        return f"an unknown number: {copied:,} were copied since, more than the {taken:,} expected at {rate}"
    estimate = f"{taken:,} {rate_words} {rate}"
    return f"about {forecast.unseen_offsets:,}: {estimate}{less_copied}" if copied else f"about {estimate}"


def _format_at_least(forecast: PlanForecast) -> str:
    counted = format_count(forecast.lost_offsets or 0, "offset")
    return f"at least {counted}" if forecast.lost_is_minimum else counted


def _format_seconds(mode: RunMode, forecast: PlanForecast | None, source: ClusterName) -> str:
    predicted = (
        str(Finding("standstill_not_measured", mode=mode))
        if forecast is None or not forecast.basis
        else f"unknown while the copy is behind; the {forecast.basis} had less to copy"
        if forecast.seconds is None
        else f"about {forecast.seconds:.1f} s ({forecast.basis})"
    )
    if mode is RunMode.PLANNED:
        return predicted
    return f"since {source} failed, until promotion; {FIRST_STEP_TEXT}: {predicted}"


def _format_read_again(plan: Plan, forecast: PlanForecast | None, mirror: Mirror) -> str:
    if forecast is None:
        return "unknown"
    most = forecast.max_reread_offsets
    if uncounted_texts := [str(finding) for finding in _list_uncounted(forecast, mirror.destination)]:
        return "; ".join([*uncounted_texts, *([f"others: up to {format_count(most, 'record')}"] if most else [])])
    if not forecast.reread_offsets:
        return str(find_no_reread(plan, mirror))
    if most:
        return f"up to {format_count(most, 'record')} by consumer groups"
    return str(Finding("reread_by_stopped", mirror.source)) if plan.mode is RunMode.PLANNED else "nothing"


def find_no_reread(plan: Plan, mirror: Mirror) -> Finding:
    """Why a plan counts no record that a consumer group reads again."""
    if not mirror.groups:
        return Finding("reread_unsynced", mirror.destination)
    unknown_codes = {"groups_unlisted", "groups_unreported", "destination_facts_unknown"}
    if unknown_codes & {finding.code for finding in (*plan.warnings, *plan.unknown)}:
        return Finding("reread_unlisted", mirror.destination)
    return Finding("reread_by_none", mirror.destination)


def _list_uncounted(forecast: PlanForecast, destination: ClusterName) -> Iterator[Finding]:
    active, uncommitted = (
        [group for group, group_cause in forecast.uncounted_groups.items() if group_cause is cause]
        for cause in (UncountedReread.ACTIVE, UncountedReread.UNCOMMITTED)
    )
    if active:
        yield Finding("reread_by_active", destination, groups=active)
    if uncommitted:
        yield Finding("reread_by_uncommitted", destination, groups=uncommitted)


def _format_discarded(count: int | None) -> str:
    return "an unknown number of offsets" if count is None else f"the records of {format_count(count, 'offset')}"


def print_costs(plan: Plan, mirror: Mirror, *, err: bool = False) -> None:
    for line in format_block(list_costs(plan, mirror)):
        print_line(line, err=err)


def confirm_costs(plan: Plan, mirror: Mirror, question: str, *, yes: bool, as_json: bool) -> None:
    """Costs stand right above the question: the plan is longer than a screen.

    A run that gives up the source is confirmed by the mirror's name.
    """
    if yes:
        return
    print_run_costs([(plan, mirror)], as_json=as_json)
    if plan.mode is RunMode.UNPLANNED:
        require_typed_name(plan.mirror, yes)
    else:
        require_confirmation(question, yes)


def print_run_costs(plans: Iterable[tuple[Plan, Mirror]], *, as_json: bool) -> None:
    for plan, mirror in plans:
        is_planned = plan.mode is RunMode.PLANNED
        texts = [f"{plan.kind.capitalize()} of {plan.mirror}, planned:"] if is_planned else _list_given_up(plan, mirror)
        for line in ["", *(line for text in texts for line in wrap_text(text).split("\n"))]:
            print_line(line, err=as_json)
        print_costs(plan, mirror, err=as_json)


def print_set_costs(plans: Collection[Plan], name: str, *, as_json: bool) -> None:
    print_line("", err=as_json)
    print_line(f"All {format_count(len(plans), 'mirror')} of {name} together:", err=as_json)
    for line in format_block((label, str(cost)) for label, cost in sum_costs(plans)):
        print_line(line, err=as_json)


def sum_costs(plans: Iterable[Plan]) -> Iterator[tuple[str, Finding]]:
    """In all, as far as known."""
    lost, unseen, is_minimum, most, is_partial = 0, 0, False, 0, False
    for plan in plans:
        forecast = plan.forecast
        if not isinstance(forecast, PlanForecast):
            is_minimum = is_partial = True
            continue
        lost += forecast.lost_offsets or 0
        unseen += (forecast.gives_up_source and forecast.unseen_offsets) or 0
        is_minimum |= (
            forecast.lost_offsets is None
            or forecast.lost_is_minimum
            or bool(format_uncounted(find_uncounted_loss(plan)))
        )
        is_minimum |= forecast.gives_up_source and forecast.unseen_offsets is None
        most += forecast.max_reread_offsets
        is_partial |= bool(forecast.uncounted_groups)
    yield "lost", Finding("set_loss", offsets=lost, unseen=unseen, is_minimum=is_minimum)
    yield "read again", Finding("set_reread", most=most, is_partial=is_partial)


def _list_given_up(plan: Plan, mirror: Mirror) -> Iterator[str]:
    warnings = {warning.code: warning for warning in plan.warnings}
    if incomplete := warnings.get("copy_never_complete"):
        yield str(incomplete)
    if warnings.keys() & {"source_answers", "source_answers_partly"}:
        partly, failed = "source_answers" not in warnings, count_failed(plan.warnings)
        yield str(Finding("living_source_given_up", mirror.source, partly=partly, failed=failed))
    yield (
        f"UNPLANNED failover of {plan.mirror}: {mirror.source} is given up, and {mirror.destination} is promoted"
        " with what it has."
    )
    if lost_conductor := warnings.get("conductor_loses_mirror"):
        yield str(lost_conductor)
