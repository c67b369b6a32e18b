"""`mirrorbook mirror`: parse, call, print."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.asking import UndoableYesOption, confirm_command
from mirror_core.cli.check import check
from mirror_core.cli.common import (
    ConfigOption,
    DryRunOption,
    NameArgument,
    YesOption,
    find_mirror,
    load_configuration,
    require_confirmation,
)
from mirror_core.cli.listing import describe, list_command
from mirror_core.cli.runbook import runbook
from mirror_core.cli.standing import fence, watch
from mirror_core.cli.telling import print_line
from mirror_core.decide.recovery import RecoveryAction
from mirror_core.decide.ruled import warn_foreign_destination, warn_foreign_source
from mirror_core.decide.verbs import MirrorCommand
from mirror_core.mirrors import creation, estimate, recovery, verbs
from mirror_core.mirrors.deletion import DeletionChoice
from mirror_core.mirrors.describe import GAP_TEXTS
from mirror_core.mirrors.gaps import format_gap_limit
from mirror_core.mirrors.preflight import WITHOUT_HEARTBEATS, lacks_heartbeats
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.mirrors.recovery_words import format_blocked, format_done, format_proposals, format_question
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.mirror import GapFilling
from mirror_core.model.units import format_bytes, parse_bytes_per_s
from mirror_core.state.link import make_mirror_link

mirror_app = typer.Typer(help="One-way links between two clusters.", no_args_is_help=True)
mirror_app.command()(watch)
mirror_app.command()(fence)
mirror_app.command()(runbook)
mirror_app.command()(check)
mirror_app.command("list")(list_command)
mirror_app.command()(describe)

TopicsOption = Annotated[list[str] | None, typer.Option("--topics", help="Regular expression of topic names; repeat.")]


@mirror_app.command()
def create(
    name: NameArgument,
    source: Annotated[str, typer.Option(help="Cluster to copy from.")],
    destination: Annotated[str, typer.Option(help="Cluster to copy to.")],
    topics: TopicsOption = None,
    exclude_topics: Annotated[
        list[str] | None, typer.Option("--exclude-topics", help="Exclusion wins; repeat.")
    ] = None,
    groups: Annotated[list[str] | None, typer.Option("--groups", help="Consumer groups to sync; repeat.")] = None,
    gaps: Annotated[
        GapFilling | None, typer.Option(help="How gaps in the offsets are filled. Default: as permissions allow.")
    ] = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Check that a mirror is possible and record it; `start` lets it run."""
    loaded = load_configuration(config)
    settings = {
        "source": source,
        "destination": destination,
        "topics": topics or [],
        "exclude_topics": exclude_topics or [],
        "groups": groups or [".*"],
        "gaps": gaps,
    }
    warnings = list[str]()
    checked = creation.create_mirror(loaded, name, **settings, dry_run=True, warn=warnings.append)  # type: ignore[arg-type]
    print_line(f"mirror {name}: {source} ({checked.source_id}) -> {destination} ({checked.destination_id})")
    print_line(f"topics {' '.join(checked.topics)}, excluded {' '.join(checked.exclude_topics) or 'none'}")
    print_line(f"gaps are {GAP_TEXTS[checked.gaps]}")
    if limit := format_gap_limit(loaded.cluster(destination), checked.gaps):
        print_line(limit)
    if lacks_heartbeats(loaded.cluster(source)):
        print_line(f"{WITHOUT_HEARTBEATS}; `mirrorbook cluster check {source}` names the rights")
    for line in warnings:
        print_line(f"warning: {line}")
    rules = (
        warn_foreign_source(checked.source, loaded.cluster(source).ruling),
        warn_foreign_destination(checked.destination, loaded.cluster(destination).ruling),
    )
    for line in chain(*rules, estimate.describe_copy_estimate(make_mirror_link(loaded, checked))):
        print_line(line)
    if dry_run:
        return
    require_confirmation("Create it?", yes)
    creation.create_mirror(loaded, name, **settings)  # type: ignore[arg-type]
    print_line(f"created; `mirrorbook mirror start {name}` lets it run")


