"""The demonstration that comes with the package: two clusters, two applications, a failover, and every record counted.

The applications and the verdict are shared with `make demo`, which tells a longer story with Airflow and Spark.
"""
