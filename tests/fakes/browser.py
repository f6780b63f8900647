"""A real browser without a window: Debian's Chromium, driven by Playwright; fixtures for a conftest.py to import."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

Screenshot = Callable[[Page, str], Awaitable[None]]


@pytest.fixture
async def foreign_page() -> AsyncIterator[Page]:
    """An empty page, for others' sites: whether their scripts fail is theirs to know."""
    found = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if found is None:
        pytest.fail(f"none of {', '.join(_BROWSERS)} is installed; `make browser` installs Debian's, as root")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield await browser.new_page(viewport={"width": 1100, "height": 720})
        await browser.close()


@pytest.fixture
async def page(foreign_page: Page) -> AsyncIterator[Page]:
    """An empty page; the test fails when a script of what it opens fails."""
    errors: list[str] = []
    foreign_page.on("pageerror", lambda error: errors.append(str(error)))
    yield foreign_page
    assert errors == []


@pytest.fixture
def screenshot(tmp_path: Path) -> Screenshot:
    """Keeps what a page shows: in the folder that BATON_SCREENSHOTS names, docs/img for the documentation's."""
    folder = Path(os.environ.get("BATON_SCREENSHOTS") or tmp_path)

    async def take(page: Page, name: str) -> None:
        file = folder / f"{name}.png"
        await page.screenshot(path=file)
        assert file.stat().st_size > 5000  # an empty page is smaller

    return take