@mirror_app.command()
def start(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Let a mirror run; `replicate` copies."""
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.START, dry_run=dry_run, yes=yes):
        verbs.start_mirror(link)
        print_line(f"mirror {name}: STARTED")


@mirror_app.command()
def pause(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Stop copying for now; the topics stay the mirror's."""
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.PAUSE, dry_run=dry_run, yes=yes):
        verbs.pause_mirror(link)
        print_line(f"mirror {name}: PAUSED; the running data plane notices at its next epoch")


@mirror_app.command()
def resume(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Go on after a pause."""
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.RESUME, dry_run=dry_run, yes=yes):
        verbs.resume_mirror(link)
        print_line(f"mirror {name}: STARTED")


@mirror_app.command()
def throttle(
    name: NameArgument,
    rate: Annotated[
        str, typer.Argument(metavar="RATE|off", help="For all tasks together, such as 50MB/s; or no limit.")
    ],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
) -> None:
    """Limit what is read from the source, also while it is being copied. The drain of a failover heeds no limit."""
    limit = None if rate == "off" else parse_bytes_per_s(rate)
    link, _ = find_mirror(config, name)
    change = f"{_format_limit(link.mirror.throttle)} now, {_format_limit(limit)} then"
    if confirm_command(link, MirrorCommand.THROTTLE, dry_run=dry_run, yes=yes, further_lines=[change]):
        verbs.throttle_mirror(link, limit)
        print_line(f"mirror {name}: {_format_limit(limit)}; the running data plane notices at its next epoch")


def _format_limit(rate: int | None) -> str:
    return "no limit" if rate is None else f"{format_bytes(rate)}/s"


@mirror_app.command()
def stop(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """End mirroring and record where (the LMO). For applications to move, use `failover` instead."""
    link, _ = find_mirror(config, name)
    if confirm_command(link, MirrorCommand.STOP, dry_run=dry_run, yes=yes):
        for partition, end in sorted(verbs.stop_mirror(link, print_line).items()):
            print_line(f"{partition}: STOPPED, LMO {end}")


@mirror_app.command()
def recover(
    name: NameArgument,
    config: ConfigOption = None,
    topics: TopicsOption = None,
    action: Annotated[
        RecoveryAction | None, typer.Option(help="What to do; without it only retries are format_done.")
    ] = None,
    salvage: Annotated[
        Path | None, typer.Option(help="Before a recopy: save there what only the destination has, as Parquet.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Say what can be done about FAILED partitions and what it costs; do it after a question."""
    if salvage is not None and action is not RecoveryAction.RECOPY:
        raise BadRequest("--salvage saves what a recopy would delete: add --action recopy")
    link, state = find_mirror(config, name)
    recovery_survey = plan_recovery(link, state, topics, action)
    if not recovery_survey.proposals:
        print_line("no partition is FAILED")
        return
    for line in format_proposals(link.mirror, recovery_survey, salvage):
        print_line(line)
    if not recovery_survey.actionable:
        raise Refused(f"mirror {name}: recover", format_blocked(recovery_survey))
    if dry_run:
        return
    require_confirmation(f"{format_question(recovery_survey)}?", yes)
    if salvage is not None:
        recovery.salvage_lost_records(link, recovery_survey, salvage, print_line)
    recovery.recover_partitions(link, recovery_survey, print_line)
    for line in format_done(recovery_survey):
        print_line(line)


@mirror_app.command()
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
) -> None:
    """Forget a stopped mirror, and withdraw the access rights that it copied; its topics stay."""
    link, _ = find_mirror(config, name)
    lost = link.config.cluster(gone).name if gone else None
    forgotten = [f"denials on cluster {lost}, and its fence: if it ever comes back, it takes writes"] if lost else []
    choice = DeletionChoice(keep_rights=keep_rights, restore_settings=restore_settings)
    if confirm_command(
        link, MirrorCommand.DELETE, dry_run=dry_run, yes=yes, further_lines=forgotten, gone=lost, deletion=choice
    ):
        for line in verbs.delete_mirror(link, lost, choice):
            print_line(line)
        print_line(f"mirror {name}: deleted; its topics are still on cluster {link.mirror.destination}")
