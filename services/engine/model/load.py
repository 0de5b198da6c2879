"""From a Hugging Face directory to a model that runs on flat batches.

Knows `transformers` and which families this engine can run; refuses the others at load, by name.
Knows nothing of requests, K/V room or Redis.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from services.engine.inputs import FlatBatch
from services.engine.kv_manager import KVLayout
from services.engine.model.linear import pack_linear_layers
from services.engine.model.selective_batching import BATCH_ARGUMENT, NAME
from shared.errors import SettingsError

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for flat input, and what the engine must know of it."""

    network: Any
    layout: KVLayout
    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """One forward pass over the flat batch; writes K/V, returns the logits [B, V]."""
        output = self.network(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.last_rows,
            **{BATCH_ARGUMENT: batch},
        )
        logits: torch.Tensor = output.logits[0]  # [B, V]
        return logits


def load_model(directory: Path, *, max_model_len: int | None = None) -> LoadedModel:
    """Load a decoder in float32 on the CPU, with its linear layers packed.

    Args:
        max_model_len: at most this context, in tokens; None means the model's own.

    Raises:
        SettingsError: no such model, or one that this engine cannot run; says what to do.
    """
    config = _read_config(directory)
    context = _context(config, max_model_len)
    _refuse_unsupported(config, context)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # logs are whole lines
    try:
        network = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=torch.float32, attn_implementation=NAME, local_files_only=True
        )
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise SettingsError(f"the model in {directory} cannot be loaded: {_first_line(error)}") from error
    network.eval()  # type: ignore[no-untyped-call]
    network.requires_grad_(False)
    eos_ids = find_eos_ids(directory, config)
    if not eos_ids:
        LOG.warning("the model names no end-of-sequence token: answers end at their token limit only")
    pack_linear_layers(network)
    return LoadedModel(network, _layout(config), _text(config).vocab_size, context, eos_ids)


def _read_config(directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise SettingsError(
            f"there is no model in {directory} (no config.json); give --model a Hugging Face directory, "
            "a hub id or 'demo'"
        )
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise SettingsError(f"{directory}/config.json: {_first_line(error)}") from error


def _text(config: Any) -> Any:
    return config.get_text_config(decoder=True)


def _layout(config: Any) -> KVLayout:
    text = _text(config)
    heads = text.num_attention_heads
    return KVLayout(
        n_layers=text.num_hidden_layers,
        n_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
    )


def _context(config: Any, wanted: int | None) -> int:
    own = getattr(_text(config), "max_position_embeddings", None)
    if own is None:
        raise SettingsError(f"the family {config.model_type!r} names no context length and is not supported")
    if wanted is not None and wanted > own:
        raise SettingsError(f"--max-model-len {wanted} is over the model's context of {own} tokens")
    return int(wanted or own)


def _refuse_unsupported(config: Any, context: int) -> None:
    """Refuse what plain causal attention over all positions would compute wrongly."""
    text = _text(config)
    reason = ""
    if config.is_encoder_decoder:
        reason = "it is an encoder-decoder"
    elif getattr(text, "attn_logit_softcapping", None):
        reason = "its attention scores are soft-capped"
    elif getattr(text, "num_local_experts", 0) or getattr(text, "num_experts", 0):
        reason = "it is a mixture of experts"
    elif getattr(config, "quantization_config", None):
        reason = "its weights are quantised; give a float directory"
    elif unknown := set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        reason = f"it has layers of the kind {', '.join(sorted(unknown))}"
    elif _window(text) and context > _window(text):
        reason = f"its attention slides over {_window(text)} tokens; --max-model-len {_window(text)} would do"
    if reason:
        raise SettingsError(f"the model family {config.model_type!r} is not supported: {reason}")


def _window(text: Any) -> int:
    """The sliding window in tokens, 0 for none."""
    if not getattr(text, "use_sliding_window", True):
        return 0
    kinds = getattr(text, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return 0
    return int(getattr(text, "sliding_window", None) or 0)


def find_eos_ids(directory: Path, config: Any) -> frozenset[int]:
    """Every token id that ends a sequence: of the model, its generation config and its tokenizer."""
    found: set[int] = set(_as_ids(getattr(_text(config), "eos_token_id", None)))
    if (directory / "generation_config.json").is_file():
        found.update(_as_ids(GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id))
    token = _tokenizer_eos(directory)
    if token is not None:
        found.update(_token_ids(directory, token))
    return frozenset(found)


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(one) for one in value] if isinstance(value, (list, tuple)) else [int(value)]


def _tokenizer_eos(directory: Path) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _json(directory / name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return text
    return None


def _token_ids(directory: Path, token: str) -> list[int]:
    tokenizer = _json(directory / "tokenizer.json")
    added = [one["id"] for one in tokenizer.get("added_tokens", ()) if one.get("content") == token]
    if added:
        return added
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    return [vocabulary[token]] if isinstance(vocabulary, dict) and token in vocabulary else []


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SettingsError(f"{path} is not readable as JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
