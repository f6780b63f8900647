"""The OpenAPI document and the server agree: schemathesis sends what the document allows and checks what comes back."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.text import TextCodec
from tests.fakes.gateway_stack import running_stack
from tests.fakes.http_client import TEXT
from tests.fakes.scored_answers import score
from tests.fakes.text_model import write_text_model

NUM_EXAMPLES = 20  # an operation
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A stack on a thread of its own, since schemathesis waits for each answer."""
    model = write_text_model(tmp_path_factory.mktemp("model"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stacks = running_stack(model, http_port=0)
    stack = asyncio.run_coroutine_threadsafe(stacks.__aenter__(), loop).result(30)
    score(stack, TextCodec(model).encode_bare(TEXT))
    yield stack.http_url
    asyncio.run_coroutine_threadsafe(stack.quiet(), loop).result(30)
    asyncio.run_coroutine_threadsafe(stacks.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_the_document_allows_is_answered_as_it_says(url: str) -> None:
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) == 10
    for operation in operations:
        check_operation(operation.as_strategy())


def check_operation(cases: st.SearchStrategy[schemathesis.Case]) -> None:
    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check(case: schemathesis.Case) -> None:
        case.validate_response(case.call(timeout=20), checks=CHECKS)

    check()
