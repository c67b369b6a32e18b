"""Adapters: configuration of clusters, connections, admin requests, the state topic."""
