"""Variables in settings, and how config providers resolve them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.changes_while_running import validate_broker
from kbroker.config.describe import describe_broker
from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.providers import Providers, _variables
from kbroker.config.server_config import BrokerConfig

PACKAGE = "org.apache.kafka.common.config.provider"
FILE = {"config.providers": "file", "config.providers.file.class": f"{PACKAGE}.FileConfigProvider"}
DIRECTORY = {"config.providers": "directory", "config.providers.directory.class": f"{PACKAGE}.DirectoryConfigProvider"}
ENV = {"config.providers": "env", "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider"}
PASSWORD = "ssl.keystore.password"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    file = tmp_path / "secrets.properties"
    file.write_text("password=file-secret\nport: 19092\nodd=one ${file:/a:b} \\\n two\n")
    file.chmod(0o600)
    (tmp_path / "key-password").write_text("directory-secret\n")
    (tmp_path / "key-password").chmod(0o600)
    return file


def described(config: BrokerConfig) -> str:
    return repr(describe_broker(config))


def test_a_file(secrets: Path) -> None:
    listeners = f"PLAINTEXT://127.0.0.1:${{file:{secrets}:port}}"
    config = BrokerConfig({**FILE, PASSWORD: f"${{file:{secrets}:password}}", "listeners": listeners})
    assert config[PASSWORD] == "file-secret"
    assert config.listeners.bind[0].port == 19092
    assert "file-secret" not in described(config)
    assert [each for each in config.warnings if "no listener speaks SSL" not in each] == []


def test_what_a_provider_tells_is_not_looked_at_again(secrets: Path) -> None:
    config = BrokerConfig({**FILE, PASSWORD: f"${{file:{secrets}:odd}}"})
    assert config[PASSWORD] == "one ${file:/a:b} two"


def test_several_variables_in_one_text(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_TEST_HOST", "127.0.0.1")
    both = {**FILE, **ENV, "config.providers": "file, env"}
    config = BrokerConfig({**both, "listeners": f"PLAINTEXT://${{env:KAFKA_TEST_HOST}}:${{file:{secrets}:port}}"})
    assert (config.listeners.bind[0].host, config.listeners.bind[0].port) == ("127.0.0.1", 19092)


def test_a_directory(secrets: Path) -> None:
    config = BrokerConfig({**DIRECTORY, PASSWORD: f"${{directory:{secrets.parent}:key-password}}"})
    assert config[PASSWORD] == "directory-secret"  # as of a typed key, blanks around it do not count
    for other in ("../x", "..", "none"):
        with pytest.raises(ConfigError, match="is not there"):
            BrokerConfig({**DIRECTORY, PASSWORD: f"${{directory:{secrets.parent}:{other}}}"})
    with pytest.raises(ConfigError, match="is no directory"):
        BrokerConfig({**DIRECTORY, PASSWORD: f"${{directory:{secrets}:x}}"})


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLS_PASSWORD", "env-secret")
    monkeypatch.setenv("OTHER_PASSWORD", "other-secret")
    allowed = {**ENV, "config.providers.env.param.allowlist.pattern": "TLS_.*"}
    assert BrokerConfig({**allowed, PASSWORD: "${env:TLS_PASSWORD}"})[PASSWORD] == "env-secret"
    assert BrokerConfig({**ENV, PASSWORD: "${env:OTHER_PASSWORD}"})[PASSWORD] == "other-secret"
    with pytest.raises(ConfigError, match="is not there") as caught:
        BrokerConfig({**allowed, PASSWORD: "${env:OTHER_PASSWORD}"})
    assert "other-secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="has no path"):
        BrokerConfig({**ENV, PASSWORD: "${env:/etc:TLS_PASSWORD}"})


def test_only_allowed_paths_are_read(secrets: Path, tmp_path: Path) -> None:
    allowed = {**FILE, "config.providers.file.param.allowed.paths": str(secrets.parent)}
    assert BrokerConfig({**allowed, PASSWORD: f"${{file:{secrets}:password}}"})[PASSWORD] == "file-secret"
    for path in ("/etc/hosts", f"{tmp_path}/../other", f"{tmp_path}-beside/x"):
        with pytest.raises(ConfigError, match="may not be read"):
            BrokerConfig({**allowed, PASSWORD: f"${{file:{path}:password}}"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config.providers": "vault"}, "config.providers.vault.class is missing"),
        ({"config.providers": "x", "config.providers.x.class": "org.example.Vault"}, "runs no Java class"),
        ({**FILE, "config.providers.file.param.allowed.path": "/etc"}, "is no parameter of"),
        ({**FILE, "config.providers.file.param.allowed.paths": "etc"}, "path etc is not absolute"),
        ({**FILE, "config.providers.file.param.allowed.paths": "/nowhere/at/all"}, "does not exist"),
        ({**ENV, "config.providers.env.param.allowlist.pattern": "("}, "is no regular expression"),
        ({**FILE, PASSWORD: "${file:/nowhere/at/all:x}"}, "cannot read /nowhere/at/all: No such file"),
        ({**FILE, PASSWORD: "${file:/dev/null:x}"}, "/dev/null is no file"),
        ({**FILE, PASSWORD: "${file:x}"}, "is not there"),
    ],
)
def test_what_cannot_be_stops_the_start_in_a_line(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        BrokerConfig(settings)
    assert "\n" not in str(caught.value)


def test_a_pipe_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no file"):
        BrokerConfig({**FILE, PASSWORD: f"${{file:{tmp_path}/pipe:x}}"})


def test_without_a_provider_variables_stay_as_they_are(secrets: Path) -> None:
    assert BrokerConfig({PASSWORD: "${vault:x:y}"})[PASSWORD] == "${vault:x:y}"
    config = BrokerConfig({**FILE, PASSWORD: "${vault:x:y}"})
    assert config[PASSWORD] == "${vault:x:y}"
    assert any("config.providers has no vault" in each for each in config.warnings)


def test_a_file_that_everybody_may_read_is_told(secrets: Path) -> None:
    secrets.chmod(0o644)
    config = BrokerConfig({**FILE, PASSWORD: f"${{file:{secrets}:password}}"})
    assert any(f"{secrets}, which settings are read from, can be read by every user" in w for w in config.warnings)


def test_no_error_shows_what_a_provider_told(secrets: Path) -> None:
    for name in ("num.partitions", "log.cleanup.policy", "listeners", "broker.id", "authorizer.class.name"):
        with pytest.raises(ConfigError) as caught:
            BrokerConfig({**FILE, name: f"${{file:{secrets}:password}}"})
        assert "file-secret" not in str(caught.value)
        assert "${file:" in str(caught.value)


@pytest.mark.parametrize("name", ["password", "several"])
def test_no_error_shows_an_element_of_a_list_that_a_provider_told(secrets: Path, name: str) -> None:
    with secrets.open("a") as file:
        file.write("several=file-secret,User:bob; file-secret\n")
    authorizer = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({**FILE, **authorizer, "super.users": f"${{file:{secrets}:{name}}};User:alice"})
    assert "file-secret" not in str(caught.value)
    assert "${file:" in str(caught.value)


LOCATION = "listener.name.x.ssl.keystore.location"


def test_dynamic_configs_are_looked_up_and_shown_as_they_were_set(secrets: Path) -> None:
    config = BrokerConfig(FILE)
    hidden = f"${{file:{secrets}:password}}"
    validate_broker(config, {LOCATION: hidden}, per_broker=True)
    config.set_dynamic({}, {LOCATION: hidden})
    assert config.dynamic_broker == {LOCATION: "file-secret"}
    entries = {each.name: each for each in describe_broker(config)}
    assert (entries[LOCATION].value, entries[LOCATION].synonyms[0][1]) == (hidden, hidden)
    assert "file-secret" not in described(config)
    secrets.write_text("password=new")
    config.resolve_again()
    assert config.dynamic_broker == {LOCATION: "new"}


def test_a_dynamic_config_that_cannot_be_looked_up_is_refused(secrets: Path) -> None:
    config = BrokerConfig(FILE)
    with pytest.raises(InvalidConfig, match="is not there"):
        validate_broker(config, {LOCATION: f"${{file:{secrets}:none}}"}, per_broker=True)
    # As in Kafka, a number cannot be a variable here.
    with pytest.raises(InvalidConfig, match="Not a number") as caught:
        validate_broker(config, {"message.max.bytes": f"${{file:{secrets}:password}}"}, per_broker=False)
    assert "file-secret" not in caught.value.text
    # The config may be gone by the next start, which does no harm.
    config.set_dynamic({}, {LOCATION: "${file:/nowhere:x}"})
    assert config.dynamic_broker == {}
    assert any("cannot read /nowhere" in each for each in config.warnings)


def test_what_takes_long_to_look_up_is_refused_while_a_broker_serves(secrets: Path) -> None:
    config = BrokerConfig(FILE)
    variable = f"${{file:{secrets}:password}}"
    validate_broker(config, {LOCATION: variable * 20}, per_broker=True)
    with pytest.raises(InvalidConfig, match="20 variables at most"):
        validate_broker(config, {LOCATION: variable * 21}, per_broker=True)
    large = secrets.with_name("large.properties")
    large.write_text("password=x\n" + "#" * (1 << 14))
    large.chmod(0o600)
    assert BrokerConfig({**FILE, PASSWORD: f"${{file:{large}:password}}"})[PASSWORD] == "x"
    with pytest.raises(InvalidConfig, match="larger than 16384"):
        validate_broker(config, {LOCATION: f"${{file:{large}:password}}"}, per_broker=True)


@pytest.mark.parametrize("text", ["${" * 200_000, "${file" + ":a" * 200_000, "${a" * 200_000 + "}", "$" * 400_000])
def test_texts_that_look_like_variables_are_gone_through_once(text: str) -> None:
    begun = time.process_time()
    Providers("file", FILE).resolved("x", text)
    assert time.process_time() - begun < 0.5


@given(st.lists(st.sampled_from(["${", "}", ":", "a", "b:c", "$", "{"]), max_size=12).map("".join))
def test_variables_are_those_of_kafkas_pattern(text: str) -> None:
    pattern = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")  # ConfigTransformer's
    expected = [(each.start(), each.end(), each[1], each[2] or "", each[3]) for each in pattern.finditer(text)]
    assert list(_variables(text)) == expected


def test_who_may_alter_configs_reads_no_files_without_a_provider(secrets: Path) -> None:
    config = BrokerConfig()
    text = f"${{file:{secrets}:port}}"
    with pytest.raises(InvalidConfig):
        validate_broker(config, {**FILE, "message.max.bytes": text}, per_broker=False)
