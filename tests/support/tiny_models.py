"""Tiny random models in Hugging Face directories: real code paths in milliseconds."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 257
EOS_ID = 2


def make_tiny_llama(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A grouped-query Llama: 3 layers, 4 heads over 2 K/V heads of size 16, tied embeddings."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
    }
    config = LlamaConfig(**(values | changes))
    torch.manual_seed(seed)
    return _save(LlamaForCausalLM(config), directory)


def make_tiny_gpt2(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A GPT-2 with learned absolute positions: 3 layers, 4 heads of size 12."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 512,
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
    }
    config = GPT2Config(**(values | changes))
    torch.manual_seed(seed)
    return _save(GPT2LMHeadModel(config), directory)


def _save(model: Any, directory: Path) -> Path:
    """Spread the weights, so that the best token wins clearly and depends on the input."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    model.save_pretrained(directory)
    return directory


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file, or make it."""
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | changes), "utf-8")
