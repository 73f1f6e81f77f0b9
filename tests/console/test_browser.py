"""The console in a browser: every page in both themes and on a phone, and the use of its controls."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.webdriver.common.keys import Keys

from kbroker import Broker
from kbroker.console.pages import groups
from kbroker.console.records import search as searching
from tests.cli.conftest import CommandLine
from tests.console import world
from tests.console.browser import Browser
from tests.console.conftest import served
from tests.console.walk import WALK
from tests.tries import FORM, tries

pytestmark = pytest.mark.browser
AXE = """
const done = arguments[arguments.length - 1];
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
const told = (each) => each.nodes.map(node => node.html.slice(0, 160) + " | " + node.failureSummary).join("; ");
const grave = (each) => ["serious", "critical"].includes(each.impact);
axe.run(document.querySelector(arguments[0]), {runOnly: tags, resultTypes: ["violations"]}).then(found => done(
  found.violations.filter(grave).map(each => each.id + ": " + told(each))
));
"""


def judged(page, axe, what="html"):
    """Check a page, or a part of it, with axe; through the driver, to which the page's policy does not apply."""
    page.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    return page.driver.execute_async_script(AXE, what)


def rows_and_tabs_are_whole(page):
    """A phone shows rows and tabs whole."""
    cut = page.run("""return [...document.querySelectorAll('table.stacks')].map(e => e.closest('.scroll')).filter(
        e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute('aria-label'))""")
    assert cut == [], "rows are cut"
    cut = page.run("""return [...document.querySelectorAll('.tabs a')].filter(
        e => e.getBoundingClientRect().right > document.documentElement.clientWidth).map(e => e.textContent)""")
    assert cut == [], "tabs are cut"


@pytest.mark.parametrize("path", WALK)
def test_every_page_is_for_everybody(page, axe, path):
    looks = ((False, 1280), (True, 360), (True, 1280), (False, 360))  # the first two cover each width and each theme
    for number, (dark, width) in enumerate(looks[: tries(2)]):
        page.size(width)
        page.dark(dark)
        page.go(path)
        if FORM == "long" or number == WALK.index(path) % 2:  # in the gate axe sees each page once, half in the dark
            assert judged(page, axe) == [], (path, dark, width)
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is {wide} pixels too wide at {width}"
        if width < 500:
            rows_and_tabs_are_whole(page)


@pytest.mark.parametrize("width", [360, 1360])
def test_all_of_the_menu_and_whole_addresses_are_seen(page, width):
    page.size(width)
    page.go("/")
    cut = """return [...document.querySelectorAll('.side li a')].filter(
        e => e.getBoundingClientRect().right > document.documentElement.clientWidth).map(e => e.textContent)"""
    assert page.run(cut) == []
    lines = page.run("""return [...document.querySelectorAll('table td.mono')].map(each => {
        const range = document.createRange();
        range.selectNodeContents(each);
        return range.getClientRects().length })""")
    assert set(lines) == {1}, "an address stands in one line"
    if width == 1360:
        for path in ("/", "/topics/orders/messages", "/cluster", "/topics"):
            page.go(path)
            wide = "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
            assert page.run(wide) == 0, f"a table of {path} is cut"


@pytest.mark.parametrize("width", [360, 700, 1360])
def test_the_letters_of_charts_can_be_read(page, width):
    page.size(width)
    for path in ("/", "/group?name=billing"):
        page.go(path)
        page.until(lambda: page.all("svg.chart"), "the sampler has no points")
        heights = page.run("""return [...document.querySelectorAll('svg.chart text')].map(
            e => e.getBoundingClientRect().height).filter(height => height > 0)""")
        assert heights, "no chart is shown"
        assert min(heights) >= 11, (path, heights)


