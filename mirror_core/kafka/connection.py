"""One blocking connection to one broker: TCP, TLS, SASL, frames. Every wait has a time limit."""

from __future__ import annotations

import itertools
import math
import random
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from mirror_core.kafka import scram
from mirror_core.kafka.codec import AnyResponse, Request, Response, decode, encode
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.hearing import heard, reading
from mirror_core.kafka.sockets import Buffer, connect, framed, push, readable, receive
from mirror_core.kafka.tls import tls_context
from mirror_core.model.errors import BadRequest, NotLetIn, RemoteFault, SignInFailed, Unreachable
from mirror_core.model.text import format_address

CLIENT_ID = "mirrorbook"
MAX_FRAME = 128 << 20
"""No request asks for as much."""

_UNDER_WAY_BYTES: Final = 128 << 10
"""Fits into socket buffers: a broker that waits for us to read must not block our writes."""
_ROUND_TRIPS: Final = 3
"""Samples before the shortest counts as the distance; SASL takes as many."""
_REVOCATION = frozenset({3, 11, 12, 23})
"""OpenSSL: certificate revoked, or CRL missing or not in force."""
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL: valid for another host name or address."""

_NO_TOPICS = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
_SESSION_SHARE: Final = (0.7, 0.85)
"""Share of a SASL session's lifetime; random, so connections do not renew together."""
_TIMEVAL = struct.Struct("@ll")


