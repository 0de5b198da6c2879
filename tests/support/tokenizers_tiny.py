"""Tiny tokenizers and model directories that are nastier than real ones: almost every token is a
single byte, so that characters are split over tokens all the time."""

import json
from pathlib import Path
from typing import Any

SPECIALS = ("<s>", "</s>", "<end>", "<say>")
CONTEXT = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<say>' + m.role + ':' + m.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<say>assistant:' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The character for each byte in GPT-2's manner, by byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    table = {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(moved)}
    return [table[byte] for byte in range(256)]


def _special(content: str, ident: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": ident, "content": content, "special": True, **flags}


def _description(
    vocab: dict[str, int], merges: list[str], specials: list[str], **parts: Any
) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": None, "byte_fallback": False}
    model.update(parts.pop("model", {}))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": [_special(name, vocab[name]) for name in specials],
        "normalizer": parts.get("normalizer"),
        "pre_tokenizer": parts.get("pre_tokenizer"),
        "decoder": parts["decoder"],
        "model": model,
    }


def byte_level() -> dict[str, Any]:
    """Ids 0 to 255 are the bytes; a few merges, two of which cut through characters."""
    chars = byte_characters()
    vocab = {char: byte for byte, char in enumerate(chars)}
    merges = [f"{chars[a]} {chars[b]}" for a, b in ((104, 101), (32, 116), (0xF0, 0x9F), (0xA9, 0x20))]
    for name in (*(merge.replace(" ", "") for merge in merges), *SPECIALS):
        vocab[name] = len(vocab)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _description(vocab, merges, list(SPECIALS), pre_tokenizer=level, decoder=level)


def sentencepiece() -> dict[str, Any]:
    """Spaces as marks, one put in front of the text, unknown characters as byte tokens."""
    names = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    names += [chr(code) for code in range(33, 127)] + ["\u00e9", "\u2581t", "he", "\u2581the", "\u2581\u2581"]
    merges = ["\u2581 t", "h e", "\u2581t he", "\u2581 \u2581"]
    vocab = {name: ident for ident, name in enumerate(names)}
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    normalizers = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    return _description(
        vocab,
        merges,
        ["<unk>", *SPECIALS],
        normalizer={"type": "Sequence", "normalizers": normalizers},
        decoder={"type": "Sequence", "decoders": decoders},
        model={"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"},
    )


KINDS = {"bytes": byte_level, "spaces": sentencepiece}


def write_model(
    path: Path,
    kind: str = "bytes",
    *,
    context: int = CONTEXT,
    template: str | None = TEMPLATE,
    bos: bool = True,
) -> Path:
    """A model directory without weights, as a gateway needs it."""
    path.mkdir(parents=True, exist_ok=True)
    description = KINDS[kind]()
    vocab: dict[str, int] = description["model"]["vocab"]
    names: dict[str, Any] = {"eos_token": "</s>"}
    if bos:
        names["bos_token"] = "<s>"
    if template is not None:
        names["chat_template"] = template
    config = {"vocab_size": len(vocab), "max_position_embeddings": context, "eos_token_id": [vocab["<end>"]]}
    for name, content in (
        ("tokenizer.json", description),
        ("tokenizer_config.json", names),
        ("config.json", config),
    ):
        (path / name).write_text(json.dumps(content), "utf-8")
    return path