def test_fields_that_count_for_nothing_are_not_there(page):
    page.go("/topics/orders/messages")
    page.until(lambda: not page.find("[name=offset]").is_displayed())
    page.run("document.querySelector('[name=from]').value = 'offset'")
    page.run("document.querySelector('[name=from]').dispatchEvent(new Event('change', {bubbles: true}))")
    assert page.find("[name=offset]").is_displayed()
    page.go("/group/reset?name=billing&to=shift&shift=-1")
    page.until(lambda: not page.find("[name=time]").is_displayed())
    assert page.find("[name=shift]").is_displayed()


def test_a_config_is_set_for_all_brokers(page):
    page.go("/configs?everyone=1")
    page.click("[data-dialog=make]")
    page.fill("#make [name=key]", "log.cleaner.threads")
    page.fill("#make [name=value]", "2")
    page.click("#make [type=submit]")
    page.says("is set.")
    page.click("[data-dialog=unset][data-set-key='log.cleaner.threads']")
    page.click("#unset [type=submit]")
    page.until(lambda: not page.all("[data-set-key='log.cleaner.threads']"), "it is set still")


def test_dialogs_are_for_everybody(page, axe):
    for path in ("/topics", "/topics/orders", "/topics/orders/messages", "/acls", "/users", "/quotas", "/schemas"):
        page.go(path)
        for opener in page.run("return [...document.querySelectorAll('[data-dialog]')].map(e => e.dataset.dialog)"):
            page.run("document.getElementById(arguments[0]).showModal()", opener)
            assert judged(page, axe, "dialog[open]") == [], (path, opener)
            page.run("document.getElementById(arguments[0]).close()", opener)


def test_a_topics_life(page):
    page.go("/topics")
    page.click("[data-dialog=create]")
    assert page.run("return document.activeElement.name") == "name", "one can type at once"
    page.fill("#create [name=name]", "made-in-a-browser")
    page.fill("#create [name=partitions]", "2")
    page.click("#create [type=submit]")
    page.says("Topic made-in-a-browser is created.")
    assert page.driver.current_url.endswith("/topics/made-in-a-browser")
    page.click("[data-dialog=grow]")
    page.fill("#grow [name=count]", "1")
    page.click("#grow [type=submit]")
    page.says("cannot alter made-in-a-browser", "#grow .refused")
    page.fill("#grow [name=count]", "4")
    page.click("#grow [type=submit]")
    page.says("made-in-a-browser has 4 partitions.")
    page.go("/topics/made-in-a-browser/configs")
    page.fill("#q", "retention.ms")
    page.until(lambda: len(page.all("#list tbody tr")) < 6)
    page.click("[data-set-key='retention.ms']")
    page.fill("#set [name=value]", "77777")
    page.click("#set [type=submit]")
    page.says("retention.ms of made-in-a-browser is 77777.")
    page.go("/topics/made-in-a-browser")
    page.click("[data-dialog=topic-delete]")
    submit = page.find("#topic-delete [type=submit]")
    assert not submit.is_enabled(), "before the name is typed"
    page.fill("#topic-delete [name=confirm]", "made-in-a-browser")
    page.click("#topic-delete [type=submit]")
    page.says("Deleted made-in-a-browser.")


def test_a_topics_records_are_deleted_and_a_config_is_unset(page, cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("shortened", 1, 1, config={"retention.ms": "4444"})])["shortened"].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("shortened", b"first")
    producer.produce("shortened", b"second")
    assert producer.flush(20) == 0
    producer.close()
    page.go("/topics/shortened")
    page.click("[data-dialog=truncate]")
    page.fill("#truncate [name=partition]", "0")
    page.fill("#truncate [name=offset]", "1")
    page.fill("#truncate [name=confirm]", "shortened")
    page.click("#truncate [type=submit]")
    page.says("shortened")
    page.go("/topics/shortened/messages")
    page.says("second")
    assert "first" not in page.text("#rows")
    page.go("/topics/shortened/configs?own=1")
    page.click("[data-dialog=unset][data-set-key='retention.ms']")
    page.click("#unset [type=submit]")
    page.until(lambda: "4444" not in page.text())


