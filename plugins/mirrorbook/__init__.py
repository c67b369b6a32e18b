"""Nothing: Airflow imports a module of a provider's name when it looks for example DAGs, and logs an error without it.

The code is in `mirror_core` and `mirrorbook_airflow`.
"""
