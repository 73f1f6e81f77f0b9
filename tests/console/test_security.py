"""Who may log in, what they may do, and what the console reports about it."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from types import SimpleNamespace

import pytest

from kbroker.admin.errors import AdminError
from kbroker.console.guard import POLICY, refusal
from kbroker.console.login_tries import LoginTries
from kbroker.console.pages import ACTIONS
from kbroker.console.passwords import hashed, is_users, matches, read_users
from kbroker.console.sessions import Sessions
from kbroker.embed_security import Certificates
from kbroker.local_http import CONSOLE, NoPlace, parse
from tests.console.visitor import Visitor


def refused(method="GET", *, public=False, scheme="http", **headers):
    told = {"host": "127.0.0.1:1", **headers}
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items()]
    found = refusal(method, sent, public=public, scheme=scheme)
    return None if found is None else found[0]


def test_only_this_consoles_names_are_let_in():
    assert refused() is None
    assert refused(host="localhost:1") is None
    assert refused(host="[::1]:1") is None
    assert refused(host="evil.example") == 421
    assert refused(host="127.0.0.1.evil.example") == 421
    assert refused(host="evil.example", public=True) is None


def test_pages_of_other_sites_ask_nothing():
    assert refused("POST", origin="http://127.0.0.1:1") is None
    assert refused("POST", origin="https://127.0.0.1:1") == 403
    assert refused("POST", origin="https://127.0.0.1:1", scheme="https") is None
    assert refused("POST", origin="null") == 403
    assert refused("POST", sec_fetch_site="same-origin") is None
    assert refused("POST", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 403
    assert refused(sec_fetch_site="cross-site") == 403
    assert refused(sec_fetch_site="cross-site", sec_fetch_mode="navigate") is None, "a link is nothing to fear"
    assert refused("POST", content_length="99999999") == 413
    assert refused("POST", content_length="-1") == 413


def test_a_name_may_be_allowed(start, cluster):
    web = start(cluster.bootstrap_servers, names=frozenset({"console.example"}))
    assert web.get("/", host="console.example:1").status == 200
    assert web.get("/", host="other.example:1").status == 421


def test_answers_have_a_strict_policy(web):
    for path in ("/", "/topics/orders/messages", "/nothing", "/static/console.js"):
        headers = web.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    for word in ("unsafe", "*", "http:", "https:"):
        assert word not in POLICY
    assert web.get("/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["..%2fguard.py", "%2e%2e/guard.py", "..", "", "%00", "%2fetc%2fpasswd", "x" * 250])
def test_nothing_is_served_but_what_is_in_the_list(web, name):
    assert web.get(f"/static/{name}").status == 404


@pytest.mark.parametrize("action", [each.name for each in ACTIONS])
def test_nothing_is_changed_without_the_forms_token(web, action):
    web.page("/")
    fields = {"topic": "orders", "name": "orders", "confirm": "orders", "id": "x", "broker": "1", "feature": "x"}
    assert web.send(f"/do/{action}", fields).status == 403
    assert web.send(f"/do/{action}", {**fields, "token": "0" * 64}).status == 403
    other = Visitor(web.url)
    assert web.send(f"/do/{action}", {**fields, "token": other.token()}).status == 403
    assert web.get(f"/do/{action}").status == 405


def test_what_destroys_asks_for_the_name():
    asks = {each.name for each in ACTIONS if each.confirms is not None}
    assert asks >= {
        "topic-delete", "topic-truncate", "topic-elect-unclean", "group-delete", "group-reset", "group-delete-offsets",
        "acl-remove", "user-remove", "transaction-abort", "transaction-terminate", "token-expire", "drain",
    }  # fmt: skip


@pytest.mark.parametrize("action", [each.name for each in ACTIONS])
def test_a_console_that_only_shows_changes_nothing(read_only, action):
    assert read_only.send(f"/do/{action}", {"token": ""}).status == 403


@pytest.fixture(scope="module")
def read_only(cluster):
    from tests.console.conftest import served

    with served(cluster.bootstrap_servers, read_only=True) as server:
        yield Visitor(server.url)


def test_a_console_that_only_shows_has_no_buttons(read_only):
    from tests.console.walk import WALK

    for path in WALK:
        text = read_only.page(path).text
        assert "/do/" not in text, path
        assert "read-only" in text


@pytest.fixture
def locked(start, cluster):
    return start(cluster.bootstrap_servers, users={"alice": hashed("open sesame")})


def test_one_has_to_log_in(locked):
    assert locked.get("/").status == 303
    assert locked.get("/topics?q=a").headers["location"] == "/login?next=%2Ftopics%3Fq%3Da"
    assert locked.get("/topics/orders/tail", accept="text/event-stream").status == 401
    assert locked.send("/do/topic-delete", {"topic": "orders", "confirm": "orders"}).status == 401
    assert "orders" not in locked.get("/topics").text
    assert locked.get("/nothing").text == "There is no such page\n"
    wrong = locked.send("/login", {"user": "alice", "password": "open"})
    assert (wrong.status, "The name or the password is wrong" in wrong.words) == (401, True)
    assert 'name="user" value="alice"' in wrong.text, "only the password is typed again"
    nobody = locked.send("/login", {"user": "bob", "password": "open"})
    assert nobody.words == wrong.words
    right = locked.send("/login", {"user": "alice", "password": "open sesame", "next": "/topics"})
    assert (right.status, right.headers["location"]) == (303, "/topics")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "orders" in locked.page("/topics").words
    assert "Log out alice" in locked.page("/topics").words
    locked.send("/logout", {"token": locked.token()})
    assert locked.get("/").status == 303


@pytest.mark.parametrize("next_", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb: c"])
def test_nobody_is_sent_elsewhere(locked, next_):
    right = locked.send("/login", {"user": "alice", "password": "open sesame", "next": next_})
    assert right.headers["location"] == "/"


def test_tries_to_log_in_are_few(locked):
    for _ in range(5):
        assert locked.send("/login", {"user": "alice", "password": "x"}).status == 401
    assert locked.send("/login", {"user": "alice", "password": "open sesame"}).status == 429


class Tries:
    """Login attempts on their own clock, which sleeping moves."""

    def __init__(self):
        self.now = 0.0
        self.looks = 0
        self.at_once = [0, 0]
        self.tries = LoginTries(lambda: self.now, self.sleep)

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)

    def look(self, right):
        self.looks += 1
        self.at_once[0] += 1
        self.at_once[1] = max(self.at_once)
        time.sleep(0.001)
        self.at_once[0] -= 1
        return right

    def judge(self, address, right=False):
        return self.tries.judge(address, lambda: self.look(right))


def test_wrong_answers_of_an_address_are_counted_for_a_minute():
    async def story():
        world = Tries()
        assert [await world.judge("a") for _ in range(6)] == [False] * 5 + [None]
        assert await world.judge("a", right=True) is None, "what is right is not looked at either"
        assert await world.judge("b", right=True)
        world.now += 61.0
        assert await world.judge("a", right=True)
        assert [await world.judge("a", right=True) for _ in range(9)] == [True] * 9, "a right answer counts for nothing"

    asyncio.run(story())


def test_wrong_answers_of_others_do_not_lock_out_who_knows_the_password():
    async def story():
        world = Tries()
        wrong = await asyncio.gather(*(world.judge(f"c{number}") for number in range(30)))
        assert wrong == [False] * 30
        assert world.now == 0.0
        for number in range(40):
            await world.judge(f"d{number % 8}")
        began = world.now
        assert await world.judge("owner", right=True)
        assert world.now - began <= 2.0

    asyncio.run(story())


def test_many_addresses_guess_no_faster_than_one_after_the_other():
    async def story():
        world = Tries()
        for number in range(100):
            await world.judge(f"c{number}")
        assert world.looks == 100
        assert world.now >= 2.0 * 69
        tries = [world.judge(f"e{number % 50}") for number in range(100)]
        told = await asyncio.gather(*tries)
        assert told.count(None) == 100 - 32
        assert world.at_once[1] == 1

    asyncio.run(story())


def test_who_has_logged_in_before_and_this_machine_wait_for_no_strangers():
    async def story():
        world = Tries()
        assert await world.judge("owner", right=True)
        for number in range(40):
            await world.judge(f"c{number}")
        began = world.now
        strangers = [asyncio.create_task(world.judge(f"e{number}")) for number in range(50)]
        await asyncio.sleep(0)
        assert await world.judge("new", right=True) is None, "as many wait as may"
        assert await world.judge("owner", right=True)
        assert await world.judge("127.0.0.1", right=True)
        assert [await world.judge("::1") for _ in range(6)] == [False] * 5 + [None], "their wrong answers count"
        assert (await asyncio.gather(*strangers)).count(False) == 32
        assert world.now - began >= 2.0 * 31
        for number in range(1001):
            assert await world.judge(f"k{number}", right=True)
        assert len(world.tries._known) == 1000

    asyncio.run(story())


def test_sessions_end():
    now = [0.0]
    sessions = Sessions({"a": hashed("b")}, name="n", secure=False, clock=lambda: now[0])
    assert sessions.knows("a", "b")
    key = sessions.begin("a")

    request = SimpleNamespace(cookies={"n": key})
    assert sessions.of(request) is not None
    now[0] = 3 * 3600
    assert sessions.of(request) is None, "it was not used for long"
    assert not sessions.is_token(key, "é"), "and is no mistake of ours"


def test_passwords_are_kept_as_scrypt_has_them(tmp_path):
    line = hashed("one")
    assert matches("one", line)
    assert not matches("two", line)
    assert line != hashed("one"), "each has a salt"
    assert is_users({"a": line}, "a", "one")
    assert not is_users({"a": line}, "b", "one")
    assert not is_users({"a": line}, "a", "x" * 5000)
    users = tmp_path / "users"
    users.write_text(f"# ours\n\nalice:{line}\n")
    assert list(read_users(users)) == ["alice"]
    for wrong in ("alice", "alice:secret", "alice:scrypt$16384$8$1$$", f"alice:{line.replace('16384', '1048576')}"):
        users.write_text(wrong)
        with pytest.raises(AdminError, match="line 1 does not have the form"):
            read_users(users)


def test_others_are_let_reach_it_only_if_that_was_said():
    with pytest.raises(NoPlace, match="no user would have to log in"):
        CONSOLE.listening("0.0.0.0", 0, "--listen", public=False)
    CONSOLE.listening("0.0.0.0", 0, "--listen", public=True).close()
    with pytest.raises(NoPlace, match="unknown host"):
        CONSOLE.listening("no.such.host.invalid", 0, "--listen", public=False)
    with pytest.raises(NoPlace, match="takes HOST:PORT"):
        parse("8080", "--listen", CONSOLE.default)
    assert parse("[::1]:80", "--listen", CONSOLE.default) == ("::1", 80)


def test_changes_are_noted_without_secrets(web, caplog):
    caplog.set_level(logging.INFO, "kbroker.console.audit")
    web.do("user-add", name="noted", password="never-in-a-log", again="never-in-a-log", mechanism="SCRAM-SHA-256")
    web.do("user-remove", name="noted", confirm="noted")
    web.do("produce", topic="audit-log", value="never-in-a-log")
    web.refused("topic-create", name="bad\nname by root from 1.2.3.4: done")
    lines = [each.getMessage() for each in caplog.records if each.name == "kbroker.console.audit"]
    assert "user-add name=noted mechanism=SCRAM-SHA-256 by anybody from 127.0.0.1: done" in lines
    assert "never-in-a-log" not in caplog.text
    assert any("value=(14 characters)" in line for line in lines)
    forged = 'topic-create name="bad\\nname by root from 1.2.3.4: done" by anybody'
    assert any(line.startswith(forged) for line in lines)
    assert all("\n" not in line for line in lines)
    caplog.clear()
    web.refused("topic-create", name="bad/", **{f"field-{number}": "x" * 300 for number in range(500)})
    assert len(caplog.messages[-1]) < 21_000


def test_it_is_served_by_tls(start, cluster):
    certificates = Certificates("127.0.0.1")
    context = ssl.create_default_context(cafile=certificates.ca)
    both = certificates.settings["ssl.keystore.location"]
    try:
        web = start(cluster.bootstrap_servers, tls=(both, both))
    finally:
        certificates.remove()
    assert web.url.startswith("https://")
    secure = Visitor(web.url, context)
    found = secure.page("/")
    assert "; secure" in found.headers["set-cookie"].lower()
    assert any(name.startswith("__Host-") for name in secure.cookies)
    origin = {"origin": web.url}
    assert secure.send("/do/topic-elect", {"token": secure.token(), "topic": "orders"}, **origin).status == 303
