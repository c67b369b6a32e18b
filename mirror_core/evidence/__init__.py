"""Receipts, reports and what proves them."""
