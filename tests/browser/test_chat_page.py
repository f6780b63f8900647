"""The chat page in a browser, in front of scripted workers: what people see, click and wait for."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from baton.telemetry.collector import Collector
from tests.fakes.gateway_stack import Stack, eventually, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import decode_of, prefill_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


def answer_with(stack: Stack, token_ids: Sequence[int], delay_s: float = 0.0) -> None:
    stack.prefill.script = prefill_of(token_ids)
    stack.decode.script = decode_of(token_ids, delay_s)


async def send(page: Page, message: str) -> None:
    await page.fill("#message", message)
    await page.press("#message", "Enter")


async def test_an_answer_is_streamed_with_its_figures_and_its_trace(page: Page, model: Path) -> None:
    collector = Collector()
    try:
        async with running_stack(model, otlp_endpoint=collector.address, http_port=0) as stack:
            token_ids = list(range(100, 130))
            answer_with(stack, token_ids, delay_s=0.05)
            bodies: list[dict[str, Any]] = []
            page.on("request", lambda request: bodies.append(json.loads(request.post_data or "{}")))
            await page.goto(stack.http_url)
            await expect(page.locator("#model option")).to_have_text(["tiny"])
            for name, value in {"temperature": "0.5", "top_p": "0.9", "top_k": "7", "seed": "3"}.items():
                await page.fill(f"#{name}", value)
            await page.fill("#max_tokens", "30")
            await page.fill("#system", "Be brief.")
            await send(page, "the quick brown fox")
            answer = page.locator("article.assistant .text")
            await expect(answer).not_to_be_empty()
            early = await answer.inner_text()
            figures = page.locator("article.assistant .figures")
            await expect(figures).to_have_text(
                re.compile(r"first token \d+ ms · \d+ tokens in, 30 out · [\d.]+ tokens/s · total [\d.]+ s · trace"),
                timeout=15_000,
            )
            assert len(early) < len(await answer.inner_text())  # it was there before it was whole
            sent = bodies[-1]
            assert [message["role"] for message in sent["messages"]] == ["system", "user"]
            assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"]) == (0.5, 0.9, 7, 3)
            assert (sent["max_tokens"], sent["stream"], sent["model"]) == (30, True, "tiny")
            await expect(page.locator("#stop")).to_be_disabled()
            link = await figures.locator("a").get_attribute("href")
            assert link is not None
            assert re.fullmatch(r"/traces/[0-9a-f]{32}", link)
            async with asyncio.timeout(20):
                while "gateway.request" not in await page.locator("body").inner_text():
                    await asyncio.sleep(0.1)
                    await page.goto(stack.http_url + link)
    finally:
        collector.close()


async def test_a_stopped_answer_ends_on_the_worker_and_stays_in_the_conversation(page: Page, model: Path) -> None:
    async with running_stack(model, http_port=0) as stack:
        answer_with(stack, list(range(100, 200)), delay_s=0.1)
        bodies: list[dict[str, Any]] = []
        page.on("request", lambda request: bodies.append(json.loads(request.post_data or "{}")))
        await page.goto(stack.http_url)
        await send(page, "Hello world!")
        answer = page.locator("article.assistant .text").first
        await expect(answer).not_to_be_empty()
        await expect(page.locator("#send")).to_be_disabled()
        await page.click("#stop")
        await expect(page.locator("#send")).to_be_enabled()
        await eventually(lambda: not stack.decode.open_streams, seconds=10)
        said = await answer.inner_text()
        answer_with(stack, [100, 101, 102])
        await send(page, "user")
        await expect(page.locator("article.assistant .figures").last).to_contain_text("3 out")
        messages = bodies[-1]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert said.strip() == messages[1]["content"].strip()
        await page.click("#clear")
        await expect(page.locator("article")).to_have_count(0)
        await stack.quiet()


async def test_an_error_is_shown_and_not_part_of_the_conversation(page: Page, model: Path) -> None:
    async with running_stack(model, http_port=0) as stack:
        await page.goto(stack.http_url)
        await page.fill("#max_tokens", "100000")
        await send(page, "Hello world!")
        await expect(page.locator("article.error .text")).to_contain_text("max_tokens")
        await page.fill("#max_tokens", "5")
        bodies: list[dict[str, Any]] = []
        page.on("request", lambda request: bodies.append(json.loads(request.post_data or "{}")))
        await send(page, "user")
        await expect(page.locator("article.assistant .figures").last).to_contain_text("5 out")
        assert [message["content"] for message in bodies[-1]["messages"]] == ["user"]
