"""A million mutated batches: the compiled scan and the walk in Python reach the same verdict.

Every second batch is mutated as it is sent; the others are mutated before their records are compressed.

python -m tests.log.mutated_batches --batches 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from unittest.mock import patch

from kbroker.log import record_walk
from kbroker.log.append_info import CLIENT, AppendError
from kbroker.log.append_validation import BatchRules, check_header, trim
from kbroker.log.log_config import LogConfig
from kbroker.log.record_validation import is_in_order, open_batch
from kbroker.long_work import whole
from kbroker.protocol.compression import LZ4, ZSTD, decompress
from kbroker.protocol.records import HEADER_SIZE, build_batch, parse_header
from tests.log.bombs import sealed
from tests.log.builders import NOW, batch
from tests.log.test_fuzz import mutated

CONFIGS = (
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="uncompressed"),
    LogConfig(compression_type="lz4"),
    LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000),
)
LATEST_PRODUCE = 13


def seeds() -> list[bytes]:
    """Return valid batches in each codec: with few and many records, alike and different, with and without headers."""
    odd = [(NOW + i % 7, None if i % 3 else b"k" * i, b"v" * (i * 37 % 90), [("h", b"x")] * (i % 3)) for i in range(20)]
    found = [batch(count, codec=codec) for codec in range(5) for count in (1, 4)]
    found += [build_batch(odd, codec=codec) for codec in (0, 0, LZ4, ZSTD)]
    return [*found, batch(40), batch(3, producer_id=1, producer_epoch=0, base_sequence=0)]


def verdict(records: bytes, rules: BatchRules) -> tuple[object, ...]:
    """Return the verdict on a batch: the stored bytes, or the complete text of the error."""
    try:
        view = memoryview(records)
        header = check_header(view, rules, CLIENT, LATEST_PRODUCE)
        view = trim(view)
        if is_in_order(view, header, rules, NOW):
            return ("stored", bytes(view))
        return ("stored", bytes(whole(open_batch(view, header, rules, NOW, CLIENT)).batch))
    except AppendError as error:
        return ("refused", error.code, error.message, error.detail, error.record_errors)


def mutated_inside(rng: random.Random, seed: bytes) -> bytes:
    """Change a batch's records before they are compressed."""
    header = parse_header(seed)
    body = bytearray(decompress(header.codec, memoryview(seed)[HEADER_SIZE:], 1 << 20))
    for _ in range(rng.randint(0, 3)):
        body[rng.randrange(len(body))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    if rng.random() < 0.1:
        del body[rng.randrange(len(body)) :]
    elif rng.random() < 0.1:
        body += bytes(rng.randrange(4))
    count = header.record_count + rng.choice((0,) * 8 + (1, -1))
    times = header.base_timestamp, header.max_timestamp
    return sealed(bytes(body), count, header.codec, base_timestamp=times[0], max_timestamp=times[1])


def main() -> int:
    """Compare this many batches, and print how often each verdict occurred; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if record_walk.scan is None:
        sys.exit("there is no compiled scan to compare with")
    rng, base = random.Random(options.seed), seeds()
    rules = [BatchRules("topic-0", config) for config in CONFIGS]
    seen: Counter[str] = Counter()
    for number in range(options.batches):
        mutate = mutated_inside if number % 2 else mutated
        records, chosen = bytes(mutate(rng, rng.choice(base))), rng.choice(rules)
        found = verdict(records, chosen)
        with patch.object(record_walk, "scan", None):
            in_python = verdict(records, chosen)
        if found != in_python:
            sys.exit(f"seed {options.seed}, batch {number}: {records.hex()}\ncompiled {found}\nin Python {in_python}")
        seen[str(found[0] if found[0] == "stored" else found[1])] += 1
        if not (number + 1) % 100_000:
            print(f"{number + 1:,} batches: {dict(seen)}", flush=True)
    print(f"seed {options.seed}: {options.batches:,} batches, each with one verdict: {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
