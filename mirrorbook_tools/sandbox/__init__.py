"""Two small Kafka clusters on this machine, made of real brokers. Nothing here is needed in production."""
