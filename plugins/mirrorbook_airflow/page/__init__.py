"""The page "Disaster recovery" in Airflow: mirrors and runs, read-only.

`poller` reads the clusters, `rows` and its neighbours choose what is shown, `routes` serves.
"""

from typing import Final
from urllib.parse import urlsplit

PREFIX: Final = "/mirrorbook"
"""Path under Airflow's own."""


def get_page_root() -> str:
    """Path of the DR page, also where Airflow is served below another path."""
    from airflow.configuration import conf  # every Airflow process imports this package while it loads plugins

    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PREFIX
