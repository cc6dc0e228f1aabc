"""Headless Chromium from Debian's packages, driven by Selenium; nothing is downloaded."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",  # it does not start without, for root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name is found, so that nothing can be loaded
)


def find():
    """Return the paths of Chromium and its driver; skip where they are missing, unless they are required."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if all(found):
        return found
    why = "no chromium and chromedriver on PATH: tools/browser.sh installs them"
    if os.environ.get("MXMP_REQUIRE_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)


@contextlib.contextmanager
def started(*flags):
    """Yield a browser with a profile of its own, empty and removed in the end."""
    program, driver = find()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, *flags, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield Page(browser)
        finally:
            browser.quit()


class Page:
    """What tests do with a page."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, path, width=1440, dark=False, media=""):
        return self.go(Path(path).resolve().as_uri(), width, dark, media)

    def go(self, address, width=1440, dark=False, media="", height=900):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        self.resize(width, height)
        self.browser.get(address)
        return self

    def resize(self, width, height=900):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def wait(self, code, condition, seconds=10):
        """Run a piece of code, and wait until a condition of the page holds."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.run(code)
        WebDriverWait(self.browser, seconds).until(lambda _: self.run(f"return {condition}"))

    def run(self, code, *args):
        return self.browser.execute_script(code, *args)

    def console(self):
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requested(self):
        """Return the addresses that pages asked for since the last call, Chromium's own page at its start left out."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        urls = [each["request"]["url"] for each in sent if not each["documentURL"].startswith(("chrome:", "chrome-"))]
        return [url for url in urls if not url.startswith("data:")]

    def seconds(self):
        metrics = self.browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    def all(self, css):
        return self.browser.find_elements("css selector", css)

    def one(self, css):
        return self.browser.find_element("css selector", css)

    def column(self, caption, number):
        """Return the texts of a column of the table with a caption, of the rows that are shown."""
        code = """
            const table = [...document.querySelectorAll("table")].find(t => t.caption.textContent === arguments[0]);
            return [...table.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[arguments[1]].textContent);
        """
        return self.run(code, caption, number)

    def header(self, caption, title):
        code = """
            const table = [...document.querySelectorAll("table")].find(t => t.caption.textContent === arguments[0]);
            return [...table.querySelectorAll("thead button")].find(b => b.textContent === arguments[1]);
        """
        return self.run(code, caption, title)
