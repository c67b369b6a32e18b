"""Mirrorbook: disaster recovery for Apache Kafka by exact-offset mirrors."""