def test_records_are_searched_and_looked_at(page):
    page.go("/topics/orders/messages")
    page.fill("[name=value]", "nowhere-to-be-found")
    page.click("form[role=search] [type=submit]")
    page.says("There is no such record.")
    page.go("/topics/orders/messages?value=Vienna")
    page.click("#rows tr a")
    page.says("On the command line", "#drawer")
    page.says('"city": "Vienna"', "#drawer")
    page.run("document.querySelector('#drawer select[name=vform]').value = 'hex'")
    page.run("document.querySelector('#drawer select[name=vform]').dispatchEvent(new Event('change', {bubbles: true}))")
    page.says("00000000", "#drawer")

    def is_closed() -> bool:
        page.keys(Keys.ESCAPE)  # a key that arrives while the drawer's content is exchanged is lost
        return not page.find("#drawer").is_displayed()

    page.until(is_closed)
    page.go("/topics/orders/messages?limit=20")
    page.click("#more a")
    page.until(lambda: len(page.all("#rows tr")) == 40, "no more records come")


def test_a_search_goes_on_by_itself_and_is_cancelled(page, monkeypatch):
    fetch, slowly = searching.fetch, threading.Event()

    def slow(*arguments, **options):
        slowly.wait(0.3)  # like a distant cluster
        return fetch(*arguments, **options)

    monkeypatch.setattr(searching, "STEP_S", 0.1)
    monkeypatch.setattr(searching, "fetch", slow)
    page.go("/topics/orders/messages?value=zebra")
    page.until(lambda: " 0 read" not in page.text("#more") and "found in" in page.text("#more"))
    page.run("document.querySelector('[data-cancel]').click()")
    page.says("Search on", "#more")
    assert "There is no such record" not in page.text("#more")
    slowly.set()
    page.go("/topics/orders/messages?value=zebra")
    page.says("There is no such record.")


def test_records_are_followed_and_written(page, cluster):
    page.go("/topics/empty/messages")
    page.click("[data-follow]")
    page.says("Waiting for records")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

    def arrives():
        # Only records after the first reading are followed, so the test writes until one is seen.
        producer.produce("empty", world.HOSTILE.encode())
        producer.flush(10)
        return page.all("#rows tr.fresh")

    page.until(arrives, "nothing comes")
    assert world.HOSTILE[:20] in page.text("#rows")
    assert not page.driver.title.startswith("broken")
    page.click("[data-pause]")
    page.says("Paused")
    producer.close()
    page.click("[data-dialog=produce]")
    page.fill("#produce [name=key]", "k")
    page.fill("#produce [name=value]", "written in a browser")
    page.click("#produce [type=submit]")
    page.says("The record is at offset")
    page.says("written in a browser")


def test_what_is_in_records_does_not_run(page):
    page.go("/topics/hostile/messages")
    page.says("<script>")
    page.click("#rows tr:last-child a")
    page.says("On the command line", "#drawer")
    assert page.driver.title.startswith("Messages of hostile")


def test_offsets_are_reset_as_shown(page, cluster):
    world.commit(cluster.bootstrap_servers, "reset-here", "customers", 1.0)
    page.go("/group?name=reset-here")
    page.click("a[href*='/group/reset']")
    page.click("form [type=submit].primary")
    page.says("What would change")
    page.fill("[name=confirm]", "reset-here")
    page.click("[type=submit].destroy")
    page.says("offsets of reset-here moved.")
    page.click("[data-dialog=group-delete]")
    page.fill("#group-delete [name=confirm]", "reset-here")
    page.click("#group-delete [type=submit]")
    page.says("Deleted reset-here.")


def test_a_group_forgets_a_topic(page, cluster):
    world.commit(cluster.bootstrap_servers, "forgets", "customers", 1.0)
    page.go("/group?name=forgets")
    page.click("[data-dialog=group-delete-offsets]")
    page.fill("#group-delete-offsets [name=confirm]", "forgets")
    page.click("#group-delete-offsets [type=submit]")
    page.says("has no committed offsets")


