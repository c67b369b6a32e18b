"""A real browser, as a person uses it: signed in to Airflow, asking nobody else, and looked at by axe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from demo.airflow import Airflow

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM: Final = Path("/usr/bin/chromium")
PAGE_MS: Final = 60_000


@contextmanager
def browser(airflow: Airflow, user: str, failed: Path, *, width: int = 1400, dark: bool = False) -> Iterator[Page]:
    """A page of a browser in which this user has signed in."""
    with opened(f"{airflow.url}/mirrorbook/", airflow.url, failed, width=width, dark=dark) as page:
        page.fill('input[name="username"]', user)
        page.fill('input[name="password"]', airflow.password(user))
        page.get_by_role("button", name=re.compile("sign in", re.IGNORECASE)).click()
        page.wait_for_url(lambda url: "login" not in url)
        yield page


@contextmanager
def opened(url: str, site: str, failed: Path, *, width: int = 1400, dark: bool = False) -> Iterator[Page]:
    """A page of a browser. What it asks of others than the site fails the test."""
    if not CHROMIUM.exists():
        reason = f"no browser: {CHROMIUM} is missing (apt-get install --no-install-recommends chromium)"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PAGE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = chromium.new_page(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        page.set_default_timeout(PAGE_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        try:
            page.goto(url)
            yield page
            assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []
        except Exception:
            page.screenshot(path=failed / "failed.png")
            raise
        finally:
            chromium.close()


def found_by_axe(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    response = Axe().run(page, options={"resultTypes": ["violations", "passes"]}).response
    assert response["passes"], "axe has looked at nothing"
    grave = [found for found in response["violations"] if found["impact"] in ("serious", "critical")]
    return [f"{found['id']}: {node['html'][:200]}" for found in grave for node in found["nodes"]]
