"""Keeps one data plane alive on this host, outside of Airflow. Knows nothing of Kafka."""