def test_access_is_given_and_taken(page):
    page.go("/acls")
    page.click("[data-dialog=add]")
    page.fill("#add [name=principal]", "User:erin")
    page.fill("#add [name=resource_name]", "orders")
    page.click("#add [type=submit]")
    page.says("User:erin")
    page.click("[data-dialog=remove][data-set-principal='User:erin']")
    page.fill("#remove [name=confirm]", "User:erin")
    page.click("#remove [type=submit]")
    page.says("Removed")
    page.go("/users")
    page.click("[data-dialog=add]")
    for name, text in (("name", "erin"), ("password", "one two"), ("again", "one two")):
        page.fill(f"#add [name={name}]", text)
    page.click("#add [type=submit]")
    page.says("erin has a password.")
    page.click("[data-dialog=remove][data-set-name=erin]")
    page.fill("#remove [name=confirm]", "erin")
    page.click("#remove [type=submit]")
    page.says("erin has no password any more")
    page.go("/quotas")
    page.click("[data-dialog=set]")
    page.fill("#set [name=user]", "erin")
    page.fill("#set [name=value]", "1000")
    page.click("#set [type=submit]")
    page.says("user erin: producer_byte_rate is 1000.")
    page.click("table [type=submit]")
    page.says("user erin has no producer_byte_rate any more.")


def test_configs_and_schemas_are_changed(page):
    page.go("/configs?kind=logger")
    page.click("[data-dialog=set]")
    page.run("document.querySelector('#set select').value = 'DEBUG'")
    page.click("#set [type=submit]")
    page.says("is set.")
    page.click("[data-dialog=unset]")
    page.click("#unset [type=submit]")
    page.says("has the inherited value again.")
    page.go("/schemas")
    page.click("[data-dialog=add]")
    page.fill("#add [name=name]", "simple")
    page.fill("#add [name=text]", '{"type": "string"}')
    page.click("#add [type=submit]")
    page.says("Schema simple is added")
    page.click("table [type=submit]")
    page.says("Schema simple is forgotten.")


def test_a_transaction_is_terminated(page, cluster):
    with world.open_transaction(cluster.bootstrap_servers, "ended-in-a-browser", "audit-log"):
        page.go("/transaction?id=ended-in-a-browser")
        page.says("Ongoing")
        page.click("[data-dialog=terminate]")
        page.fill("#terminate [name=confirm]", "ended-in-a-browser")
        page.click("#terminate [type=submit]")
        page.says("its producer is fenced")


def test_a_transaction_is_aborted_in_a_partition(page, cluster):
    with world.open_transaction(cluster.bootstrap_servers, "aborted-in-a-browser", "audit-log"):
        page.go("/transactions/producers?topic=audit-log&partition=0")
        page.click("[data-dialog=abort]")
        page.fill("#abort [name=confirm]", "audit-log")
        page.click("#abort [type=submit]")
        page.says("it does not hang", "#abort .refused")
        page.click("#abort [name=force]")
        page.click("#abort [type=submit]")
        page.until(lambda: not page.all("#abort[open]") and "begins at" not in page.text())


def test_a_feature_is_changed(page):
    page.go("/features")
    for level in ("1", "2"):
        page.click("[data-dialog=level][data-set-feature='transaction.version']")
        page.fill("#level [name=level]", level)
        page.fill("#level [name=confirm]", "transaction.version")
        page.click("#level [type=submit]")
        page.says("transaction.version")
        page.until(lambda level=level: feature_level(page, "transaction.version") == level)


def feature_level(page, name):
    """Return a feature's level, None while the page is drawn again."""
    return next((row.text.split()[3] for row in page.all("tbody tr") if row.text.startswith(name)), None)


