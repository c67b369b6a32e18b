"""The page "Disaster recovery" in Airflow: mirrors as they stand, runs while they happen. It acts on nothing.

What it shows are the core's own figures: `views` says what is shown of them, `looking` asks for them, `routes` serves.
"""

from typing import Final

PREFIX: Final = "/mirrorbook"
"""Path under Airflow's own."""
