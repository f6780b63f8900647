"""A model folder with config, tokenizer and chat template but no weights: all that a gateway reads."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT = 256
VOCAB_SIZE = 700  # some more than the tokenizer has, as padded embeddings do
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = (
    "the quick brown fox jumps over the lazy dog. ",
    "Hello world! 你好世界 ",
    "🎉🚀 déjà vu naïve ",
    "user assistant system\n",
)
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] == 'assistant' %}{{ raise_exception('the assistant cannot begin') }}"
    "{% endif %}{% for message in messages %}\n"
    "  {% if true %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}\n"
    "  {% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer with special tokens and one plain added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text * 5 for text in CORPUS], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def write_text_model(folder: Path) -> Path:
    """Fills `folder` and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
