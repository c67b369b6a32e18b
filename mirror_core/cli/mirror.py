"""`mirrorbook mirror`, with `runbook` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
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
    load_configuration,
    print_facts,
    print_json,
    require_confirmation,
    require_typed_name,
    to_patterns,
)
from mirror_core.cli.confirm import CommandOutput, MirrorCommandDocument, UndoableYesOption, confirm_command
from mirror_core.cli.mirror_change import change, split
from mirror_core.cli.mirror_headline import list_headline
from mirror_core.cli.mirror_list import list_command
from mirror_core.cli.mirror_watch import fence, watch
from mirror_core.cli.output import print_document, print_line, wrap_text
from mirror_core.cli.parity import EXIT_CODES
from mirror_core.cli.tables import print_table
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.decide.group_coverage import GroupCoverageRow
from mirror_core.decide.run_status import OpenRunFence, explain_only_copy
from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.decide.write_access import OperatorAction, WriteAccess, drop_past_location
from mirror_core.evidence.expectation_suites import READINESS, SYNC
from mirror_core.evidence.expectations import load_expectations
from mirror_core.evidence.runbook_page import render_runbook
from mirror_core.mirrors import mirror_commands, mirror_creation, partition_recovery
from mirror_core.mirrors.describe import (
    MirrorDescription,
    PartitionDescription,
    describe_with_groups,
    list_partitions_not_normal,
)
from mirror_core.mirrors.mirror_commands import DeletionChoice
from mirror_core.mirrors.mirror_facts import FACT_LABELS, FactKey, make_fact
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.mirrors.recovery_plan import (
    find_unsaved,
    format_blocked,
    format_done,
    format_proposals,
    format_question,
    plan_recovery,
)
from mirror_core.mirrors.runbook_content import collect_runbook
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.files import check_writable
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import (
    FindingDocument,
    JsonDocument,
    prints_json,
    to_finding_document,
    to_finding_documents,
)
from mirror_core.model.mirror import GapFilling, Mirror
from mirror_core.model.names import get_base_name
from mirror_core.model.run import RunKind
from mirror_core.model.text import format_age, format_bytes, format_count, format_time
from mirror_core.model.timing import TIMEOUTS, now_ms
from mirror_core.runbook.expectation_check import CHECK_ADVICE, CHECK_NAME, CheckDocument, MirrorCheck
from mirror_core.runbook.expectation_check import check_mirror as check_mirror
from mirror_core.runbook.run_outcome import explain_unread_home, explain_unseen_home, read_write_access
from mirror_core.state.active_cluster import read_newest_announcements
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link, read_both_states


class MirrorDocument(MirrorDescription, frozen=True, kw_only=True):
    """What `mirrorbook mirror describe` shows."""

    source_cluster_id: str
    """Recorded when the mirror was created, as in the field below."""
    destination_cluster_id: str
    access: WriteAccess
    home: FindingDocument | None
    """What is known of the mirror that this one led home, if its state is on a cluster that does not answer."""
    returned: FindingDocument | None
    """What the old source of the mirror or of its way home has taken, if it answers and is not fenced."""
    unsaved: FindingDocument | None
    """What only the destination of one of both has, in FAILED partitions."""
    groups: tuple[GroupCoverageRow, ...]
    """Every group and partition in scope."""


@prints_json(MirrorDocument)
def describe(
    name: NameArgument,
    show_all: Annotated[bool, typer.Option("--all", help="Also what is normal, and every partition.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say first where applications can write and what to do, then what is not normal; --all shows the rest."""
    link, state = find_mirror(config, name)
    description, groups = describe_with_groups(link, state, now_ms())
    is_silent = link.source.name in description.silent
    access = drop_past_location(
        read_write_access(link, state, is_source_silent=is_silent, is_copying=description.copying is not False)
    )
    description = tell_lifted_fence(description, access, link.mirror)
    is_home_unseen = is_silent and access.action is OperatorAction.SHOW_HOME_MIRROR
    states = read_both_states(link, state)
    returned, unsaved = find_returned_source(link, states, description.silent), find_unsaved(link, states)
    homes = to_finding_documents([_explain_unseen_home(link)] if is_home_unseen else ())
    if as_json:
        home = homes[0] if homes else None
        print_json(
            MirrorDocument(
                **msgspec.structs.asdict(description),
                source_cluster_id=link.mirror.source_id,
                destination_cluster_id=link.mirror.destination_id,
                access=access,
                home=home,
                returned=to_finding_document(returned),
                unsaved=to_finding_document(unsaved),
                groups=groups,
            )
        )
        return
    headline = list_headline(access, link.mirror, returned, unsaved, is_home_unseen=is_home_unseen)
    is_home_unread = is_silent and access.run is not None and access.run.kind is RunKind.FAILBACK
    unread_home = explain_unread_home(link, state) if is_home_unread else ()
    run = state.active_run(link.mirror.name)
    only_copy = None if run is None else explain_only_copy(link.mirror, run, state.steps_of(run))
    alone = () if only_copy is None else wrap_text(f"{only_copy}.").split("\n")
    for line in (*unread_home, *alone, *headline, *(f"{home.text}." for home in homes)):
        print_line(line)
    print_line("")
    names = description.facts if show_all else description.not_normal
    print_facts({FACT_LABELS[name]: description.facts[name].text for name in names})
    rows = description.rows if show_all else list_partitions_not_normal(description)
    if not show_all:
        print_line(_format_normal_partitions(description, len(rows)))
    if rows or show_all:
        _print_partitions(rows)
    if show_all:
        _print_group_coverage(groups)
    _print_seeding(description.rows)
    _print_never_copied(description.rows)


