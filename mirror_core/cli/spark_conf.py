"""The option `--conf` of commands that may run on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be given again and again."),
]


def parse_spark_conf(given: list[str] | None) -> dict[str, str]:
    """Raises BadRequest for a setting that may not be chosen."""
    from mirror_core.spark.session import check_conf  # late: `--runner local` must work where Spark is not installed

    settings = dict[str, str]()
    for setting in given or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--conf")
        settings[key.strip()] = value
    if settings:
        check_conf(settings)
    return settings
