"""Passwords among dynamic configs, in their stored form in ZooKeeper."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat_tests.harness.jvm import BRIEF
from kbroker.config.changes_while_running import validate_broker
from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.password_encoder import CBC, GCM, PasswordEncoder, Undecodable
from kbroker.config.server_config import BrokerConfig

PROGRAM = Path(__file__).parent / "PasswordEncoderProgram.java"
CLUSTER = {"zookeeper.connect": "127.0.0.1:2181", "broker.id": "1"}
NAME = "listener.name.inside.ssl.keystore.password"
PASSWORD = "pässword-𝄞"


def encoder(secret: str = "secret", cipher: str = CBC, **settings: object) -> PasswordEncoder:
    given_ = {"key_factory": None, "key_length": 128, "iterations": 1024, **settings}
    return PasswordEncoder(secret, cipher=cipher, **given_)  # type: ignore[arg-type]


@pytest.mark.parametrize("cipher", [CBC, GCM])
@pytest.mark.parametrize("factory", ["PBKDF2WithHmacSHA1", None])
def test_what_was_encrypted_is_read_by_the_same_secret_and_no_other(cipher: str, factory: str | None) -> None:
    text = encoder(cipher=cipher, key_factory=factory, key_length=256).encode(PASSWORD)
    assert PASSWORD not in text
    assert encoder(cipher=CBC).decode(text) == PASSWORD  # the text contains everything but the secret
    with pytest.raises(Undecodable) as caught:
        encoder("another").decode(text)
    assert PASSWORD not in str(caught.value)
    assert encoder().encode(PASSWORD) != encoder().encode(PASSWORD)


def test_many_passwords_cost_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    usual = hashlib.pbkdf2_hmac

    def counted(*arguments: object) -> bytes:
        made.append(arguments)
        return usual(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    first = encoder()
    texts = [first.encode(f"password-{number}") for number in range(1_500)]
    assert len(made) == 1
    assert len(set(texts)) == 1_500
    assert len(first._known) <= 1_000
    other = encoder()
    assert [other.decode(text) for text in texts] == [f"password-{number}" for number in range(1_500)]
    assert len(made) == 2


@given(st.text() | st.lists(st.sampled_from(["salt", "keyLength", "iterations", ":", ",", "1", "AA=="])).map("".join))
def test_a_text_that_is_none_is_undecodable(text: str) -> None:
    with pytest.raises(Undecodable):
        encoder().decode(text)


@given(st.data())
def test_a_text_that_was_changed_is_undecodable_or_says_so_little(data: st.DataObject) -> None:
    text = encoder(cipher=GCM).encode("password")
    parts = text.split(",")
    index = data.draw(st.integers(0, len(parts) - 1))
    name, _, value = parts[index].partition(":")
    parts[index] = f"{name}:{data.draw(st.sampled_from(['', '0', '-1', '99999999999', 'AAAA', value[:-2]]))}"
    with pytest.raises(Undecodable):
        encoder().decode(",".join(parts))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"password.encoder.cipher.algorithm": "DES/CBC/PKCS5Padding"}, "cipher.algorithm is DES"),
        ({"password.encoder.keyfactory.algorithm": "PBKDF1"}, "keyfactory.algorithm is PBKDF1"),
        ({"password.encoder.key.length": "64"}, "key.length is 64"),
        ({"password.encoder.iterations": "1000"}, "at least 1024"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BrokerConfig({**CLUSTER, "password.encoder.secret": "secret", **settings})


def test_an_old_secret_needs_a_new_one() -> None:
    with pytest.raises(ConfigError, match=r"but not password\.encoder\.secret"):
        BrokerConfig({**CLUSTER, "password.encoder.old.secret": "secret"})


def test_a_node_that_is_alone_has_no_use_for_them() -> None:
    config = BrokerConfig({"password.encoder.secret": "secret"})
    assert any("password.encoder.secret has no effect" in each for each in config.warnings)
    assert config.stored.write({NAME: "a"}, {}) == {NAME: "a"}
    assert config.stored.read({NAME: "a"}) == {NAME: "a"}


def test_without_a_secret_no_password_is_stored() -> None:
    config = BrokerConfig(CLUSTER)
    with pytest.raises(InvalidConfig, match="Password encoder secret not configured"):
        config.stored.write({NAME: "a"}, {})
    assert config.stored.write({"message.max.bytes": "5"}, {}) == {"message.max.bytes": "5"}


def test_a_password_on_its_way_to_the_store_and_back(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig({**CLUSTER, "password.encoder.secret": "secret"})
    configs = {NAME: PASSWORD, "message.max.bytes": "5000"}
    validate_broker(config, configs, per_broker=True)
    stored = config.stored.write(configs, {})
    assert stored["message.max.bytes"] == "5000"
    assert PASSWORD not in stored[NAME]
    assert config.stored.read(stored) == configs
    assert config.stored.write(configs, stored) == stored  # stored configs are not encrypted again
    assert config.set_dynamic({}, stored) == {"message.max.bytes"}
    assert config.dynamic_broker == configs
    other = BrokerConfig({**CLUSTER, "password.encoder.secret": "another"})
    other.set_dynamic({}, stored)
    assert other.dynamic_broker == {"message.max.bytes": "5000"}
    assert f"dynamic config {NAME} is passed over" in caplog.text
    assert PASSWORD not in caplog.text


def test_a_new_secret() -> None:
    old = BrokerConfig({**CLUSTER, "password.encoder.secret": "old"})
    new = BrokerConfig({**CLUSTER, "password.encoder.secret": "new", "password.encoder.old.secret": "old"})
    stored = old.stored.write({NAME: PASSWORD, "message.max.bytes": "5000"}, {})
    anew = new.stored.reencrypted(stored)
    assert new.stored.read(anew) == {NAME: PASSWORD, "message.max.bytes": "5000"}
    assert new.stored.reencrypted(anew) == anew
    assert old.stored.reencrypted(stored) == stored


def test_a_variable_is_stored_as_one(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("p=from-file")
    providers = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    config = BrokerConfig({**CLUSTER, **providers, "password.encoder.secret": "secret"})
    variable = f"${{file:{tmp_path}/s:p}}"
    stored = config.stored.write({NAME: variable}, {})
    assert config.stored.read(stored) == {NAME: variable}
    config.set_dynamic({}, stored)
    assert config.dynamic_broker == {NAME: "from-file"}


@pytest.mark.java
@pytest.mark.parametrize(
    ("factory", "cipher", "length"), [("", CBC, 128), ("PBKDF2WithHmacSHA1", CBC, 256), ("", GCM, 128)]
)
def test_against_apache_kafka(kafka39_libs: Path, factory: str, cipher: str, length: int) -> None:
    ours = encoder(cipher=cipher, key_factory=factory or None, key_length=length)
    command = ["java", *BRIEF, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    command += ["-cp", f"{kafka39_libs}/*", str(PROGRAM)]
    arguments = ["secret", factory, cipher, str(length), "theirs-1", ours.encode("ours-1"), ours.encode("")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=True)
    theirs, *read = done.stdout.splitlines()
    assert read == ["ours-1", ""]
    assert ours.decode(theirs) == "theirs-1"
