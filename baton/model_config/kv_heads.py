"""How many heads of keys and values a layer has."""

from typing import Any


def read_num_kv_heads(config: dict[str, Any]) -> int:
    """As many as attention heads, unless config.json says otherwise: in Falcon's words or in everybody else's."""
    heads: int = config["num_attention_heads"]
    if config.get("new_decoder_architecture"):
        return config.get("num_kv_heads") or heads
    if config.get("multi_query"):
        return 1
    return config.get("num_key_value_heads") or heads
