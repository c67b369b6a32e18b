"""SCRAM with a broker that is none: whatever it answers is refused as not trusted, and no other error escapes."""

from __future__ import annotations

import base64
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.kafka.connection import ServerNotTrusted, exchange_scram

SALT = base64.b64encode(b"salt" * 4).decode()
ANSWERS = st.binary(max_size=100) | st.text(max_size=50).map(str.encode)


def begin() -> tuple[Generator[bytes, bytes, None], str]:
    """An exchange whose first message is sent, and its nonce."""
    exchange = exchange_scram("SCRAM-SHA-256", "me", "hush")
    return exchange, next(exchange).decode().partition(",r=")[2]


@given(answer=ANSWERS)
def test_no_first_answer_is_taken_from_a_stranger(answer: bytes) -> None:
    exchange, _ = begin()
    with pytest.raises(ServerNotTrusted):
        exchange.send(answer)


@given(answer=ANSWERS.map(lambda answer: b"v=" + answer) | ANSWERS)
def test_no_last_answer_is_taken_from_a_stranger(answer: bytes) -> None:
    exchange, nonce = begin()
    exchange.send(f"r={nonce}server,s={SALT},i=4096".encode())
    with pytest.raises(ServerNotTrusted):
        exchange.send(answer)


@pytest.mark.parametrize("answer", ["m=must,r={}server,s={},i=4096", "r={}server,s={},i=4096,m=must"])
def test_an_extension_that_the_broker_demands_is_refused(answer: str) -> None:
    """RFC 5802: whoever does not have it must not go on."""
    exchange, nonce = begin()
    with pytest.raises(ServerNotTrusted, match="m="):
        exchange.send(answer.format(nonce, SALT).encode())
