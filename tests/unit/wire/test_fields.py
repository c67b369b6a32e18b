"""The protocol's primitive types: what is written is read back, and no length leads out of the answer."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial.writers import write_compact_string, write_unsigned_varint

from mirror_core.wire.fields import (
    MalformedResponse,
    ResponseReader,
    encode_compact_count,
    encode_compact_string,
    encode_string,
    encode_uvarint,
)


def kios(write: Callable[[Any, Any], None], value: object) -> bytes:
    buffer = io.BytesIO()
    write(buffer, value)
    return buffer.getvalue()


def reader(data: bytes) -> ResponseReader:
    return ResponseReader(memoryview(data))


@given(st.integers(0, 2**32 - 1))
@example(0x7F)
@example(0x80)
@example(0x3FFF)
@example(0x4000)
@example(2**32 - 1)
def test_an_unsigned_varint_is_kios_and_comes_back(value: int) -> None:
    encoded = encode_uvarint(value)
    if value < 2**31:
        assert encoded == kios(write_unsigned_varint, value)
    found = reader(encoded + b"\x55")
    assert found.read_uvarint() == value
    assert found.position == len(encoded)


def test_a_varint_ends_after_five_bytes_or_is_refused() -> None:
    with pytest.raises(MalformedResponse, match="more than 5 bytes at 0"):
        reader(b"\x80" * 5 + b"\x01").read_uvarint()
    with pytest.raises(MalformedResponse, match="1 bytes due at 2, 0 left"):
        reader(b"\x80\x80").read_uvarint()


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 249, 16_383])
def test_long_names_are_written_and_read(size: int) -> None:
    name = "n" * size
    assert encode_compact_string(name) == kios(write_compact_string, name)
    assert reader(encode_compact_string(name)).read_compact_string() == name
    assert reader(encode_string(name)).read_string() == name


def test_lengths_count_bytes_and_not_characters() -> None:
    assert reader(encode_string("päymentś") + b"x").read_string() == "päymentś"
    assert reader(encode_compact_string("päymentś") + b"x").read_compact_string() == "päymentś"


@pytest.mark.parametrize("items", [0, 1, 126, 127, 128, 20_000])
def test_arrays_of_any_length_are_counted(items: int) -> None:
    found = reader(encode_compact_count(items) + bytes(items))
    assert found.read_compact_count(1) == items
    assert found.end - found.position == items
    found = reader(struct.pack(">i", items) + bytes(items))
    assert found.read_count(1) == items


def test_null_arrays_and_strings_are_empty() -> None:
    assert reader(b"\0").read_compact_count(4) == 0
    assert reader(b"\xff\xff\xff\xff").read_count(4) == 0
    assert reader(b"\0").read_compact_string() == ""
    assert reader(b"\xff\xff").read_string() == ""


def test_an_array_that_just_fits_is_read_and_one_more_is_refused() -> None:
    assert reader(struct.pack(">i", 3) + bytes(12)).read_count(4) == 3
    for data in (struct.pack(">i", 3) + bytes(11), struct.pack(">i", -2) + bytes(11)):
        with pytest.raises(MalformedResponse, match=r"array of (3|-2) at 4, 11 bytes left"):
            reader(data).read_count(4)


def test_a_view_ends_where_the_answer_ends() -> None:
    found = reader(b"abc")
    assert bytes(found.read_view(3)) == b"abc"
    assert bytes(found.read_view(0)) == b""
    assert bytes(found.read_view(-1)) == b""
    with pytest.raises(MalformedResponse, match="length 1 at 3, 0 left"):
        found.read_view(1)
    with pytest.raises(MalformedResponse, match="length -2 at 0, 3 left"):
        reader(b"abc").read_view(-2)


def test_what_is_left_is_said_when_a_number_is_cut_off() -> None:
    found = reader(b"\0\x05abc")
    with pytest.raises(MalformedResponse, match="length 5 at 2, 3 left"):
        found.read_string()
    found = reader(bytes(10))
    found.unpack(struct.Struct(">q"))
    assert found.position == 8
    with pytest.raises(MalformedResponse, match="4 bytes due at 8, 2 left"):
        found.unpack(struct.Struct(">i"))


def test_a_name_that_is_no_utf8_is_named_by_its_place() -> None:
    with pytest.raises(MalformedResponse, match="string at 2 is not UTF-8"):
        reader(b"\0\x02\xff\xfe").read_string()


def test_tagged_fields_are_passed_over_whatever_their_size() -> None:
    tags = (
        encode_uvarint(2)
        + encode_uvarint(7)
        + encode_uvarint(300)
        + bytes(300)
        + encode_uvarint(5000)
        + encode_uvarint(0)
    )
    found = reader(tags + b"x")
    found.skip_tags()
    assert found.position == len(tags)
    found = reader(b"\0x")
    found.skip_tags()
    assert found.position == 1
    with pytest.raises(MalformedResponse, match="array of 9"):
        reader(encode_uvarint(9) + bytes(17)).skip_tags()
