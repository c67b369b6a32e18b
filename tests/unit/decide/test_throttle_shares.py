"""The throttle: what a task waits, and what each task is given of a mirror's rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.task_assignment import MIN_FETCH_BYTES, RateLimiter, share_rate
from mirror_core.kafka.fetch_link import INITIAL_FETCH_BYTES, FetchSizer
from mirror_core.kafka.produce_link import MIN_WINDOW_BYTES, InflightWindow
from mirror_core.model.names import Partition

MB = 1 << 20


def test_without_a_throttle_nothing_waits() -> None:
    limiter = RateLimiter(None)
    limiter.record_read(100 * MB, 5.0)
    assert (limiter.wait_s(5.0), limiter.limit_fetch_bytes(8 * MB)) == (0.0, 8 * MB)


@given(st.integers(1, 10**9), st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 5)), min_size=1))
def test_whatever_is_read_and_when_the_rate_is_kept_but_for_the_newest_answer(
    rate: int, answers: list[tuple[int, float]]
) -> None:
    limiter, now, read = RateLimiter(rate), 100.0, 0
    for size, idle in answers:
        now += idle + limiter.wait_s(now + idle)
        assert read <= rate * (now - 100.0) * (1 + 1e-9) + 1
        limiter.record_read(size, now)
        read += size


def test_nothing_is_saved_up_while_there_is_nothing_to_read() -> None:
    limiter = RateLimiter(MB)
    limiter.record_read(MB, 0.0)
    limiter.record_read(MB, 3600.0)
    assert limiter.wait_s(3600.0) == 1.0


@pytest.mark.parametrize(("rate", "asked"), [(1, MIN_FETCH_BYTES), (MB, MB), (1 << 40, 8 * MB)])
def test_an_answer_is_about_a_second_of_the_rate(rate: int, asked: int) -> None:
    assert RateLimiter(rate).limit_fetch_bytes(8 * MB) == asked


def test_tasks_share_the_rate_by_what_they_have_to_catch_up() -> None:
    a, b, c = (Partition("t", n) for n in range(3))
    lags = {a: 29_900, b: 9_900, c: 0}
    assert share_rate(1_000_000, [(a,), (b,)], lags) == [750_000, 250_000]
    assert share_rate(None, [(a,), (b,)], lags) == [None, None]
    given_ = share_rate(100, [(a,), (b,), (c,)], lags)
    assert all(rate is not None and rate >= 1 for rate in given_)


def test_a_near_broker_is_asked_for_little_and_a_far_one_for_more_up_to_the_most() -> None:
    near, far = FetchSizer(8 << 20), FetchSizer(8 << 20)
    sizes = []
    for _ in range(20):
        near.record_response(near.request_bytes, 0.005)
        far.record_response(far.request_bytes, 0.08)
        sizes.append(far.request_bytes)
    assert near.request_bytes == INITIAL_FETCH_BYTES
    assert sorted(set(sizes)) == [INITIAL_FETCH_BYTES, 2 * INITIAL_FETCH_BYTES, 8 << 20]
    assert sizes == sorted(sizes)
    assert FetchSizer(1000).request_bytes == 1000


def test_a_busy_moment_or_an_empty_source_is_not_taken_for_distance() -> None:
    portions = FetchSizer(8 << 20)
    for seconds in (0.5, 0.005, 0.5, 0.5):
        portions.record_response(portions.request_bytes, seconds)
        portions.record_response(100, 0.5)  # the broker waited for more to come
    assert portions.request_bytes == INITIAL_FETCH_BYTES


def test_the_window_grows_to_some_round_trips_of_a_far_broker_and_no_further() -> None:
    window, now, rate = InflightWindow(0.08, 64 << 20), 100.0, 50_000_000
    sizes = []
    for _ in range(40):
        now += 0.085
        # The link takes so much, or what may be on its way at all.
        window.record_ack(int(min(rate * 0.085, window.window_bytes)), now)
        sizes.append(window.window_bytes)
    assert sizes[-1] == pytest.approx(4 * rate * 0.085, rel=0.02)
    assert max(sizes) <= 4.1 * rate * 0.085


def test_the_window_keeps_to_its_most_and_shrinks_with_the_link_but_never_below_what_a_near_broker_needs() -> None:
    window, now = InflightWindow(0.2, 16 << 20), 100.0
    for _ in range(20):
        now += 0.25
        window.record_ack(1 << 30, now)
    assert window.window_bytes == 16 << 20
    for _ in range(20):
        now += 0.25
        window.record_ack(1000, now)
    assert window.window_bytes == MIN_WINDOW_BYTES
    assert InflightWindow(0.2, 1000).window_bytes == 1000
