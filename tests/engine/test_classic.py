"""V6: what a classical batcher refuses, and selective batching runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.classic import ClassicBatcher, ClassicInput, ShapesDiffer

X1 = ClassicInput((14,), n_kv=3)
X2 = ClassicInput((22,), n_kv=1)
X3 = ClassicInput((31, 32), n_kv=0)
X4 = ClassicInput((41, 42, 43), n_kv=0)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [((X3, X4), "input tokens"), ((X1, X2), "token index"), ((X1, X3), "phases")],
    ids=["both-prefill-of-other-length", "both-decode-at-other-index", "other-phases"],
)
def test_v6_no_common_shape(pair: tuple[ClassicInput, ...], reason: str) -> None:
    with pytest.raises(ShapesDiffer, match=reason):
        ClassicBatcher.check(pair)


def test_v6_two_prompts_of_length_two_run_as_two_by_two_then_two_by_one(gpt2_dir: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(gpt2_dir, dtype=torch.float32)
    seen: list[torch.Size] = []
    network.transformer.h[0].register_forward_hook(lambda _, args, out: seen.append(args[0].shape))
    batcher = ClassicBatcher(network)

    logits = batcher.run([X3, ClassicInput((51, 52), n_kv=0)])
    tokens = logits.argmax(1).tolist()
    batcher.run([ClassicInput((token,), n_kv=2) for token in tokens])

    assert seen == [(2, 2, 48), (2, 1, 48)]
