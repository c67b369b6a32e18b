"""One blocking connection to one broker: TCP, TLS, SASL (PLAIN, SCRAM), frames."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import math
import random
import secrets
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Final

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from mirror_core.kafka.codec import AnyResponse, Request, Response, decode, encode
from mirror_core.kafka.config import (
    ClusterConfig,
    Principal,
    check_login_properties,
    get_sasl_mechanism,
    get_security_protocol,
)
from mirror_core.kafka.progress_timeout import local_processing, report_progress
from mirror_core.kafka.sockets import Buffer, connect, push, receive, to_frame, wait_readable
from mirror_core.kafka.tls import get_tls_context
from mirror_core.model.errors import (
    AuthenticationFailed,
    ConnectionRefused,
    ConnectionRejected,
    RemoteFault,
    Unreachable,
)
from mirror_core.model.text import format_address

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ServerNotTrusted(Exception):
    """The server did not prove that it knows the password, or its response is malformed."""


@lru_cache(maxsize=64)
def _salt_password(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Cached: milliseconds of CPU, and a cluster's brokers share salt and iterations."""
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


def exchange_plain(user: str, password: str) -> Generator[bytes, bytes, None]:
    yield b"\0" + user.encode() + b"\0" + password.encode()


def exchange_scram(mechanism: str, user: str, password: str) -> Generator[bytes, bytes, None]:
    """Returns once the server has proved itself."""
    digest = MECHANISMS[mechanism]
    nonce = base64.b64encode(secrets.token_bytes(18)).decode()
    name = user.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    response = yield f"n,,{first_bare}".encode()
    try:
        server_first = response.decode()
        fields = dict(part.split("=", 1) for part in server_first.split(","))
        if "m" in fields:
            raise ServerNotTrusted("the broker demands a SCRAM extension (m=) that this client does not have")
        server_nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError):
        raise ServerNotTrusted("malformed first SCRAM answer") from None
    # Fewer rounds would let a fake server harvest a cheap password hash.
    if not server_nonce.startswith(nonce) or server_nonce == nonce or not 4096 <= iterations <= 1_000_000:
        raise ServerNotTrusted("SCRAM nonce or iteration count out of range")
    salted = _salt_password(digest, password, salt, iterations)
    client_key = hmac.new(salted, b"Client Key", digest).digest()
    final_bare = f"c=biws,r={server_nonce}"
    message = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.new(hashlib.new(digest, client_key).digest(), message, digest).digest()
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = yield f"{final_bare},p={proof}".encode()
    expected = hmac.new(hmac.new(salted, b"Server Key", digest).digest(), message, digest).digest()
    if not hmac.compare_digest(server_final, b"v=" + base64.b64encode(expected)):
        raise ServerNotTrusted("the server's SCRAM signature is wrong")


CLIENT_ID = "mirrorbook"
MAX_FRAME_BYTES = 128 << 20
"""No request asks for as much."""

_MAX_IN_FLIGHT_BYTES: Final = 128 << 10
"""Fits into socket buffers: a broker that waits for us to read must not block our writes."""
_ROUND_TRIP_SAMPLES: Final = 3
"""Before the shortest counts as the distance; SASL takes as many."""
_REVOCATION_CODES = frozenset({3, 11, 12, 23})
"""OpenSSL: certificate revoked, or CRL missing or not in force."""
_HOST_MISMATCH_CODES = frozenset({62, 64})
"""OpenSSL: valid for another host name or address."""

_BROKERS_ONLY_REQUEST = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
_SESSION_SHARE: Final = (0.7, 0.85)
"""SASL: part of the session's lifetime; random, so connections do not renew together."""
_TIMEVAL = struct.Struct("@ll")


