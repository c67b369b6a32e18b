"""Which URLs hold a password."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrorbook_airflow import object_store
from mirrorbook_airflow.params import NO_SPARK
from mirrorbook_airflow.worker_services import open_receipts_folder

from mirror_core.model.errors import BadRequest
from mirror_core.model.files import has_password


@pytest.mark.parametrize(
    "url",
    [
        "s3a://AKIA:se#cret@bucket/x",
        "ftp://me:what?@host/x",
        "ftp://me:p@[::1]:21/x",
        "s3a://AKIA:40characters/with+slashes@bucket",
    ],
)
def test_one_with_a_password(url: str) -> None:
    assert has_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://[2001:db8::1]:9000/receipts/a@b",
        "hdfs://nn1:8020,nn2:8020/receipts/a@b",
        "hdfs://nn:8020/a@b",
        "hdfs://nn:8020?user@x",
        "abfss://container@account.dfs.core.windows.net:443/x@y",
        "file:///a:b@c",
        "s3a://bucket/x:y@z",
    ],
)
def test_one_without(url: str) -> None:
    assert not has_password(url)


SECRET = "s3://AKIA:secret@bucket/x"


def test_object_stores_are_not_given_one_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """[mirrorbook] receipts and salvage, where there is no Spark: what cannot be written is told of with its URL."""
    monkeypatch.setattr(object_store, "read_salvage_location", lambda: SECRET)
    with pytest.raises(BadRequest) as receipts:
        open_receipts_folder(NO_SPARK, SECRET)
    with pytest.raises(BadRequest) as salvage, object_store.copy_to_object_store(tmp_path):
        pass
    assert "secret@" not in f"{receipts.value} {salvage.value}"
