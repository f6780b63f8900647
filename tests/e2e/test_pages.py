"""The chat page in a browser in front of a real stack: an answer, its figures, and its trace behind the link."""

import re

from playwright.async_api import Page, expect

from baton.local.stack import LocalStack
from tests.fakes.browser import Screenshot


async def test_a_question_its_answer_and_its_trace(page: Page, apart: LocalStack, screenshot: Screenshot) -> None:
    assert apart.http_url is not None
    await page.goto(apart.http_url)
    await page.fill("#temperature", "0")
    await page.fill("#max_tokens", "60")
    await page.fill("#message", "What is gravity? Answer in two sentences.")
    await page.click("#send")
    figures = page.locator("article.assistant .figures")
    await expect(figures).to_have_text(re.compile(r"first token \d+ ms · .* · trace"), timeout=60_000)
    await expect(page.locator("article.assistant .text")).to_contain_text("gravity", ignore_case=True)
    await screenshot(page, "chat_page")
    link = await figures.locator("a").get_attribute("href")
    assert link is not None
    for _ in range(50):  # spans are exported some time after the request
        await page.goto(apart.http_url + link)
        if "decode.run" in await page.locator("body").inner_text():
            break
        await page.wait_for_timeout(200)
    await expect(page.locator("body")).to_contain_text("kv.transfer")
    await screenshot(page, "trace_page")