class Connection:
    """`sock` is public: the copying task polls several."""

    _renew_at = math.inf

    def __init__(
        self, cluster: ClusterConfig, principal: Principal, host: str, port: int, *, timeout_s: float = 10.0
    ) -> None:
        self.where = f"cluster {cluster.name}, broker {format_address(host, port)}"
        self.awaits = False
        """The next bytes do not answer a new request."""
        self.timeout_s = timeout_s
        self._to = cluster, principal, host, port
        self._receive_s = timeout_s
        self._ids = itertools.count(1)
        properties = cluster.properties(principal)
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise BadRequest(f"cluster {cluster.name}: security.protocol {protocol!r} is not supported")
        # With TLS 1.3 a broker refuses clients without certificate after the handshake.
        self._hint, self._welcome = "", False
        tls = None
        if protocol.endswith("SSL"):
            tls = tls_context(cluster.name, properties)
            if "ssl.certificate.location" not in properties:
                self._hint = "; if it wants client certificates, set ssl.certificate.location and ssl.key.location"
        try:
            self.sock = connect(host, port, timeout_s)
        except OSError as error:
            raise Unreachable(f"{self.where}: cannot connect: {error.strerror or type(error).__name__}") from None
        except UnicodeError:
            raise Unreachable(f"{self.where}: cannot connect: {host!r} can be no host's name") from None
        self.round_trip_s = 0.0
        """Shortest, from request to response; 0 before the first. TLS handshakes may end at a proxy."""
        self._round_trips = 0
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._shake_hands(tls, host)
            self.wait_for(timeout_s)
            if protocol.startswith("SASL"):
                self._authenticate(cluster, properties)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, tls: ssl.SSLContext, host: str) -> None:
        try:
            self.sock = tls.wrap_socket(self.sock, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            remedy = "check ssl.crl.location" if error.verify_code in _REVOCATION else "check ssl.ca.location"
            if error.verify_code in _OTHER_NAME:
                remedy = "connect by a name that the certificate holds, or have one issued that holds this one"
            raise SignInFailed(f"{self.where}: certificate refused: {error.verify_message}; {remedy}") from None
        except OSError as error:
            ended = isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError)
            raise (Unreachable if ended else NotLetIn)(
                f"{self.where}: TLS handshake failed: {error.strerror or type(error).__name__}; is TLS spoken there?"
            ) from None

    def _authenticate(self, cluster: ClusterConfig, properties: dict[str, str]) -> None:
        mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "")).upper()
        user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
        if mechanism == "PLAIN":
            exchange = scram.plain(user, password)
        elif mechanism in scram.MECHANISMS:
            exchange = scram.scram(mechanism, user, password)
        else:
            raise BadRequest(
                f"cluster {cluster.name}: sasl.mechanism {mechanism!r} is not PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
            )
        self._renew_at, began = math.inf, time.monotonic()
        hello = self.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if hello.error_code is not ErrorCode.none:
            offered = ", ".join(hello.mechanisms)
            raise SignInFailed(
                f"{self.where}: sasl.mechanism {mechanism} is not enabled there; the broker offers {offered}"
            )
        try:
            message = next(exchange)
            while True:
                answer = self.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
                if answer.error_code is not ErrorCode.none:
                    raise SignInFailed(
                        f"{self.where}: authentication as {user!r} failed: check sasl.username and sasl.password"
                    )
                if lifetime_s := answer.session_lifetime.total_seconds():
                    self._renew_at = began + lifetime_s * random.uniform(*_SESSION_SHARE)
                message = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return
        except scram.ServerNotTrusted as error:
            raise RemoteFault(f"{self.where}: {error}") from None

    @property
    def session_ends(self) -> bool:
        return time.monotonic() >= self._renew_at

    def renew_session(self) -> None:
        """Sign in again when due: brokers close connections beyond connections.max.reauth.ms (KIP-368).

        Only with nothing in flight.
        """
        if not self.session_ends:
            return
        brief_s, (cluster, principal, _, _) = self._receive_s, self._to
        self.wait_for(self.timeout_s)
        self._authenticate(cluster, cluster.properties(principal))
        self.receive_within(brief_s)

    def call(self, request: Request, answer: type[Response], timeout_s: float | None = None) -> Response:
        """Only with nothing in flight."""
        self.renew_session()
        usual, correlation, asked = self.timeout_s, next(self._ids), time.monotonic()
        self.awaits = True
        self.send([encode(request, correlation, CLIENT_ID)])
        if timeout_s:
            self.wait_for(timeout_s)
        frame = self.receive()
        if timeout_s:
            self.wait_for(usual)
        self._measure(asked)
        found = self._decoded(answer, frame, correlation)
        self.awaits = False  # only now: the frame may have answered another request
        return found

    def call_each(self, requests: Sequence[Request], answer: type[Response]) -> list[Response]:
        """Pipelined; brokers answer in order."""
        return list(self.answers(requests, answer))

    def answers(self, requests: Sequence[Request], answer: type[Response]) -> Iterator[Response]:
        """Pipelined; yields responses as they arrive."""
        return (self._decoded(answer, frame, due) for due, frame in self._exchanged(requests))

    def call_all(self, asked: Sequence[tuple[Request, type[AnyResponse]]]) -> list[AnyResponse]:
        """Pipelined requests of several kinds."""
        frames = self._exchanged([request for request, _ in asked])
        return [self._decoded(answer, frame, due) for (due, frame), (_, answer) in zip(frames, asked, strict=True)]

    def _decoded(self, answer: type[Response], frame: bytearray, due: int) -> Response:
        with reading():
            return decode(answer, frame, due, self.where)

    def _exchanged(self, requests: Sequence[Request]) -> Iterator[tuple[int, bytearray]]:
        """Keeps the pipeline filled; ends `response_pending` after the last good response."""
        self.awaits = True
        sent, size = deque[tuple[int, int]](), 0
        for request in requests:
            correlation = next(self._ids)
            frame = encode(request, correlation, CLIENT_ID)
            while sent and (size + len(frame) > _UNDER_WAY_BYTES or self.session_ends):
                due, length = sent.popleft()
                yield due, self.receive()
                size -= length
            self.renew_session()
            self.awaits = True
            self.send([frame])
            sent.append((correlation, len(frame)))
            size += len(frame)
        for due, _ in sent:
            yield due, self.receive()
        self.awaits = False

    def _measure(self, asked: float) -> None:
        took_s = time.monotonic() - asked
        self.round_trip_s = min(self.round_trip_s, took_s) if self._round_trips else took_s
        self._round_trips += 1

    def measure_round_trip(self) -> None:
        """Several samples: a proxy's own connect or a busy broker distorts single ones."""
        while self._round_trips < _ROUND_TRIPS:
            self.call(_NO_TOPICS, MetadataResponse)

    def wait_for(self, seconds: float) -> None:
        """Enforced by the kernel where possible, which saves system calls."""
        self.timeout_s = self._receive_s = seconds
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(seconds)
            return
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, _timeval(seconds))

    def receive_within(self, seconds: float) -> None:
        """For `brief` reads; other waits keep theirs."""
        self._receive_s = seconds
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(seconds)
        else:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Parts are not joined: records leave from the buffer they arrived in."""
        frame = framed(parts)
        left, rest = sum(map(len, frame)), self.push(frame, self.timeout_s)
        while rest:
            if len(rest) == left:
                raise Unreachable(f"{self.where}: it takes nothing more since {self.timeout_s} s{self._hint}")
            left, rest = len(rest), self.push([rest], self.timeout_s)

    def push(self, parts: Sequence[Buffer], patience_s: float) -> memoryview:
        """See `sockets.push`: push unsent bytes before sending anything else."""
        try:
            return push(self.sock, parts, patience_s)
        except OSError as error:
            raise self._ended(f"connection lost while sending: {error.strerror or type(error).__name__}") from None

    def receive(self) -> bytearray:
        header = bytearray(4)
        self.receive_into(memoryview(header))
        frame = bytearray(frame_size(header, self.where))
        self.receive_into(memoryview(frame))
        return frame

    def receive_into(self, view: memoryview) -> None:
        while len(view):
            view = view[self.receive_some(view) :]

    def receive_some(self, view: memoryview, *, whole: bool = True, brief: bool = False) -> int:
        """`whole`: let the kernel fill the view if it can. `brief`: return 0 when nothing comes in time.

        Not `whole` and `brief`: never wait.
        """
        try:
            count = receive(self.sock, view, whole=whole, wait=whole or not brief)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            if brief:
                return 0
            raise Unreachable(f"{self.where}: no answer within {self.timeout_s} s") from None
        except OSError as error:
            raise self._ended(f"connection lost: {error.strerror or type(error).__name__}") from None
        if not count:
            raise self._ended("the broker closed the connection")
        self._hint, self._welcome = "", True
        heard()
        return count

    def _ended(self, words: str) -> Unreachable:
        """An end after TLS and before any response is a refusal by a live broker."""
        refused = isinstance(self.sock, ssl.SSLSocket) and not self._welcome
        return (NotLetIn if refused else Unreachable)(f"{self.where}: {words}{self._hint}")

    @property
    def has_something(self) -> bool:
        """Bytes to read, or the end."""
        decrypted = self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0
        return decrypted > 0 or bool(readable([self.sock], 0.0))

    @property
    def greeted(self) -> bool:
        """A kernel accepts connections for hanging brokers, too."""
        return self._welcome

    def another(self) -> Connection:
        """To the same broker. Thread-safe."""
        return Connection(*self._to, timeout_s=self.timeout_s)

    def cut(self) -> None:
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


def answering(connection: Connection, *, measured: bool = False) -> Connection:
    """After a response; closes the connection otherwise.

    Brokers sign clients in with other threads than those that handle requests, which may hang.
    """
    try:
        connection.call(_NO_TOPICS, MetadataResponse)
        if measured:
            connection.measure_round_trip()
    except BaseException:
        connection.close()
        raise
    return connection


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), max(1, int(seconds % 1 * 1e6)))  # 0 means no timeout


def frame_size(header: bytes | bytearray | memoryview, where: str) -> int:
    (size,) = struct.unpack_from(">i", header)
    if not 4 <= size <= MAX_FRAME:
        raise RemoteFault(
            f"{where}: frame of {size} bytes announced; this is not a Kafka broker, or TLS is expected there"
        )
    return int(size)
