"""`mirrorbook mirror change`, `mirrorbook mirror split`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    DryRunOption,
    ExcludeGroupsOption,
    ExcludePrincipalsOption,
    ExcludeRightsOption,
    ExcludeSettingsOption,
    ExcludeTopicsOption,
    GroupsOption,
    JsonOption,
    NameArgument,
    PrincipalsOption,
    ReplicationFactorOption,
    TopicsOption,
    YesOption,
    find_mirror,
    print_json,
    require_confirmation,
    to_patterns,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.run_commands import HashOption
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.mirror_change import (
    ChangePlan,
    FilterChange,
    SplitPlan,
    explain_wrong_hash,
    format_plan,
    format_split,
)
from mirror_core.mirrors.control import preview_command
from mirror_core.mirrors.mirror_change import (
    change_mirror,
    finish_change,
    prepare_change,
    prepare_split,
    split_mirror,
)
from mirror_core.model.errors import BadRequest, Indeterminate, Refused
from mirror_core.model.json_documents import prints_json
from mirror_core.model.mirror import DesiredState, TopicAccess
from mirror_core.model.run import shorten_hash
from mirror_core.model.text import format_count


@prints_json(ChangePlan)
def change(
    name: NameArgument,
    topics: TopicsOption = None,
    exclude_topics: ExcludeTopicsOption = None,
    groups: GroupsOption = None,
    exclude_groups: ExcludeGroupsOption = None,
    principals: PrincipalsOption = None,
    exclude_principals: ExcludePrincipalsOption = None,
    exclude_rights: ExcludeRightsOption = None,
    exclude_settings: ExcludeSettingsOption = None,
    replication_factor: ReplicationFactorOption = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Topics that leave become the applications'. Alone: those kept closed before."),
    ] = False,
    keep_closed: Annotated[
        bool, typer.Option("--keep-closed", help="Topics that leave stay as they are, and nobody may write there.")
    ] = False,
    withhold_rights: Annotated[
        bool,
        typer.Option(
            "--withhold-rights",
            help="With --release: applications do not get the ACLs that wait for a failover.",
        ),
    ] = False,
    plan_hash: HashOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change which topics, groups, rights and settings a mirror carries, while it runs.

    Each filter replaces all of its kind; those that are not given stay. Without options: finish an earlier
    change.
    """
    if release and keep_closed:
        raise BadRequest("--release and --keep-closed exclude each other")
    if withhold_rights and not release:
        raise BadRequest("--withhold-rights belongs to --release")
    filters = FilterChange(
        topics=to_patterns(topics),
        exclude_topics=to_patterns(exclude_topics),
        groups=to_patterns(groups),
        exclude_groups=to_patterns(exclude_groups),
        principals=to_patterns(principals),
        exclude_principals=to_patterns(exclude_principals),
        exclude_rights=to_patterns(exclude_rights),
        exclude_settings=to_patterns(exclude_settings),
        replication_factor=replication_factor,
        access=TopicAccess.RELEASED if release else TopicAccess.CLOSED if keep_closed else None,
        with_rights=not withhold_rights,
    )
    link, state = find_mirror(config, name)
    intent = preview_command(link, MirrorCommand.CHANGE)
    intent.raise_refusal()
    plan = prepare_change(link, state, filters).plan
    lines = (intent.lines[0], *format_plan(plan, link.mirror))
    if not _confirm_plan(MirrorCommand.CHANGE, plan, lines, plan_hash, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    report = partial(print_line, err=as_json)
    change_mirror(link, filters, plan.hash)
    if not finish_change(link, report):
        raise Indeterminate(
            f"mirror {name}: the change is recorded, and its data plane has not dropped all topics that leave yet. The"
            f" next sync, or `mirrorbook mirror change {name}`, goes on with it; until then nobody may write there"
        )
    if not as_json:
        for line in _list_results(plan):
            print_line(line)


def _list_results(plan: ChangePlan) -> Iterator[str]:
    yield f"mirror {plan.mirror}: changed"
    for topic in (*plan.starts, *plan.returns):
        yield f"{topic}: starts at the data plane's next plan"
    for topic in plan.stops:
        yield f"{topic}: {'released' if topic in plan.released else 'kept closed'}"


@prints_json(SplitPlan)
def split(
    name: NameArgument,
    into: Annotated[str, typer.Option("--into", help="Name of the new mirror.")],
    topics: TopicsOption = None,
    plan_hash: HashOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move topics of a paused or stopped mirror to a new one, which goes on at their offsets.

    So they can fail over by themselves.
    """
    wanted = to_patterns(topics)
    if not wanted:
        raise BadRequest(f"mirror {name}: say which topics: --topics 'orders.*'")
    link, state = find_mirror(config, name)
    intent = preview_command(link, MirrorCommand.SPLIT)
    intent.raise_refusal()
    plan = prepare_split(link, state, into, wanted)
    lines = (intent.lines[0], *format_split(plan, link.mirror))
    if not _confirm_plan(MirrorCommand.SPLIT, plan, lines, plan_hash, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    split_mirror(link, into, wanted, plan.hash, partial(print_line, err=as_json))
    if as_json:
        return
    verb = "resume" if link.mirror.desired is DesiredState.PAUSED else "start"
    print_line(f"mirror {into}: {format_count(len(plan.moved), 'topic')}, {link.mirror.desired} as {name} is")
    print_line(f"`mirrorbook mirror {verb} {name}` and `mirrorbook mirror {verb} {into}`: both may go on")
    print_line(f"`mirrorbook replicate {into}` copies the new one")


def _confirm_plan(
    verb: MirrorCommand,
    plan: ChangePlan | SplitPlan,
    lines: Sequence[str],
    plan_hash: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """False after a dry run. Raises if refused."""
    if as_json:
        print_json(plan)
    else:
        print_line(lines[0])
        for line in lines[1:]:
            print_line(f"  {line}")
    if reasons := (*plan.refused, *explain_wrong_hash(plan, plan_hash)):
        raise Refused(f"mirror {plan.mirror}: {verb}", reasons, reason_code=f"{verb}_refused")
    if not dry_run:
        question = f"{verb.capitalize()} mirror {plan.mirror} by plan {shorten_hash(plan.hash)}?"
        require_confirmation(question, yes or plan_hash is not None)
    return not dry_run
