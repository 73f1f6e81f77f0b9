"""`--profile`: named connection settings in the user's own directory."""

from __future__ import annotations

import pytest

from kbroker import Broker
from kbroker.admin.profiles import directory, read_profile
from kbroker.cli.client import warn
from tests.cli.conftest import CommandLine

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def secured():
    with Broker(users={"alice": "alice-secret"}) as running:
        yield running


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Return the directory in which profiles are searched."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KBROKER_PROFILE", raising=False)
    made = tmp_path / "kbroker" / "profiles"
    made.mkdir(parents=True)
    assert directory() == made
    return made


@pytest.fixture
def staging(profiles, secured):
    path = profiles / "staging.properties"
    settings = secured.client_settings("alice").java
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    path.chmod(0o600)
    return path


@pytest.fixture
def lost():
    """The command line, with an address in its environment where nobody listens."""
    return CommandLine(NOWHERE)


def test_a_profile_says_where_and_how(lost, staging):
    done = lost.ok("topic", "create", "by-profile", "--profile", "staging")
    assert done.err == ""
    assert "by-profile" in lost.ok("topic", "list", "--profile", "staging").text


def test_the_environment_may_name_the_profile(lost, staging, monkeypatch):
    monkeypatch.setenv("KBROKER_PROFILE", "staging")
    lost.ok("topic", "list")
    monkeypatch.setenv("KBROKER_PROFILE", "")
    assert NOWHERE in lost.fails("topic", "list")


def test_what_is_nearer_counts(lost, staging, secured, tmp_path):
    assert NOWHERE in lost.fails("topic", "list", "--profile", "staging", "--bootstrap", NOWHERE)
    other = tmp_path / "other.properties"
    other.write_text("sasl.username=nobody\n")
    impatient = ("-X", "bootstrap_timeout_ms=500")
    by_file = lost("topic", "list", "--profile", "staging", "--command-config", str(other), *impatient)
    assert "lets this client in" in by_file.err
    lost.ok("topic", "list", "--profile", "staging", "--command-config", str(other), "-X", "sasl.username=alice")


def test_a_profile_without_an_address_leaves_that_to_others(secured, staging):
    text = staging.read_text()
    staging.write_text("".join(line for line in text.splitlines(keepends=True) if "bootstrap" not in line))
    CommandLine(secured.bootstrap_servers).ok("topic", "list", "--profile", "staging")


def test_a_password_that_others_can_read_is_told(lost, staging):
    staging.chmod(0o640)
    done = lost.ok("topic", "list", "--profile", "staging")
    assert done.err == f"kbroker: {staging} has a password, and others can read it: chmod 600 {staging}\n"
    assert "alice-secret" not in done.err


def test_a_profile_may_name_its_password_instead_of_having_it(lost, staging, monkeypatch, tmp_path):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    text = staging.read_text()
    kept = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("sasl.jaas.config"))
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    login = f'sasl.jaas.config={module} required username="alice" password="${{env:ALICE_PASSWORD}}";'
    staging.write_text(f"{kept}{login}\nconfig.providers=env\nconfig.providers.env.class={provider}\n")
    staging.chmod(0o644)
    monkeypatch.setenv("ALICE_PASSWORD", "alice-secret")
    assert lost.ok("topic", "list", "--profile", "staging").err == ""
    other = tmp_path / "other.properties"
    other.write_text(staging.read_text())
    assert lost.ok("topic", "list", "--command-config", str(other), "-b", _address(text)).err.count("no effect") == 1
    monkeypatch.delenv("ALICE_PASSWORD")
    said = lost.fails("topic", "list", "--profile", "staging")
    assert said == f"profile {staging}: sasl.jaas.config: ${{env:ALICE_PASSWORD}} is not there"


def _address(text):
    (line,) = (line for line in text.splitlines() if line.startswith("bootstrap.servers="))
    return line.partition("=")[2]


