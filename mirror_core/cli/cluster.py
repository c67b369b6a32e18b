"""`mirrorbook cluster`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import ConfigOption, JsonOption, load_configuration, print_facts, print_json, print_table
from mirror_core.cli.telling import print_line
from mirror_core.cli.unfence import unfence
from mirror_core.mirrors.preflight import ClusterCheck, RightCheck, RightStatus
from mirror_core.mirrors.preflight import check_cluster as check_cluster
from mirror_core.model.acl import Permission
from mirror_core.model.documents import prints_json
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.rights.first_acl import FirstAclEffect

cluster_app = typer.Typer(help="The clusters of mirrorbook.yaml.", no_args_is_help=True)
cluster_app.command("unfence")(unfence)


@cluster_app.command()
@prints_json(ClusterCheck)
def check(
    name: Annotated[str, typer.Argument(help="The cluster.", autocompletion=completing.complete_clusters)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a cluster answers, and which rights the mirror's principals lack, as kafka-acls.sh lines."""
    cluster_check = check_cluster(load_configuration(config).cluster(name))
    if as_json:
        print_json(cluster_check)
    else:
        _print_check(cluster_check)
    if cluster_check.problems:
        raise RemoteFault(f"cluster {name}: " + "; ".join(cluster_check.problems))
    if not cluster_check.roles:
        raise MissingPermission(f"cluster {name}: rights are missing both for a source and for a destination")


VERDICTS_TO_GRANT = (RightStatus.MISSING, RightStatus.SPARED, RightStatus.UNKNOWN)


def _print_check(cluster_check: ClusterCheck) -> None:
    print_facts(
        {
            "cluster": f"{cluster_check.cluster} ({cluster_check.cluster_id})",
            "brokers": ", ".join(cluster_check.brokers),
            "features": ", ".join(f"{name} {level}" for name, level in sorted(cluster_check.features.items()))
            or "none",
            "authorizer": cluster_check.authorizer,
            "a first ACL shuts others out": cluster_check.first_acl.effect,
            "has all rights as": " and ".join(cluster_check.roles) or "neither source nor destination",
        }
    )
    print_table(
        "Rights",
        ["role", "principal", "user", "right", "verdict", "for", "detail"],
        [
            [right.role, right.principal, right.user, _format_right(right), right.verdict, right.why, right.detail]
            for right in cluster_check.rights
        ],
    )
    if cluster_check.first_acl.effect is FirstAclEffect.UNKNOWN:
        print_line(f"warning: {cluster_check.first_acl.text}")
    for line in cluster_check.advice:
        print_line(f"advice: {line}")
    commands = list(
        dict.fromkeys(
            right.command for right in cluster_check.rights if right.command and right.verdict in VERDICTS_TO_GRANT
        )
    )
    if commands:
        print_line("To grant what is missing or could not be tested (narrow `*` to the mirror's topics if you like):")
        for command in commands:
            print_line(f"  {command}")


def _format_right(right: RightCheck) -> str:
    denied = f"{right.permission} " if right.permission == Permission.DENY else ""
    return f"{denied}{right.operation} on {right.resource}"
