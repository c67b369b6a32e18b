"""All messages but record batches, with kio."""

from __future__ import annotations

import io
from typing import Any, TypeVar

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.protocol import RequestPayload, ResponsePayload

from mirror_core.model.errors import RemoteFault

Request = RequestPayload
AnyResponse = ResponsePayload
Response = TypeVar("Response", bound=AnyResponse)

_WRITERS: dict[Any, Any] = {}
_READERS: dict[Any, Any] = {}


def _find_writer(kind: Any) -> Any:
    if kind not in _WRITERS:
        _WRITERS[kind] = entity_writer(kind)
    return _WRITERS[kind]


def _find_reader(kind: Any) -> Any:
    if kind not in _READERS:
        _READERS[kind] = entity_reader(kind)
    return _READERS[kind]


def encode(request: Request, correlation: int, client_id: str) -> bytes:
    kind = type(request)
    buffer = io.BytesIO()
    header: Any = kind.__header_schema__
    _find_writer(header)(
        buffer,
        header(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__,
            correlation_id=correlation,
            client_id=client_id,
        ),
    )
    _find_writer(kind)(buffer, request)
    return buffer.getvalue()


def decode(response_type: type[Response], frame: bytearray | bytes, correlation: int, where: str) -> Response:
    """RemoteFault when the response is malformed or answers another request."""
    data = bytes(frame)
    name = response_type.__name__
    try:
        header, size = _find_reader(response_type.__header_schema__)(data, 0)
        if header.correlation_id != correlation:
            raise RemoteFault(f"{where}: answer to request {header.correlation_id} where {correlation} was due")
        entity, _ = _find_reader(response_type)(data, size)
    except (KeyError, ValueError, SerialError, IndexError) as error:
        # kio raises KeyError on an unknown tagged field and ValueError on an unknown error code.
        raise RemoteFault(
            f"{where}: {name} v{response_type.__version__} not understood ({error!r}): broker newer than this codec?"
        ) from None
    decoded: Response = entity
    return decoded
