"""Names of tensors: from a GGUF's to Hugging Face's, by the gguf package's own table."""

from collections.abc import Mapping

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

# Hugging Face's modules of the architectures that are read; which of them a model has is its own business.
_TOP = ("model.embed_tokens", "model.norm", "lm_head")
_IN_LAYER = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def hf_names(architecture: str, num_layers: int) -> Mapping[str, str]:
    """GGUF's names to Hugging Face's, both without ".weight" or ".bias": "blk.3.attn_q" to "model.layers.3. ...".

    A module that `architecture`, which must be one of GGUF's, does not have is left out.
    """
    (key,) = (key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(key, num_layers)
    in_layers = [f"model.layers.{layer}.{module}" for layer in range(num_layers) for module in _IN_LAYER]
    named = {hf_name: table.get_name(hf_name) for hf_name in (*_TOP, *in_layers)}
    return {gguf_name: hf_name for hf_name, gguf_name in named.items() if gguf_name is not None}
