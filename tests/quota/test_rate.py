"""Rates over samples, and token buckets, as in Kafka."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbroker.quota.rate import LONGEST_MS, SampledRate, TokenBucket, Window

WINDOW = Window(11, 1000)


def test_a_first_burst_is_spread_over_all_samples():
    rate = SampledRate(WINDOW)
    rate.record(10_000, 5_000)
    assert rate.window_ms(5_000) == 10_000
    assert rate.per_second(5_000) == 1000
    assert rate.excess_ms(1000, 5_000) == 0
    assert rate.excess_ms(500, 5_000) == 10_000  # (1000 - 500) / 500 * 10 s


def test_the_window_grows_with_the_newest_sample():
    rate = SampledRate(WINDOW)
    for second in range(20):
        rate.record(100, second * 1000)
    # 10 complete seconds and the one that has just begun.
    assert rate.window_ms(19_000) == 10_000
    assert rate.per_second(19_000) == pytest.approx(110)
    assert rate.per_second(19_999) == pytest.approx(1100 / 10.999)


def test_what_is_long_ago_counts_no_more():
    rate = SampledRate(WINDOW)
    rate.record(10_000, 0)
    assert rate.per_second(10_999) > 0
    assert rate.per_second(11_000) == 0


def test_after_the_pause_the_rate_is_within_the_limit():
    rate = SampledRate(WINDOW)
    rate.record(8_000, 0)
    pause_ms = rate.excess_ms(500, 0)
    assert pause_ms == 6_000
    assert rate.excess_ms(500, pause_ms) == 6_000  # only the time has changed, which counts from complete windows on
    assert rate.per_second(pause_ms + 10_000) == 0


def test_what_is_taken_back_was_never_there():
    rate = SampledRate(WINDOW)
    rate.record(300, 100)
    before = rate.per_second(700)
    rate.record(5_000, 700)
    rate.record(-5_000, 700)
    assert rate.per_second(700) == before


def test_a_pause_has_a_bound():
    rate = SampledRate(WINDOW)
    rate.record(1e12, 0)
    assert rate.excess_ms(1e-6, 0) == LONGEST_MS
    assert rate.excess_ms(1e-6, 0, 1000) == 1000


class KafkasRate:
    """Kafka's Rate and SampledStat, step by step."""

    def __init__(self, samples, sample_ms):
        self.count, self.sample_ms, self.samples, self.current = samples, sample_ms, [], 0

    def record(self, value, now):
        if not self.samples:
            self.samples.append([now, now, 0.0])
        if now - self.samples[self.current][0] >= self.sample_ms:
            self.current = (self.current + 1) % (self.count + 1)
            if self.current >= len(self.samples):
                self.samples.append([now, now, 0.0])
            else:
                self.samples[self.current] = [now, now, 0.0]
        self.samples[self.current][2] += value
        self.samples[self.current][1] = now

    def measure(self, now):
        for at, (_, last, _) in enumerate(self.samples):
            if now - last >= self.count * self.sample_ms:
                self.samples[at] = [now, now, 0.0]
        total = sum(value for _, _, value in self.samples)
        elapsed = now - min((start for start, _, _ in self.samples), default=now)
        full = elapsed // self.sample_ms
        if full < self.count - 1:
            elapsed += (self.count - 1 - full) * self.sample_ms
        return total / (max(elapsed, 1) / 1000)


events = st.lists(st.tuples(st.integers(0, 4000), st.integers(-1000, 10_000)), max_size=60)


@given(events, st.integers(2, 12), st.sampled_from([500, 1000, 3000]))
def test_rates_against_kafkas(steps, samples, sample_ms):
    ours, model, now = SampledRate(Window(samples, sample_ms)), KafkasRate(samples, sample_ms), 0
    for pause, value in steps:
        now += pause
        ours.record(value, now)
        model.record(value, now)
        assert ours.per_second(now) == pytest.approx(model.measure(now))


@example([(0, 1050)] * 12, 50)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 2000)), min_size=5, max_size=80), st.integers(50, 5000))
def test_who_pauses_as_told_goes_no_faster_than_kafka_lets_him(steps, limit):
    rate, now, total = SampledRate(WINDOW), 0, 0
    largest = 0
    for pause, value in steps:
        now += pause
        rate.record(value, now)
        total += value
        largest = max(largest, value)
        now += rate.excess_ms(limit, now)
    # One window's worth may accumulate, and the last one goes before the pause for it. A pause of eleven seconds lets
    # all samples expire, and then ten seconds' worth may go immediately: Kafka counts those, too.
    assert total <= limit * (now / 1000 * 21 / 11 + 11) + 2 * largest


def test_tokens_are_saved_up_and_owed():
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(2, 1_000_000) == 22
    bucket.take(30, 2, 1_000_000)
    assert bucket.tokens(2, 1_000_000) == -8
    assert bucket.owed_ms(2, 1_000_000) == 4000
    assert bucket.owed_ms(2, 1_003_000) == 1000
    assert bucket.owed_ms(2, 1_004_000) == 0
    assert bucket.tokens(2, 2_000_000) == 22


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50)), max_size=50), st.floats(0.1, 100))
def test_tokens_are_never_more_than_the_burst(steps, rate):
    bucket, now = TokenBucket(WINDOW), 0.0
    for pause, count in steps:
        now += pause
        bucket.take(count, rate, now)
        assert bucket.tokens(rate, now) <= 11 * rate
        owed_ms = bucket.owed_ms(rate, now)
        assert owed_ms >= 0
        assert not math.isnan(bucket.tokens(rate, now))
        if owed_ms:
            assert bucket.tokens(rate, now + owed_ms + 1) >= -1e-6
            now += owed_ms + 1