class Connection:
    """`sock` is public: the copying task polls several."""

    newest_versions: Mapping[int, int] = MappingProxyType({})
    """By API key, once fetched."""
    _renew_at = math.inf

    def __init__(
        self, cluster: ClusterConfig, principal: Principal, host: str, port: int, *, timeout_s: float = 10.0
    ) -> None:
        self.where = f"cluster {cluster.name}, broker {format_address(host, port)}"
        self.response_pending = False
        """The next bytes do not answer a new request."""
        self.timeout_s = timeout_s
        self._endpoint = cluster, principal, host, port
        self._receive_s = timeout_s
        self._ids = itertools.count(1)
        properties = cluster.properties(principal)
        check_login_properties(f"cluster {cluster.name}", properties)
        protocol = get_security_protocol(properties)
        # With TLS 1.3 a broker refuses clients without certificate after the handshake.
        self._tls_hint, self._has_received = "", False
        tls = None
        if protocol.endswith("SSL"):
            tls = get_tls_context(cluster.name, properties)
            if "ssl.certificate.location" not in properties:
                self._tls_hint = "; if it wants client certificates, set ssl.certificate.location and ssl.key.location"
        try:
            self.sock = connect(host, port, timeout_s)
        except OSError as error:
            kind = ConnectionRefused if isinstance(error, ConnectionRefusedError) else Unreachable
            raise kind(f"{self.where}: cannot connect: {error.strerror or type(error).__name__}") from None
        except UnicodeError:
            raise Unreachable(f"{self.where}: cannot connect: {host!r} can be no host's name") from None
        self.round_trip_s = 0.0
        """Shortest, from request to response; 0 before the first. TLS handshakes may end at a proxy."""
        self._round_trips = 0
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._start_tls(tls, host)
            self.set_timeout(timeout_s)
            if protocol.startswith("SASL"):
                self._authenticate(cluster, properties)
        except BaseException:
            self.close()
            raise

    def _start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        try:
            self.sock = tls.wrap_socket(self.sock, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            remedy = "check ssl.crl.location" if error.verify_code in _REVOCATION_CODES else "check ssl.ca.location"
            if error.verify_code in _HOST_MISMATCH_CODES:
                remedy = "connect by a name that the certificate holds, or have one issued that holds this one"
            raise AuthenticationFailed(f"{self.where}: certificate refused: {error.verify_message}; {remedy}") from None
        except OSError as error:
            is_closed = isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError)
            raise (Unreachable if is_closed else ConnectionRejected)(
                f"{self.where}: TLS handshake failed: {error.strerror or type(error).__name__}; is TLS spoken there?"
            ) from None

    def _authenticate(self, cluster: ClusterConfig, properties: dict[str, str]) -> None:
        mechanism = get_sasl_mechanism(properties)
        user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
        exchange = exchange_plain(user, password) if mechanism == "PLAIN" else exchange_scram(mechanism, user, password)
        self._renew_at, began_at = math.inf, time.monotonic()
        handshake = self.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if handshake.error_code is not ErrorCode.none:
            offered = ", ".join(handshake.mechanisms)
            raise AuthenticationFailed(
                f"{self.where}: sasl.mechanism {mechanism} is not enabled there; the broker offers {offered}"
            )
        try:
            message = next(exchange)
            while True:
                response = self.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
                if response.error_code is not ErrorCode.none:
                    raise AuthenticationFailed(
                        f"{self.where}: authentication as {user!r} failed: check sasl.username and sasl.password"
                    )
                if lifetime_s := response.session_lifetime.total_seconds():
                    self._renew_at = began_at + lifetime_s * random.uniform(*_SESSION_SHARE)
                message = exchange.send(bytes(response.auth_bytes))
        except StopIteration:
            return
        except ServerNotTrusted as error:
            raise RemoteFault(f"{self.where}: {error}") from None

    @property
    def is_session_expiring(self) -> bool:
        return time.monotonic() >= self._renew_at

    def renew_session(self) -> None:
        """Signs in again when due: brokers close connections beyond connections.max.reauth.ms (KIP-368).

        Only with nothing in flight.
        """
        if not self.is_session_expiring:
            return
        brief_s, (cluster, principal, _, _) = self._receive_s, self._endpoint
        self.set_timeout(self.timeout_s)
        self._authenticate(cluster, cluster.properties(principal))
        self.set_receive_timeout(brief_s)

    def call(self, request: Request, response_type: type[Response], timeout_s: float | None = None) -> Response:
        """Only with nothing in flight."""
        self.renew_session()
        usual_s, correlation, sent_at = self.timeout_s, next(self._ids), time.monotonic()
        self.response_pending = True
        self.send([encode(request, correlation, CLIENT_ID)])
        if timeout_s:
            self.set_timeout(timeout_s)
        frame = self.receive()
        if timeout_s:
            self.set_timeout(usual_s)
        self._record_round_trip(sent_at)
        response = self._decode(response_type, frame, correlation)
        self.response_pending = False  # only now: the frame may have answered another request
        return response

    def call_each(self, requests: Sequence[Request], response_type: type[Response]) -> list[Response]:
        """Pipelined; brokers answer in order."""
        return list(self.iter_responses(requests, response_type))

    def iter_responses(self, requests: Sequence[Request], response_type: type[Response]) -> Iterator[Response]:
        """Pipelined."""
        return (self._decode(response_type, frame, correlation) for correlation, frame in self._exchange(requests))

    def call_mixed(self, requests: Sequence[tuple[Request, type[AnyResponse]]]) -> list[AnyResponse]:
        frames = self._exchange([request for request, _ in requests])
        return [
            self._decode(response_type, frame, correlation)
            for (correlation, frame), (_, response_type) in zip(frames, requests, strict=True)
        ]

    def _decode(self, response_type: type[Response], frame: bytearray, correlation: int) -> Response:
        with local_processing():
            return decode(response_type, frame, correlation, self.where)

    def _exchange(self, requests: Sequence[Request]) -> Iterator[tuple[int, bytearray]]:
        """Ends `response_pending` after the last good response."""
        self.response_pending = True
        in_flight, in_flight_bytes = deque[tuple[int, int]](), 0
        for request in requests:
            correlation = next(self._ids)
            frame = encode(request, correlation, CLIENT_ID)
            while in_flight and (in_flight_bytes + len(frame) > _MAX_IN_FLIGHT_BYTES or self.is_session_expiring):
                in_flight_id, frame_bytes = in_flight.popleft()
                yield in_flight_id, self.receive()
                in_flight_bytes -= frame_bytes
            self.renew_session()
            self.response_pending = True
            self.send([frame])
            in_flight.append((correlation, len(frame)))
            in_flight_bytes += len(frame)
        for in_flight_id, _ in in_flight:
            yield in_flight_id, self.receive()
        self.response_pending = False

    def _record_round_trip(self, sent_at: float) -> None:
        took_s = time.monotonic() - sent_at
        self.round_trip_s = min(self.round_trip_s, took_s) if self._round_trips else took_s
        self._round_trips += 1

    def measure_round_trip(self) -> None:
        """Several: a proxy or a busy broker distorts single ones."""
        while self._round_trips < _ROUND_TRIP_SAMPLES:
            self.call(_BROKERS_ONLY_REQUEST, MetadataResponse)

    def fetch_newest_versions(self) -> None:
        response = self.call(ApiVersionsRequest(), ApiVersionsResponse)
        self.newest_versions = {int(row.api_key): int(row.max_version) for row in response.api_keys}

    def set_timeout(self, seconds: float) -> None:
        """By the kernel where possible: saves system calls."""
        self.timeout_s = self._receive_s = seconds
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(seconds)
            return
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, _to_timeval(seconds))

    def set_receive_timeout(self, seconds: float) -> None:
        """For `brief` reads; other waits keep theirs."""
        self._receive_s = seconds
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(seconds)
        else:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _to_timeval(seconds))

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Parts are not joined: records leave from the buffer they arrived in."""
        frame = to_frame(parts)
        unsent_bytes, rest = sum(map(len, frame)), self.push(frame, self.timeout_s)
        while rest:
            if len(rest) == unsent_bytes:
                raise Unreachable(f"{self.where}: it takes nothing more since {self.timeout_s} s{self._tls_hint}")
            unsent_bytes, rest = len(rest), self.push([rest], self.timeout_s)

    def push(self, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        """See `sockets.push`: push unsent bytes first."""
        try:
            return push(self.sock, parts, timeout_s)
        except OSError as error:
            raise self._connection_lost(
                f"connection lost while sending: {error.strerror or type(error).__name__}"
            ) from None

    def receive(self) -> bytearray:
        header = bytearray(4)
        self.receive_into(memoryview(header))
        frame = bytearray(parse_frame_size(header, self.where))
        self.receive_into(memoryview(frame))
        return frame

    def receive_into(self, view: memoryview) -> None:
        while len(view):
            view = view[self.receive_chunk(view) :]

    def receive_chunk(self, view: memoryview, *, whole: bool = True, brief: bool = False) -> int:
        """`whole`: let the kernel fill the view if it can. `brief`: return 0 when nothing comes in time.

        `brief` without `whole`: never wait.
        """
        try:
            count = receive(self.sock, view, whole=whole, wait=whole or not brief)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            if brief:
                return 0
            raise Unreachable(f"{self.where}: no answer within {self.timeout_s} s") from None
        except OSError as error:
            raise self._connection_lost(f"connection lost: {error.strerror or type(error).__name__}") from None
        if not count:
            raise self._connection_lost("the broker closed the connection")
        self._tls_hint, self._has_received = "", True
        report_progress()
        return count

    def _connection_lost(self, reason: str) -> Unreachable:
        """An end after TLS and before any response is a refusal by a live broker."""
        is_refused = isinstance(self.sock, ssl.SSLSocket) and not self._has_received
        return (ConnectionRejected if is_refused else Unreachable)(f"{self.where}: {reason}{self._tls_hint}")

    @property
    def is_readable(self) -> bool:
        """Bytes to read, or the end."""
        decrypted = self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0
        return decrypted > 0 or bool(wait_readable([self.sock], 0.0))

    @property
    def has_responded(self) -> bool:
        """A kernel accepts connections for hanging brokers, too."""
        return self._has_received

    def open_another(self) -> Connection:
        """To the same broker. Thread-safe."""
        other = Connection(*self._endpoint, timeout_s=self.timeout_s)
        other.newest_versions = self.newest_versions
        return other

    def shut_down(self) -> None:
        """Thread-safe."""
        with suppress(OSError):  # already closed
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # below TLS, whose own shutdown starts a dialogue

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_until_responsive(connection: Connection, *, for_copying: bool = False) -> Connection:
    """Closes the connection on an error.

    Brokers sign clients in with other threads than those that handle requests, which may hang.
    """
    try:
        connection.call(_BROKERS_ONLY_REQUEST, MetadataResponse)
        if for_copying:
            connection.fetch_newest_versions()
            connection.measure_round_trip()
    except BaseException:
        connection.close()
        raise
    return connection


def _to_timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), max(1, int(seconds % 1 * 1e6)))  # 0 means no timeout


def parse_frame_size(header: bytes | bytearray | memoryview, where: str) -> int:
    (size,) = struct.unpack_from(">i", header)
    if not 4 <= size <= MAX_FRAME_BYTES:
        raise RemoteFault(
            f"{where}: frame of {size} bytes announced; this is not a Kafka broker, or TLS is expected there"
        )
    return int(size)