def tell_lifted_fence(description: MirrorDescription, access: WriteAccess, mirror: Mirror) -> MirrorDescription:
    """By the brokers: the open run's records don't know that somebody has opened the source since."""
    run = access.run
    if run is None or run.fence is not OpenRunFence.LIFTED:
        return description
    facts = {
        FactKey.OPEN_RUN: make_fact((run.id,), f"{run.kind} {run.id}"),
        FactKey.OPEN_RUN_FENCE: make_fact(("LIFTED",), f"{mirror.source}: lifted since"),
    }
    return msgspec.structs.replace(description, facts={**description.facts, **facts})


def _explain_unseen_home(link: MirrorLink) -> Finding:
    newest = read_newest_announcements([link.destination], TIMEOUTS.plan_state_s)
    return explain_unseen_home(link.mirror, newest.get(get_base_name(link.mirror.name)))


def _format_normal_partitions(description: MirrorDescription, others: int) -> str:
    normal = len(description.rows) - others
    count = f"{normal:,} of {format_count(len(description.rows), 'partition')}"
    return f"Normal: {count} and all else that is not shown; `--all` shows it."


def _print_partitions(rows: Sequence[PartitionDescription]) -> None:
    print_table(
        "Partitions (figures in offsets)",
        ["partition", "state", "position", "source end", "lag", "proved", "LMO", "kind", "reason"],
        [
            [
                *(r.partition, r.state, r.position, _format_known(r.source_end), _format_known(r.lag), r.verified_end),
                *(r.lmo, r.kind, r.reason),
            ]
            for r in rows
        ],
    )


def _format_known(value: int | None) -> object:
    return "unknown" if value is None else value


def _print_group_coverage(groups: Sequence[GroupCoverageRow]) -> None:
    if groups:
        print_table(
            "Groups",
            ["group", "partition", "coverage", "offset", "clamped by", "age", "because"],
            [
                [
                    *(g.group, g.partition or "all", g.coverage, g.offset, g.clamped_by or None),
                    *("unknown" if g.age_s is None else format_age(g.age_s), g.reason),
                ]
                for g in groups
            ],
        )


def _print_seeding(rows: Sequence[PartitionDescription]) -> None:
    seeding = [r for r in rows if r.missing_offsets]
    if seeding:
        print_table(
            "Seeding, up to where the source begins",
            ["partition", "offsets done", "of", "left"],
            [[r.partition, r.position, r.source_start, r.missing_offsets] for r in seeding],
        )


