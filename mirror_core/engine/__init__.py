"""Observe, decide, act, record."""
