"""The log directories of a broker that does not run: read, and cut at their end. No Kafka client."""
