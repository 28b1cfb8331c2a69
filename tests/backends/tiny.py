"""A language model of two layers with random weights, small enough to start in seconds."""

from __future__ import annotations

import json
from pathlib import Path

CONTEXT_TOKENS = 128
VOCABULARY = 258  # a token per byte and two marks


def write_tiny_model(folder: Path, *, end: int | None = None, context_tokens: int = CONTEXT_TOKENS) -> Path:
    """A folder with a configuration and nothing else; ``end`` is its end token, by default one that never comes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tiny_tokenizer(folder: Path) -> None:
    """One token per byte, and the two marks of the ChatML family."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<|im_start|>{{ role }}"}))
