"""Chromium for tests of pages: started without a window, with whatever it prints or asks for written down.

A test that needs it has the marker ``browser``. Without Chromium or Playwright it is skipped; ``make browser`` installs
both, and sets PLAIT_BROWSER=1, with which their absence is a failure.

Playwright keeps an event loop running in the thread of the tests, so what needs one of its own, such as a checkpoint,
is written before the browser starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
)  # fmt: skip


def find_chromium() -> str:
    """Where Chromium is; skips the test if it or Playwright is missing."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    missing = [] if found else ["Chromium"]
    missing += [] if importlib.util.find_spec("playwright") else ["the package playwright"]
    if missing:
        reason = f"needs {' and '.join(missing)}: `make browser` installs what it can"
        if os.environ.get("PLAIT_BROWSER", "0") != "0":
            pytest.fail(reason)
        pytest.skip(reason)
    return str(found)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a profile of its own, which is thrown away."""
    executable = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Any, file: Path, *, fragment: str = "", **options: Any) -> Iterator[Any]:
    """A page in a window of its own. At the end: no error, nothing on the console, no request but for the file."""
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
    messages, asked = [], []
    page = context.new_page()
    page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(f"error: {error}"))
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: (messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        page.goto(file.as_uri() + fragment)
        yield page
    finally:
        context.close()
    assert messages == []
    assert {url.partition("#")[0] for url in asked} == {file.as_uri()}
