"""The product's sentences that tests compare with stand in `sentences.toml` only: a copy editor changes one place."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).with_name("sentences.toml")
PLACE: Final = "{}"


def format_sentence(key: str, *values: object) -> str:
    """The sentence of this key with `values` in its places, in their order."""
    first, *others = load_sentences()[key].split(PLACE)
    return first + "".join(f"{value}{text}" for value, text in zip(values, others, strict=True))


@cache
def load_sentences() -> dict[str, str]:
    return tomllib.loads(GOLDEN.read_text(encoding="utf-8"))
