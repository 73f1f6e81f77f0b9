"""`kbroker client-metrics`."""

from __future__ import annotations

import pytest


def test_a_subscriptions_life(anywhere, name):
    verb = ["client-metrics"]
    wanted = ["--interval", "30000", "--metrics", "org.apache.kafka.producer.", "--match", "client_id=app-.*"]
    assert anywhere.ok(*verb, "create", name, *wanted).text == f"created {name}\n"
    assert name in [each["name"] for each in anywhere.ok(*verb, "list", "--json").json]
    (told,) = anywhere.ok(*verb, "describe", name, "--json").json
    assert told == {
        "name": name,
        "interval_ms": "30000",
        "metrics": "org.apache.kafka.producer.",
        "match": "client_id=app-.*",
    }
    assert "alter` changes it" in anywhere.fails(*verb, "create", name, "--metrics", "*")
    anywhere.ok(*verb, "alter", name, "--interval", "60000", "--default", "match")
    (told,) = anywhere.ok(*verb, "describe", name, "--json").json
    assert (told["interval_ms"], told["metrics"], told["match"]) == ("60000", "org.apache.kafka.producer.", None)
    assert [name, "60000", "org.apache.kafka.producer.", "-"] in [
        line.split() for line in anywhere.ok(*verb, "describe").lines
    ]
    assert anywhere.ok(*verb, "delete", name).text == f"deleted {name}\n"
    assert name not in [each["name"] for each in anywhere.ok(*verb, "list", "--json").json]
    assert anywhere.fails(*verb, "delete", name).startswith(f"no subscription {name}; there ")
    assert anywhere.fails(*verb, "describe", name).startswith(f"no subscription {name}; there ")


def test_a_name_is_made(cli):
    made = cli.ok("client-metrics", "create", "--generate-name", "--metrics", "*").text
    assert made.startswith("created ")
    name = made.split()[1]
    assert len(name) == 22
    cli.ok("client-metrics", "delete", "--", name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "--metrics", "*"], "either a name or --generate-name"),
        (["create", "n"], "say which metrics"),
        (["create", "n", "--metrics", "*", "--match", "client_ID=x"], "--match takes SELECTOR=REGEX"),
        (["alter", "n"], "nothing to change"),
    ],
)
def test_wrong_usage(cli, arguments, said):
    done = cli("client-metrics", *arguments)
    assert done.status == 2
    assert said in done.err
