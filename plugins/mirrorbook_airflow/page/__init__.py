"""The page "Disaster recovery" in Airflow: the core's pages, read only, for whom Airflow's rights let see them.

`routes` serves them, `auth` says who sees what, `buttons` lead to DAGs, `pending_approvals` are Airflow's questions.
"""

from typing import Final
from urllib.parse import urlsplit

PREFIX: Final = "/mirrorbook"
"""Path under Airflow's own."""


def get_page_root() -> str:
    """Path of the DR page, also where Airflow is served below another path."""
    from airflow.configuration import conf  # every Airflow process imports this package while it loads plugins

    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PREFIX
