"""Every history of two clusters, their mirrors and whoever acts on them, up to a depth: see `search`."""
