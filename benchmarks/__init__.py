"""Measurements that claims about speed rest on. Compare figures of one run only: they say nothing across machines."""
