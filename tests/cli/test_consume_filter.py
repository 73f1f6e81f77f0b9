"""`kbroker consume --filter`: prints the records that match, reads past the others, and names a wrong expression."""

from __future__ import annotations

import json

import pytest

VALUES = [{"n": n, "amount": n * 10, "items": [{"id": n % 3}]} for n in range(10)]


@pytest.fixture
def orders(anywhere, name):
    """Create a topic with two partitions: ten orders of two regions, a text, a tombstone."""
    anywhere.ok("topic", "create", name, "-p", "2")
    for region, partition in (("EU", 0), ("US", 1)):
        lines = b"".join(b"k%d\t%s\n" % (v["n"], json.dumps(v).encode()) for v in VALUES if v["n"] % 2 == partition)
        tag = ["-H", "tag=odd"] if partition else []
        produce = ["produce", name, "-k", "\\t", "-p", str(partition), "-H", f"region={region}", "-H", "batch=7", *tag]
        anywhere.ok(*produce, stdin=lines)
    anywhere.ok("produce", name, "-k", "\\t", "-Z", "-p", "0", stdin=b"text\tno JSON\ngone\t\n")
    return name


def keys(cli, topic, wanted, *more):
    done = cli.ok("consume", topic, "--from-beginning", "--until-end", "-f", "%k\\n", "--filter", wanted, *more)
    return sorted(done.lines)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("*", ["gone", *(f"k{n}" for n in range(10)), "text"]),
        ("odd || even", ["k1", "k3", "k5", "k7", "k9"]),
        ("header.region = 'EU'", ["k0", "k2", "k4", "k6", "k8"]),
        ("header.region = 'EU' AND value.amount > 50", ["k6", "k8"]),
        ("value.items[0].id IN (1, 2) AND NOT header.region = 'EU'", ["k1", "k5", "k7"]),
        ("header.batch + 0 = 7 AND offset BETWEEN 1 AND 2 AND partition = 1", ["k3", "k5"]),
        ("key LIKE 'k_' AND value.n >= 8", ["k8", "k9"]),
        ("value IS NULL OR value LIKE 'no %'", ["gone", "text"]),
        ("timestamp < TIMESTAMP '2020-01-01T00:00:00Z'", []),
        ("value.n <> 5", [f"k{n}" for n in range(10) if n != 5]),
    ],
)
def test_it_prints_what_matches(anywhere, orders, wanted, found):
    assert keys(anywhere, orders, wanted) == found


def test_a_count_is_of_printed_records(anywhere, orders):
    done = anywhere.ok(
        "consume", orders, "-p", "0", "-o", "0", "--filter", "value.n > 4", "--count", "1", "-f", "%i %k\\n"
    )  # fmt: skip
    assert done.lines == ["1 k6"]
    assert keys(anywhere, orders, "value.n > 4", "--count", "50", "--timeout", "500") == ["k5", "k6", "k7", "k8", "k9"]


def test_a_group_commits_the_records_that_it_has_read(cli, name):
    cli.ok("produce", name, stdin=b"".join(b"%d\n" % n for n in range(10)))
    one = ["consume", name, "-g", name, "--from-beginning", "--filter", "value IN ('3', '6')", "-X",
           "heartbeat.interval.ms=200"]  # fmt: skip
    assert cli.ok(*one, "--count", "1").lines == ["3"]
    (group,) = cli.ok("group", "describe", name, "--json").json
    assert group["partitions"][0]["current_offset"] == 4, "the printed record, and those before it"
    assert cli.ok(*one, "--until-end").lines == ["6"]
    (group,) = cli.ok("group", "describe", name, "--json").json
    assert group["partitions"][0]["current_offset"] == 10


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("header.region == 'EU'", "at character 16: a field, a text or a number is expected here"),
        ("", "at character 1: the expression is empty; * matches every record"),
        ("\udcff || A", "at character 1: this is not UTF-8"),
    ],
)
def test_a_wrong_expression_is_named_with_its_position(cli, name, wanted, said):
    done = cli("consume", name, "--filter", wanted)
    assert done.status == 2
    assert done.err.splitlines()[-1] == f"Error: --filter: {said}"


def test_a_share_group_delivers_what_it_delivers(cli, name):
    done = cli("consume", name, "--share", "g", "--filter", "A")
    assert done.status == 2
    assert "--filter does not go with --share" in done.err
