"""The console in a browser: what there is to see, and what is done with it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_a_topic_is_made_looked_at_and_deleted(page):
    page.go("/topics")
    page.click("[data-dialog=create]")
    page.fill("#create [name=name]", "made-in-a-browser")
    page.fill("#create [name=partitions]", "2")
    page.click("#create [type=submit]")
    page.says("Topic made-in-a-browser is created.")
    assert page.driver.current_url.endswith("/topics/made-in-a-browser")
    page.click("[data-dialog=delete]")
    submit = page.find("#delete [type=submit]")
    assert not submit.is_enabled(), "before the name is typed"
    page.fill("#delete [name=confirm]", "made-in-a-browser")
    page.click("#delete [type=submit]")
    page.says("Topic made-in-a-browser is deleted.")


def test_records_are_searched_and_looked_at(page):
    page.go("/topics/orders/messages")
    page.fill("[name=value]", '"n"')
    page.click("form[role=search] [type=submit]")
    page.says("There is no such record.")
    page.go("/topics/orders/messages?value=Vienna")
    page.click("#rows tr a")
    page.says("On the command line", "#drawer")
    page.says('"city": "Vienna"', "#drawer")


def test_what_is_in_records_does_not_run(page):
    page.go("/topics/hostile/messages")
    page.says("<script>")
    page.click("#rows tr:last-child a")
    page.says("On the command line", "#drawer")
    assert page.driver.title.startswith("Messages of hostile")
