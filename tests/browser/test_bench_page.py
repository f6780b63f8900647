"""The report of `baton bench serve` in a browser: opened as a file, without a network."""

from pathlib import Path

from playwright.async_api import Page, Request

from tests.fakes.bench_runs import report, sample_rows
from tests.fakes.browser import Screenshot


async def test_the_report_shows_its_figures_and_charts(page: Page, tmp_path: Path, screenshot: Screenshot) -> None:
    file = tmp_path / "report.html"
    file.write_text(report(sample_rows()))
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    await page.goto(file.as_uri())
    charts = page.locator("svg")
    assert await charts.count() >= 3
    for index in range(await charts.count()):
        box = await charts.nth(index).bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 100
    text = await page.locator("body").inner_text()
    assert all(word in text for word in ("TTFT", "ITL", "p99"))
    assert asked == [file.as_uri()]  # one file has it all
    await screenshot(page, "bench_report")
