"""`baton up --ui`: the trace of a request, looked up by its id in Phoenix's page, in a browser."""

from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Page, expect

from baton.config import StackOptions
from baton.errors import BatonError
from baton.local.stack import LocalStack
from tests.fakes.browser import Screenshot

ROOT = Path(__file__).parents[2]
TRACE_ID = "7bf92f3577b34da6a3ce929d0e0e4736"
SPANS = ("gateway.route", "decode.reserve", "prefill.compute", "kv.transfer", "decode.run")
OPTIONS = {"ui": True, "ui_port": 0, "port": 0, "kv_cache_bytes": 1 << 29, "max_model_len": 1024}


async def test_a_request_is_found_in_the_page(
    foreign_page: Page, smollm2: Path, screenshot: Screenshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = foreign_page
    monkeypatch.setenv("PATH", f"{ROOT / '.venv-ui' / 'bin'}:/usr/bin:/bin")  # made by `make ui`
    with LocalStack(StackOptions(model=str(smollm2), **OPTIONS)) as stack:  # type: ignore[arg-type]
        answer = httpx2.post(
            f"{stack.http_url}/v1/completions",
            json={"prompt": "Gravity is", "max_tokens": 8},
            headers={"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"},
            timeout=60,
        )
        assert answer.status_code == 200
        for _ in range(40):  # spans are exported some time after the request
            await page.goto(f"{stack.ui_url}/redirects/traces/{TRACE_ID}")
            await page.wait_for_timeout(1000)
            if "decode.run" in await page.locator("body").inner_text():
                break
        for name in SPANS:
            await expect(page.get_by_text(name, exact=True).first).to_be_visible()
        await screenshot(page, "tracing_ui")


def test_without_phoenix_it_says_what_to_install(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    stack = LocalStack(StackOptions(model=str(smollm2), **OPTIONS))  # type: ignore[arg-type]
    with pytest.raises(BatonError, match="--ui: Arize Phoenix is not installed; `pip install arize-phoenix`"):
        stack.start()
    assert stack.pids == {}
