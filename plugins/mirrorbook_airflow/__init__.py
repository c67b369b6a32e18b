"""Airflow's side of Mirrorbook: connection type, hook, tasks and pages. The core knows nothing of it.

Discovered by every Airflow process, so nothing heavy is imported here.
"""