def test_a_token_ends(window, tmp_path):
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "delegation.token.secret.key": "a secret",
    }
    with Broker(settings) as broker:
        plain, secured = broker.bootstrap_servers.split(",")
        CommandLine(plain).ok("user", "add", "alice", "--password", "hunter2")
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
        login |= {"sasl_plain_username": "alice", "sasl_plain_password": "hunter2"}
        options = [option for name, value in login.items() for option in ("-X", f"{name}={value}")]
        made = CommandLine(secured).ok("token", "create", *options, "--json").json
        with served(secured, connection=login) as server:
            page = Browser(window.driver, server.url)
            page.go("/tokens")
            assert made["hmac"] not in window.driver.page_source
            page.click(f"[data-dialog=expire][data-set-id='{made['token']}']")
            page.fill("#expire [name=confirm]", made["token"])
            page.click("#expire [type=submit]")
            page.says("There are no tokens.")


def test_keys(page):
    page.go("/")
    page.keys("g", "t")
    page.until(lambda: page.driver.current_url.endswith("/topics"))
    page.find("[data-search]")
    page.until(lambda: page.run("return document.readyState") == "complete")
    page.keys("/")
    assert page.run("return document.activeElement.id") == "q"
    page.keys("pay")
    page.until(lambda: len(page.all("#list tbody tr")) == 1, "the search does not narrow the list")
    page.keys(Keys.ESCAPE)
    assert page.find("#q").get_property("value") == "pay", "leaving the field empties it"
    page.keys("j")
    page.find("tbody tr.on")
    page.run("window.asked = 0")
    page.run("document.addEventListener('htmx:afterSwap', () => { window.asked += 1; })")
    page.run("document.querySelector('#q').dispatchEvent(new Event('change', {bubbles: true}))")
    page.until(lambda: page.run("return window.asked") > 0)
    page.until(lambda: not page.all(".htmx-request"), "the list is asked for again and again")
    page.find("tbody tr.on")
    page.keys(Keys.ENTER)
    page.until(lambda: page.driver.current_url.endswith("/topics/payments"))
    page.until(lambda: page.run("return document.readyState") == "complete")
    page.keys("?")
    assert page.find("#keys").is_displayed()
    page.keys(Keys.ESCAPE)
    assert not page.find("#keys").is_displayed()


def test_a_list_that_was_asked_for_before_a_search_does_not_take_its_place(page, cluster, monkeypatch):
    listed, held, answer = groups.listed_groups, threading.Event(), threading.Event()

    def look(admin):
        if not held.is_set():
            held.set()
            assert answer.wait(60)
        return listed(admin)

    world.commit(cluster.bootstrap_servers, "shipping", "orders")
    page.go("/groups")
    page.until(lambda: page.run("return document.readyState") == "complete")
    page.run("document.addEventListener('htmx:afterRequest', (e) => { window.came ||= e.target.id === 'list'; })")
    monkeypatch.setattr(groups, "listed_groups", look)
    assert held.wait(60), "the list does not ask for itself"
    page.says("shipping", "#list")
    page.fill("#q", "bill")
    page.until(lambda: "shipping" not in page.text("#list"), "the search does not narrow the list")
    page.run("window.came = false")
    answer.set()
    page.until(lambda: page.run("return window.came"))
    assert "shipping" not in page.text("#list")


def test_light_and_dark_are_chosen_and_kept(page):
    page.go("/")
    page.click("[data-theme-toggle]")
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.go("/topics")
    assert page.run("return document.documentElement.dataset.theme") == "dark"


def test_a_list_that_keeps_itself_up_to_date_keeps_its_search(page):
    page.go("/groups")
    page.fill("#q", "nothing-like-it")
    page.says("No group matches.")
    assert "q=nothing-like-it" in page.driver.current_url
    page.run("document.activeElement.blur(); window.asked = 0")
    page.run("document.addEventListener('htmx:afterSwap', () => { window.asked += 1; })")
    page.until(lambda: page.run("return window.asked") > 0)
    assert "No group matches." in page.text()


def test_the_overview_keeps_itself_up_to_date(page, cluster):
    page.go("/")
    page.run("window.here = true")
    before = page.find("#live").get_attribute("innerHTML")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("clicks", b"x")
    producer.flush(10)
    producer.close()
    page.until(lambda: page.find("#live").get_attribute("innerHTML") != before, "it stays as it was")
    assert page.run("return window.here") is True, "the page was not loaded anew"
