"""`--only`: parts by name, all of them without it."""

from __future__ import annotations

import pytest

from mirror_core.cli.sync import parse_parts
from mirror_core.model.errors import BadRequest
from mirror_core.model.sync_state import SyncCategory


def test_parts_are_named_with_commas_between() -> None:
    assert parse_parts(None) == set(SyncCategory)
    assert parse_parts("acls, topics,") == {SyncCategory.ACLS, SyncCategory.TOPICS}


@pytest.mark.parametrize("only", ["nope", "topics,nope", ",", ""])
def test_an_unknown_part_is_a_bad_request(only: str) -> None:
    with pytest.raises(BadRequest, match="the parts are topics, configs, acls, groups, quotas"):
        parse_parts(only)
