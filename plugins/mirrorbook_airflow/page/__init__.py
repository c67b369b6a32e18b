"""The page "Disaster recovery" in Airflow: mirrors as they stand, runs while they happen. It acts on nothing.

What it shows are the core's own figures: `views` says what is shown of them, `looking` asks for them, `routes` serves.
"""

from typing import Final
from urllib.parse import urlsplit

PREFIX: Final = "/mirrorbook"
"""Path under Airflow's own."""


def page_root() -> str:
    """Path of the DR page, also where Airflow is served below another path."""
    from airflow.configuration import conf  # every Airflow process imports this package while it loads plugins

    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PREFIX
