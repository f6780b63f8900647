"""A stack on a folder that holds a configuration and nothing else, and on transformers' model code."""

import json
from pathlib import Path

import grpc
import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2
from tests.e2e.client import MODEL, ask_together, assert_at_rest, greedy, token_request

CONFIG = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def test_a_configuration_alone_serves_token_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    options = StackOptions(
        model=str(tmp_path),
        model_name=MODEL,
        load_format="dummy",
        port=0,
        kv_cache_bytes=8 << 20,
        max_num_batched_tokens=64,
        num_threads=1,
    )
    with LocalStack(options) as stack:
        prompts = [list(range(10, 10 + length)) for length in (1, 40, 100)]
        requests = [token_request(prompt, greedy(6)) for prompt in prompts]
        answers = ask_together(stack.gateway_address, requests)
        assert [len(answer.token_ids) for answer in answers] == [6, 6, 6]
        assert answers[2].hand_over.prefill_worker == "prefill-0"
        again = ask_together(stack.gateway_address, requests)
        assert [answer.token_ids for answer in again] == [answer.token_ids for answer in answers]
        with pytest.raises(grpc.RpcError, match=r"the model has no tokenizer .*; send prompt.tokens"):
            ask_together(stack.gateway_address, [inference_pb2.GenerateRequest(text="Hello")])
        assert_at_rest([*stack.worker_addresses.values()])
