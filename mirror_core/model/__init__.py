"""Frozen values, enums and errors. Standard library only."""
