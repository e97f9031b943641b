# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven by its chromedriver, and queries of a page of ``smartmem report``."""

import json
import shutil
import time
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By

NEEDED = "the page is tested in Chromium: apt-get install chromium chromium-driver"
# No sandbox: root has none. No network: a page that asks for anything fails to get it, and says so in the console.
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1500,1000"),
    *("--proxy-server=127.0.0.1:9", "--disable-background-networking", "--no-first-run"),
    "--force-prefers-reduced-motion",
)


def _program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(f"{names[0]} is missing; {NEEDED}")
    return found


@contextmanager
def browser():
    """A browser of its own process, ended in any case."""
    options = webdriver.ChromeOptions()
    options.binary_location = _program("chromium", "chromium-browser", "google-chrome")
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(_program("chromedriver"))
    try:
        driver = webdriver.Chrome(options=options, service=service)
    except WebDriverException as error:
        pytest.fail(f"Chromium does not start ({error.msg}); {NEEDED}")
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver, path) -> None:
    """Load a page of this machine and wait for its last section."""
    driver.get(path.resolve().as_uri())
    wait_for(lambda: driver.find_elements(By.TAG_NAME, "footer"))


def wait_for(condition, seconds: float = 20.0):
    """Wait until `condition` returns a true value, and return that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def console(driver) -> list[str]:
    """Return all messages in the browser's console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def data_of(driver) -> dict:
    """Return the data that the page holds."""
    return json.loads(driver.execute_script("return document.getElementById('data').textContent"))


def figures(driver) -> list[tuple[list, str, str]]:
    """Return every figure on the page: its path in the data, its unit, its text."""
    script = (
        "return [...document.querySelectorAll('[data-path]')].map(e => [e.dataset.path, e.dataset.unit, e.textContent])"
    )
    return [(json.loads(path), unit, text) for path, unit, text in driver.execute_script(script)]
