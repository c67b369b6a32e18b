"""Metrics scrape, shared by tests."""

from __future__ import annotations

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.kafka_clients import TIMEOUT_S

ADDRESS = re.compile(r"^metrics: (http://\S+/metrics)$", re.MULTILINE)


class Scraped:
    """One answer of an endpoint."""

    def __init__(self, url: str) -> None:
        answer = httpx.get(url, trust_env=False, timeout=TIMEOUT_S).raise_for_status()
        found = text_string_to_metric_families(answer.text)
        self.samples = [sample for family in found for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of mirrorbook_<name> with these labels among others; None when it is absent."""
        found = [
            s.value
            for s in self.samples
            if s.name == f"mirrorbook_{name}" and all(s.labels[label] == wanted for label, wanted in labels.items())
        ]
        assert len(found) <= 1, f"{name} {labels} is ambiguous"
        return found[0] if found else None
