"""Users that exist when a broker starts: the text of --add-scram."""

from __future__ import annotations

import base64

import pytest

from kbroker.config.model import ConfigError
from kbroker.security.sasl.add_scram import parse_user
from kbroker.security.sasl.scram import ScramClient, ScramServer
from kbroker.security.sasl.scram_credential import ScramCredential, salted_password


def logs_in(configs, mechanism, name, password):
    server = ScramServer(mechanism, {name: ScramCredential.parse(configs[mechanism])}.get)
    client = ScramClient(mechanism, name, password)
    client.respond(server.respond(client.respond(server.respond(client.first()))))
    return server.identity is not None


def test_a_password():
    user = parse_user("SCRAM-SHA-256=[name=alice,password=alice-secret]")
    assert user.entity == "alice"
    stored = user.revise({"other": "x"})
    assert stored["other"] == "x"
    assert logs_in(stored, "SCRAM-SHA-256", "alice", "alice-secret")
    assert "alice-secret" not in repr(user)


def test_a_salted_password():
    salt = base64.b64encode(b"some salt").decode()
    salted = base64.b64encode(salted_password("SCRAM-SHA-512", "pencil", b"some salt", 8192)).decode()
    user = parse_user(f'SCRAM-SHA-512=[name="b,ob",iterations=8192,salt="{salt}",saltedpassword="{salted}"]')
    assert user.entity == "b%2Cob"
    assert logs_in(user.revise({}), "SCRAM-SHA-512", "b,ob", "pencil")


def test_what_holds_for_the_same_password_stays():
    user = parse_user("SCRAM-SHA-256=[name=alice,password=one]")
    stored = user.revise({})
    assert user.revise(stored) == stored
    for other in ("password=two", "password=one,iterations=5000"):
        changed = parse_user(f"SCRAM-SHA-256=[name=alice,{other}]").revise(stored)
        assert changed != stored
    assert user.revise({"SCRAM-SHA-256": "nonsense"}) != {"SCRAM-SHA-256": "nonsense"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "SCRAM-SHA-256=name=alice,password=hunter2",
        "SCRAM-SHA-1=[name=alice,password=hunter2]",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=alice]",
        "SCRAM-SHA-256=[name=alice,password=]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,saltedpassword=aaaa,salt=aaaa]",
        "SCRAM-SHA-256=[name=alice,saltedpassword=aaaa]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,iterations=4095]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,iterations=16385]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,iterations=x]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,salt=%]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,color=red]",
        "SCRAM-SHA-256=[name=alice,name=bob,password=hunter2]",
        'SCRAM-SHA-256=[name=alice,password="hunter2]',
    ],
)
def test_what_is_no_user_is_refused_in_one_line_without_the_secret(text):
    with pytest.raises(ConfigError, match=r"^--add-scram: ") as refused:
        parse_user(text)
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)
