"""Adapters: configuration of clusters, connections, admin requests, reading logs."""
