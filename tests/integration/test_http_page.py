"""The chat page and the traces that it links to, in front of scripted workers."""

import asyncio
from pathlib import Path

import pytest

from baton.telemetry.collector import Collector
from tests.fakes.gateway_stack import PROMPT, running_stack
from tests.fakes.http_client import connect
from tests.fakes.text_model import write_text_model

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


async def test_the_page_loads_from_here_alone(model: Path) -> None:
    async with running_stack(model, http_port=0) as stack, connect(stack) as client:
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert 'src="/page.js"' in page.text
        assert "http" not in page.text  # nothing from elsewhere
        script = await client.get("/page.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert "/v1/chat/completions" in script.text
        unknown = await client.get(f"/traces/{TRACE_ID}")
        assert (unknown.status_code, "--otlp-endpoint" in unknown.text) == (404, True)
        assert (await client.get("/traces/x")).status_code == 400


async def test_a_trace_is_shown_once_its_spans_have_come(model: Path) -> None:
    collector = Collector()
    headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
    try:
        async with running_stack(model, otlp_endpoint=collector.address, http_port=0) as stack:
            async with connect(stack) as client, asyncio.timeout(20):
                await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 5}, headers=headers)
                shown = await client.get(f"/traces/{TRACE_ID}")
                while shown.status_code == 404:
                    await asyncio.sleep(0.05)
                    shown = await client.get(f"/traces/{TRACE_ID}")
                assert (await client.get(f"/traces/{'f' * 32}")).status_code == 404
            assert shown.status_code == 200
            assert "gateway.request" in shown.text
    finally:
        collector.close()
