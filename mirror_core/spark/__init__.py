"""The data pipeline on Spark: jobs that run the same functions on executors."""
