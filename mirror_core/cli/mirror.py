"""`mirrorbook mirror`: parse, call, print."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.asking import UndoableYesOption, agreed
from mirror_core.cli.check import check
from mirror_core.cli.common import (
    ConfigOption,
    DryRunOption,
    NameArgument,
    YesOption,
    agree,
    configuration,
    mirror,
)
from mirror_core.cli.listing import describe, list_command
from mirror_core.cli.runbook import runbook
from mirror_core.cli.standing import fence, watch
from mirror_core.cli.telling import tell
from mirror_core.decide.recovery import Action
from mirror_core.decide.ruled import as_destination, as_source
from mirror_core.decide.verbs import Verb
from mirror_core.mirrors import creation, estimate, recovery, verbs
from mirror_core.mirrors.deletion import DeletionChoice
from mirror_core.mirrors.describe import GAPS
from mirror_core.mirrors.gaps import limit_in_words
from mirror_core.mirrors.preflight import WITHOUT_HEARTBEATS, lacks_heartbeats
from mirror_core.mirrors.recovery_plan import survey
from mirror_core.mirrors.recovery_words import done, left, proposed, question
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.mirror import Gaps
from mirror_core.model.units import bytes_per_s, in_bytes
from mirror_core.state.link import link_of

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
        Gaps | None, typer.Option(help="How gaps in the offsets are filled. Default: as permissions allow.")
    ] = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Check that a mirror is possible and record it; `start` lets it run."""
    loaded = configuration(config)
    wanted = {
        "source": source,
        "destination": destination,
        "topics": topics or [],
        "exclude_topics": exclude_topics or [],
        "groups": groups or [".*"],
        "gaps": gaps,
    }
    warnings = list[str]()
    checked = creation.create(loaded, name, **wanted, dry_run=True, warn=warnings.append)  # type: ignore[arg-type]
    tell(f"mirror {name}: {source} ({checked.source_id}) -> {destination} ({checked.destination_id})")
    tell(f"topics {' '.join(checked.topics)}, excluded {' '.join(checked.exclude_topics) or 'none'}")
    tell(f"gaps are {GAPS[checked.gaps]}")
    if limit := limit_in_words(loaded.cluster(destination), checked.gaps):
        tell(limit)
    if lacks_heartbeats(loaded.cluster(source)):
        tell(f"{WITHOUT_HEARTBEATS}; `mirrorbook cluster check {source}` names the rights")
    for line in warnings:
        tell(f"warning: {line}")
    rules = (
        as_source(checked.source, loaded.cluster(source).ruling),
        as_destination(checked.destination, loaded.cluster(destination).ruling),
    )
    for line in chain(*rules, estimate.lines(link_of(loaded, checked))):
        tell(line)
    if dry_run:
        return
    agree("Create it?", yes)
    creation.create(loaded, name, **wanted)  # type: ignore[arg-type]
    tell(f"created; `mirrorbook mirror start {name}` lets it run")


@mirror_app.command()
def start(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Let a mirror run; `replicate` copies."""
    link, _ = mirror(config, name)
    if agreed(link, Verb.START, dry_run=dry_run, yes=yes):
        verbs.start(link)
        tell(f"mirror {name}: STARTED")


@mirror_app.command()
def pause(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Stop copying for now; the topics stay the mirror's."""
    link, _ = mirror(config, name)
    if agreed(link, Verb.PAUSE, dry_run=dry_run, yes=yes):
        verbs.pause(link)
        tell(f"mirror {name}: PAUSED; the running data plane notices at its next epoch")


@mirror_app.command()
def resume(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: UndoableYesOption = False
) -> None:
    """Go on after a pause."""
    link, _ = mirror(config, name)
    if agreed(link, Verb.RESUME, dry_run=dry_run, yes=yes):
        verbs.resume(link)
        tell(f"mirror {name}: STARTED")


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
    wanted = None if rate == "off" else bytes_per_s(rate)
    link, _ = mirror(config, name)
    change = f"{_limit(link.mirror.throttle)} now, {_limit(wanted)} then"
    if agreed(link, Verb.THROTTLE, dry_run=dry_run, yes=yes, more=[change]):
        verbs.throttle(link, wanted)
        tell(f"mirror {name}: {_limit(wanted)}; the running data plane notices at its next epoch")


def _limit(rate: int | None) -> str:
    return "no limit" if rate is None else f"{in_bytes(rate)}/s"


@mirror_app.command()
def stop(
    name: NameArgument, config: ConfigOption = None, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """End mirroring and record where (the LMO). For applications to move, use `failover` instead."""
    link, _ = mirror(config, name)
    if agreed(link, Verb.STOP, dry_run=dry_run, yes=yes):
        for partition, end in sorted(verbs.stop(link, tell).items()):
            tell(f"{partition}: STOPPED, LMO {end}")


@mirror_app.command()
def recover(
    name: NameArgument,
    config: ConfigOption = None,
    topics: TopicsOption = None,
    action: Annotated[Action | None, typer.Option(help="What to do; without it only retries are done.")] = None,
    salvage: Annotated[
        Path | None, typer.Option(help="Before a recopy: save there what only the destination has, as Parquet.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Say what can be done about FAILED partitions and what it costs; do it after a question."""
    if salvage is not None and action is not Action.RECOPY:
        raise BadRequest("--salvage saves what a recopy would delete: add --action recopy")
    link, state = mirror(config, name)
    seen = survey(link, state, topics, action)
    if not seen.proposals:
        tell("no partition is FAILED")
        return
    for line in proposed(link.mirror, seen, salvage):
        tell(line)
    if not seen.agreed:
        raise Refused(f"mirror {name}: recover", left(seen))
    if dry_run:
        return
    agree(f"{question(seen)}?", yes)
    if salvage is not None:
        recovery.salvage(link, seen, salvage, tell)
    recovery.recover(link, seen, tell)
    for line in done(seen):
        tell(line)


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
    link, _ = mirror(config, name)
    lost = link.config.cluster(gone).name if gone else None
    forgotten = [f"denials on cluster {lost}, and its fence: if it ever comes back, it takes writes"] if lost else []
    choice = DeletionChoice(keep_rights=keep_rights, restore_settings=restore_settings)
    if agreed(link, Verb.DELETE, dry_run=dry_run, yes=yes, more=forgotten, gone=lost, deletion=choice):
        for line in verbs.delete(link, lost, choice):
            tell(line)
        tell(f"mirror {name}: deleted; its topics are still on cluster {link.mirror.destination}")