@pytest.mark.parametrize("name", ["sasl.jaas.config", "sasl.password", "ssl.keystore.key", "ssl.key.password"])
def test_what_is_a_secret(profiles, name, capsys):
    path = profiles / "some.properties"
    path.write_text(f"{name}=x\n")
    path.chmod(0o644)
    read_profile("some", warn)
    assert "chmod 600" in capsys.readouterr().err
    path.write_text("security.protocol=SSL\nssl.truststore.location=ca.crt\n")
    read_profile("some", warn)
    assert capsys.readouterr().err == ""


def test_a_profile_that_is_not_there(lost, profiles, staging):
    said = lost.fails("topic", "list", "--profile", "prod")
    assert said == f"no profile prod: {profiles}/prod.properties does not exist; there are staging"
    staging.unlink()
    assert lost.fails("topic", "list", "--profile", "prod").endswith(
        "; there are none yet: `kbroker profile add` makes one"
    )


def test_a_name_is_no_path(lost, profiles):
    for name in ("../staging", "a/b", "", ".hidden"):
        assert lost("topic", "list", "--profile", name).status == 2


def test_a_file_that_is_none(lost, profiles):
    (profiles / "odd.properties").write_bytes(b"\xff\xfe")
    assert "is not a file of key=value lines" in lost.fails("topic", "list", "--profile", "odd")


def test_profiles_are_made_listed_shown_and_removed(lost, profiles, secured):
    settings = secured.client_settings("alice").java
    login = settings.pop("sasl.jaas.config")
    address = settings.pop("bootstrap.servers")
    pairs = [f"{key}={value}" for key, value in settings.items()]
    secret = ("--secret", "sasl.jaas.config")
    lost.ok("profile", "add", "made", "--bootstrap", address, *pairs, *secret, stdin=f"{login}\n".encode())
    path = profiles / "made.properties"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(profiles.iterdir()) == [path]
    lost.ok("topic", "list", "--profile", "made")
    listed = {"name": "made", "bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT"}
    assert lost.ok("profile", "list", "--json").json == [listed]
    shown = lost.ok("profile", "show", "made")
    assert "alice-secret" not in shown.text
    assert shown.text.splitlines()[0].split() == ["bootstrap.servers", address]
    assert lost.ok("profile", "show", "made", "--json").json["sasl.jaas.config"] == "(secret)"
    assert "--replace" in lost.fails("profile", "add", "made", "--bootstrap", NOWHERE)
    lost.ok("profile", "add", "made", "--bootstrap", NOWHERE, "--replace")
    assert path.read_text() == f"bootstrap.servers={NOWHERE}\n"
    lost.ok("profile", "remove", "made")
    assert lost.ok("profile", "list", "--json").json == []
    assert "there are none yet" in lost.fails("profile", "show", "made")


def test_a_value_comes_back_as_it_was_given(lost, profiles):
    lost.ok("profile", "add", "odd", "-b", NOWHERE, r"ssl.cafile=C:\new\things = all", "sasl.password=")
    assert lost.ok("profile", "show", "odd", "--json").json == {
        "bootstrap.servers": NOWHERE,
        "ssl.cafile": r"C:\new\things = all",
        "sasl.password": "(secret)",
    }
    assert read_profile("odd", warn)[1]["ssl.cafile"] == r"C:\new\things = all"


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "../x", "-b", "h:1"),
        ("add", "x"),
        ("add", "x", "key"),
        ("add", "x", "a b=c"),
        ("add", "x", "a=b\nc=d"),
        ("add", "x", "--secret", "sasl.password"),
    ],
)
def test_what_is_no_profile_is_not_made(lost, profiles, arguments):
    assert lost("profile", *arguments).status == 2
    assert list(profiles.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "..", ".", "sub/x", "/etc/x", "nul\0", ""])
def test_a_name_that_is_no_profiles_leads_nowhere(lost, profiles, name):
    (profiles.parent / "x.properties").write_text("bootstrap.servers=elsewhere:1\n")
    done = lost("topic", "list", "--profile", name)
    assert done.status == 2
    assert "a profile has a name of letters" in done.err
