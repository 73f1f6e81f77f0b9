"""The pages' site in a browser: its style, its script and its search work, and its links are valid."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.console.browser import Browser, browser, missing

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
ASKED = """
const done = arguments[arguments.length - 1];
const seen = new Set(), wrong = [];
const walk = async (url) => {
  if (seen.has(url)) return;
  seen.add(url);
  const answer = await fetch(url);
  if (!answer.ok) { wrong.push(url + ": " + answer.status); return; }
  if (!(answer.headers.get("content-type") || "").startsWith("text/html")) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const next = [];
  for (const each of page.querySelectorAll("[href], [src]")) {
    const at = new URL(each.getAttribute("href") || each.getAttribute("src"), url);
    at.hash = "";
    if (at.origin === location.origin) next.push(at.href);
  }
  for (const each of new Set(next)) await walk(each);
};
walk(location.href).then(() => done([seen.size, wrong]), (error) => done([0, [String(error)]]));
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_site_has_its_style_its_search_and_no_broken_link(tmp_path):
    lacking = missing()
    if lacking is not None:
        pytest.fail(f"needs {lacking}")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        with browser(f"http://127.0.0.1:{server.server_port}", str(tmp_path / "profile")) as page:
            page.driver.set_script_timeout(60)
            page.go("/")
            assert page.run("return getComputedStyle(document.querySelector('.md-header')).position") == "sticky"
            looked_at, wrong = page.driver.execute_async_script(ASKED)
            assert wrong == []
            assert looked_at > 60
            page.run("document.querySelector('#__search').click()")
            page.fill(".md-search__input", "retention")
            page.find(".md-search-result__item a[href*='docs/']")
            assert page.complaints() == []
            _every_page_is_listed_and_links_hold_on_the_disk(page, site)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _every_page_is_listed_and_links_hold_on_the_disk(page: Browser, site: Path) -> None:
    """For readers who open the file without a server: there a browser shows a folder, and no page."""
    page.driver.get(site.joinpath("index.html").as_uri())
    links = page.run("return [...document.querySelectorAll('.md-nav--primary a')].map((a) => [a.text.trim(), a.href])")
    leading = {text: href.partition("#")[0] for text, href in links}
    listed = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"]
    for title in _titles(listed):
        assert title in leading
        assert Path(unquote(urlsplit(leading[title]).path)).is_file(), title


def _titles(listed: list[dict[str, Any]]) -> list[str]:
    """Return the titles of the pages of a navigation, and of its sections'."""
    found = []
    for each in listed:
        ((title, below),) = each.items()
        found += [title] if isinstance(below, str) else _titles(below)
    return found
