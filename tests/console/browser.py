"""A browser: Debian's chromium, driven by selenium.

Owns how it is started, which entries of its log are failures, and waiting: always for something on the page, with a
deadline.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
WAIT_S = 15


def missing() -> str | None:
    """Return what a browser lacks; None if it is installed."""
    names = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return " and ".join(names) if names else None


class Browser:
    """One window."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def go(self, path: str = "/") -> None:
        self.driver.get(self.url + path)

    def size(self, width: int, height: int = 900) -> None:
        """Use a window whose page has this width: below 500 pixels the window itself is too wide."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """Wait for an element."""
        return self.until(lambda: self.all(selector)[0], f"there is no {selector}")

    def all(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def text(self, selector: str = "main") -> str:
        return str(self.driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def until(self, call: Callable[[], Any], what: str = "it does not come") -> Any:
        """Wait until a condition is true; exceptions of the page meanwhile mean that it is not ready."""
        from selenium.common.exceptions import WebDriverException

        waiting = WebDriverWait(self.driver, WAIT_S, 0.05, ignored_exceptions=[WebDriverException, IndexError])
        return waiting.until(lambda _: call(), what)

    def says(self, text: str, selector: str = "main") -> None:
        """Wait until the page contains a text."""
        self.until(
            lambda: text in self.text(selector), f"{selector} does not say {text!r}: {self.text(selector)[:600]}"
        )

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.until(lambda: element.is_displayed() and element.is_enabled(), f"{selector} cannot be clicked")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def fill(self, selector: str, text: str) -> None:
        element = self.find(selector)
        element.clear()
        element.send_keys(text)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver)
        for each in keys:
            chain.send_keys(each)
        chain.perform()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Return the entries of the browser's log that are worse than a remark, and clear the log."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]


@contextmanager
def browser(url: str, profile: str) -> Iterator[Browser]:
    """Start a browser with its own profile."""
    options = ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.accept_insecure_certs = True
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        driver.set_page_load_timeout(30)
        yield Browser(driver, url)
    finally:
        driver.quit()
