"""Failover and failback: what runs do, step by step, and who conducts them."""
