"""The demonstration: two live clusters, two applications, a failover and a failback, and a verdict."""