def _print_never_copied(rows: Sequence[PartitionDescription]) -> None:
    never_copied = [(r.partition, r.never_copied) for r in rows if r.never_copied]
    if never_copied:
        print_table(
            "Deleted on the source before they were copied",
            ["partition", "offsets", "first found", "last of them", "found"],
            [
                [p, n.offsets, format_time(n.since_ms), f"[{n.first}, {n.next})", format_time(n.newest_ms)]
                for p, n in never_copied
            ],
        )


class RunbookDocument(JsonDocument, frozen=True, kw_only=True):
    """A mirror's runbook. `mirror describe` and `failover plan` have its figures as data."""

    mirror: str
    markdown: str


@prints_json(RunbookDocument)
def runbook(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """This mirror's runbook as Markdown, with its own names, commands and times: print it before you need it.

    Asks the destination's state topic and nobody else, so it can be had when the source is dead, too.
    """
    link, state = find_mirror(config, name)
    markdown = render_runbook(collect_runbook(link, state, now_ms())).rstrip()
    if as_json:
        print_json(RunbookDocument(mirror=link.mirror.name, markdown=markdown))
    else:
        print_document(markdown)


@prints_json(CheckDocument)
def check(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the tables and Data Docs. Default: none are written.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge its readiness, and what a sync would find. Exit code 0 passed, 1 failed, 4 indeterminate."""
    loaded = load_configuration(config)
    user_expectations = load_expectations(loaded, READINESS, SYNC)
    if output is not None:
        output = output.absolute()
        check_writable(CHECK_NAME, output, CHECK_ADVICE)
    link, state = find_mirror_link(loaded, name)
    checked = check_mirror(link, state, user_expectations.for_mirror(link.mirror.name), output)
    if as_json:
        print_json(checked.document)
    else:
        _print_check(checked)
    raise typer.Exit(EXIT_CODES[checked.verdict])


def _print_check(checked: MirrorCheck) -> None:
    suite_facts = {
        f"{suite}": f"{expectation.verdict}, {checked.rows[suite]} rows"
        for suite, expectation in checked.judged.items()
    }
    tiers = ", ".join(checked.tiers) or "none"
    print_facts({"mirror": checked.mirror, "verdict": checked.verdict, "tiers": tiers, **suite_facts})
    rows = [
        (
            suite,
            expectation.what,
            expectation.by or "Mirrorbook",
            "no" if expectation.known else "not known",
            expectation.where,
        )
        for suite, judged in checked.judged.items()
        for expectation in judged.held
        if not expectation.held
    ]
    if rows:
        print_table("Not as expected", ("suite", "expectation", "by", "held", "where"), rows)
    for line in checked.trouble:
        print_line(f"not looked at: {line}")
    if checked.report:
        print_facts({"report": checked.report})


mirror_app = typer.Typer(help="One-way links between two clusters.", no_args_is_help=True)


mirror_app.command()(watch)


mirror_app.command()(fence)


mirror_app.command()(runbook)


mirror_app.command()(check)


mirror_app.command()(change)
mirror_app.command()(split)


mirror_app.command("list")(list_command)


mirror_app.command()(describe)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def create(
    name: NameArgument,
    source: Annotated[str, typer.Option(help="Cluster to copy from.")],
    destination: Annotated[str, typer.Option(help="Cluster to copy to.")],
    topics: TopicsOption = None,
    exclude_topics: ExcludeTopicsOption = None,
    groups: GroupsOption = None,
    exclude_groups: ExcludeGroupsOption = None,
    principals: PrincipalsOption = None,
    exclude_principals: ExcludePrincipalsOption = None,
    exclude_rights: ExcludeRightsOption = None,
    exclude_settings: ExcludeSettingsOption = None,
    replication_factor: ReplicationFactorOption = None,
    gaps: Annotated[
        GapFilling | None, typer.Option(help="How gaps in the offsets are filled. Default: as permissions allow.")
    ] = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a mirror is possible and record it; `start` lets it run."""
    output = CommandOutput(name, "create", as_json)
    loaded = load_configuration(config)
    settings = {
        "source": source,
        "destination": destination,
        "topics": to_patterns(topics) or (),
        "exclude_topics": to_patterns(exclude_topics) or (),
        "groups": (".*",) if groups is None else to_patterns(groups),
        "exclude_groups": to_patterns(exclude_groups) or (),
        "principals": (".*",) if principals is None else to_patterns(principals),
        "exclude_principals": to_patterns(exclude_principals) or (),
        "exclude_rights": to_patterns(exclude_rights) or (),
        "exclude_settings": to_patterns(exclude_settings) or (),
        "replication_factor": replication_factor or "source",
        "gaps": gaps,
    }
    warnings = list[str]()
    checked = mirror_creation.create_mirror(loaded, name, **settings, dry_run=True, warn=warnings.append)  # type: ignore[arg-type]
    output.print_line(f"mirror {name}: {source} ({checked.source_id}) -> {destination} ({checked.destination_id})")
    output.print_line(f"topics {' '.join(checked.topics)}, excluded {' '.join(checked.exclude_topics) or 'none'}")
    preview = mirror_creation.preview_creation(loaded, checked, warnings)
    for line in preview.lines:
        output.print_line(line)
    is_empty = preview.topics == 0
    if is_empty:
        output.print_line(f"warning: no topic of {source} matches {' '.join(checked.topics)} now")
    if dry_run:
        output.finish(done=False)
        return
    require_confirmation("Create a mirror that copies nothing yet?" if is_empty else "Create it?", yes)
    mirror_creation.create_mirror(loaded, name, **settings)  # type: ignore[arg-type]
    output.print_line(f"created; `mirrorbook mirror start {name}` lets it run")
    output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def start(
    name: NameArgument,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a mirror run; `replicate` copies."""
    output = CommandOutput(name, MirrorCommand.START, as_json)
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.START, output, dry_run=dry_run, yes=yes):
        mirror_commands.start_mirror(link)
        output.print_line(f"mirror {name}: STARTED")
        output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def pause(
    name: NameArgument,
    topics: TopicsOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop copying for now, of some topics or all; they stay the mirror's."""
    link, state = find_mirror(config, name)
    chosen = () if topics is None else mirror_commands.select_topics(link.mirror, state, topics)
    verb = MirrorCommand.PAUSE_TOPICS if chosen else MirrorCommand.PAUSE
    output = CommandOutput(name, verb, as_json)
    if confirm_command(link, verb, output, dry_run=dry_run, yes=yes, further_lines=chosen):
        if chosen:
            mirror_commands.pause_topics(link, chosen)
        else:
            mirror_commands.pause_mirror(link)
            output.print_change(link, state, "PAUSED")
        output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def resume(
    name: NameArgument,
    topics: TopicsOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on after a pause; topics paused by name go on by `--topics`."""
    link, state = find_mirror(config, name)
    chosen = () if topics is None else mirror_commands.select_topics(link.mirror, state, topics)
    verb = MirrorCommand.RESUME_TOPICS if chosen else MirrorCommand.RESUME
    output = CommandOutput(name, verb, as_json)
    if confirm_command(link, verb, output, dry_run=dry_run, yes=yes, further_lines=chosen):
        if chosen:
            mirror_commands.resume_topics(link, chosen)
        else:
            mirror_commands.resume_mirror(link)
            output.print_line(f"mirror {name}: STARTED")
        output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def throttle(
    name: NameArgument,
    rate: Annotated[
        str, typer.Argument(metavar="RATE|off", help="For all tasks together, such as 50MB/s; or no limit.")
    ],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Limit what is read from the source, also while it is being copied. The drain of a failover heeds no limit."""
    output = CommandOutput(name, MirrorCommand.THROTTLE, as_json)
    limit = None if rate == "off" else parse_bytes_per_s(rate)
    link, state = find_mirror(config, name)
    change = f"{_format_limit(link.mirror.throttle)} now, {_format_limit(limit)} then"
    if confirm_command(link, MirrorCommand.THROTTLE, output, dry_run=dry_run, yes=yes, further_lines=[change]):
        mirror_commands.throttle_mirror(link, limit)
        output.print_change(link, state, _format_limit(limit))
        output.finish(done=True)


def _format_limit(rate: int | None) -> str:
    return "no limit" if rate is None else f"{format_bytes(rate)}/s"


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def stop(
    name: NameArgument,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """End mirroring and record where (the LMO). For applications to move, use `failover` instead."""
    output = CommandOutput(name, MirrorCommand.STOP, as_json)
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.STOP, output, dry_run=dry_run, yes=yes):
        for partition, end in sorted(mirror_commands.stop_mirror(link, output.print_line).items()):
            output.print_line(f"{partition}: STOPPED, LMO {end}")
        output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def recover(
    name: NameArgument,
    config: ConfigOption = None,
    topics: TopicsOption = None,
    action: Annotated[RecoveryAction | None, typer.Option(help="What to do; without it only retries are done.")] = None,
    salvage: Annotated[
        Path | None, typer.Option(help="Before a recopy: save there what only the destination has, as Parquet.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what can be done about FAILED partitions and what it costs; do it after a question."""
    if salvage is not None and action is not RecoveryAction.RECOPY:
        raise BadRequest("--salvage saves what a recopy would delete: add --action recopy")
    output = CommandOutput(name, MirrorCommand.RECOVER, as_json)
    link, state = find_mirror(config, name)
    recovery_survey = plan_recovery(link, state, topics, action)
    if not recovery_survey.proposals:
        output.print_line("no partition is FAILED")
        output.finish(done=False)
        return
    for line in format_proposals(link.mirror, recovery_survey, salvage):
        output.print_line(line)
    if not recovery_survey.actionable:
        raise Refused(f"mirror {name}: recover", format_blocked(recovery_survey), reason_code="recovery_blocked")
    if dry_run:
        output.finish(done=False)
        return
    if any(proposal.action is RecoveryAction.RECOPY for proposal in recovery_survey.actionable):
        require_typed_name(name, yes, f"{format_question(recovery_survey)} on {link.mirror.destination}")
    else:
        require_confirmation(f"{format_question(recovery_survey)}?", yes)
    if salvage is not None:
        partition_recovery.salvage_lost_records(link, recovery_survey, salvage, output.print_line)
    partition_recovery.recover_partitions(link, recovery_survey, output.print_line)
    for line in format_done(recovery_survey):
        output.print_line(line)
    output.finish(done=True)


@mirror_app.command()
@prints_json(MirrorCommandDocument)
def delete(
    name: NameArgument,
    gone: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="It will never come back: forget what stands there, too.")
    ] = None,
    keep_rights: Annotated[
        bool,
        typer.Option("--keep-rights", help="Leave the access rights that it copied, and print how to remove them."),
    ] = False,
    restore_settings: Annotated[
        bool, typer.Option("--restore-settings", help="Give its topics the source's settings, as last synced.")
    ] = False,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forget a stopped mirror, and withdraw the access rights that it copied; its topics stay."""
    output = CommandOutput(name, MirrorCommand.DELETE, as_json)
    link, _ = find_mirror(config, name)
    lost = link.config.cluster(gone).name if gone else None
    forgotten = [f"denials on cluster {lost}, and its fence: if it ever comes back, it takes writes"] if lost else []
    choice = DeletionChoice(keep_rights=keep_rights, restore_settings=restore_settings)
    if confirm_command(
        link,
        MirrorCommand.DELETE,
        output,
        dry_run=dry_run,
        yes=yes,
        further_lines=forgotten,
        gone=lost,
        deletion=choice,
    ):
        for line in mirror_commands.delete_mirror(link, lost, choice):
            output.print_line(line)
        output.print_line(f"mirror {name}: deleted; its topics are still on cluster {link.mirror.destination}")
        output.finish(done=True)
