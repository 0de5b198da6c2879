"""The paper's example x1..x4, with exactly its shapes and counts, on the real attention function."""

from typing import Any

import pytest
import torch

from services.engine.model import attention, selective_batching
from services.engine.model.load import LoadedModel
from shared.protocol.result import Phase
from tests.support.engine_driver import Driver, alone, sampling

H = 48
"""Hidden size of the tiny GPT-2, whose QKV projection is one layer."""
X1, X2, X3, X4 = (11, 12), (21,), (31, 32), (41, 42, 43)


@pytest.fixture
def example(gpt2: LoadedModel) -> Driver:
    """x1 has run two iterations, x2 one; x3 and x4 have run none."""
    driver = Driver(gpt2)
    driver.add("x1", X1)
    driver.step()
    driver.add("x2", X2)
    driver.step(["x1", "x2"])
    driver.add("x3", X3)
    driver.add("x4", X4)
    return driver


class Shapes:
    """Records the shapes that pass through the network's linear layers and the attention."""

    def __init__(self, network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.qkv: list[tuple[torch.Size, torch.Size]] = []
        self.merged: list[torch.Size] = []
        self.head: list[torch.Size] = []
        self.attended: list[tuple[int, int]] = []
        block = network.transformer.h[0]
        self._hooks = [
            block.attn.c_attn.register_forward_hook(
                lambda _, args, out: self.qkv.append((args[0].shape, out.shape))
            ),
            block.attn.c_proj.register_forward_hook(lambda _, args, out: self.merged.append(args[0].shape)),
            network.lm_head.register_forward_hook(lambda _, args, out: self.head.append(args[0].shape)),
        ]
        real = attention.attend

        def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: Any) -> Any:
            self.attended.append((query.shape[2], keys.shape[2]))
            return real(query, keys, values, **options)

        monkeypatch.setattr(selective_batching, "attend", attend)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


@pytest.fixture
def shapes(example: Driver, monkeypatch: pytest.MonkeyPatch) -> Any:
    recorded = Shapes(example.model.network, monkeypatch)
    yield recorded
    recorded.remove()


def test_v1_seven_flat_rows_give_four_outputs_in_order(example: Driver, shapes: Shapes) -> None:
    executed = example.step(["x1", "x2", "x3", "x4"])

    assert [member.tokens for member in executed.members] == [1, 1, 2, 3]
    assert executed.n_tokens == 7
    assert [(one.id, one.index) for one in executed.outputs] == [("x1", 2), ("x2", 1), ("x3", 0), ("x4", 0)]
    assert shapes.head == [(1, 4, H)]


def test_v2_kv_rows_before_and_after(example: Driver) -> None:
    kv = example.executor.kv
    before = {name: kv.get(name).length if name in kv else 0 for name in ("x1", "x2", "x3", "x4")}

    example.step(["x1", "x2", "x3", "x4"])

    after = {name: kv.get(name).length for name in ("x1", "x2", "x3", "x4")}
    assert before == {"x1": 3, "x2": 1, "x3": 0, "x4": 0}
    assert after == {"x1": 4, "x2": 2, "x3": 2, "x4": 3}


def test_v3_shapes_of_projection_split_attention_and_merge(example: Driver, shapes: Shapes) -> None:
    example.step(["x1", "x2", "x3", "x4"])

    assert shapes.qkv == [((1, 7, H), (1, 7, 3 * H))]
    assert shapes.merged == [(1, 7, H)]
    one_layer = shapes.attended[:4]
    assert [rows for rows, _ in one_layer] == [1, 1, 2, 3]
    assert [keys for _, keys in one_layer] == [4, 2, 2, 3]
    assert shapes.attended == one_layer * example.model.layout.n_layers


def test_v4_the_phase_follows_from_kv_presence_alone(example: Driver) -> None:
    executed = example.step(["x1", "x2", "x3", "x4"])

    assert [member.phase for member in executed.members] == [
        Phase.DECODE, Phase.DECODE, Phase.PREFILL, Phase.PREFILL,
    ]  # fmt: skip
    assert executed.phase == "mixed"
    assert all("phase" not in type(job.entry()).model_fields for job in example.jobs.values())


def test_v5_two_prompts_of_two_and_three_tokens_are_five_rows(example: Driver, shapes: Shapes) -> None:
    executed = example.step(["x3", "x4"])

    assert shapes.qkv == [((1, 5, H), (1, 5, 3 * H))]
    assert executed.phase == "prefill"


def test_v7_a_selective_batch_gives_what_each_gives_alone(model: LoadedModel) -> None:
    prompts = {"x1": X1, "x2": X2, "x3": X3, "x4": X4}
    driver = Driver(model)
    for name, prompt in prompts.items():
        driver.add(name, prompt)
        driver.step()
    driver.run()

    for name, prompt in prompts.items():
        single = alone(model, prompt, sampling())
        assert driver.jobs[name].output == single.output
        assert all(map(torch.equal, driver.jobs[name].logits, single.logits))
        assert len(single.logits) == 8


def test_an_attention_mask_of_the_model_is_refused() -> None:
    anything = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ValueError, match="mask"):
        selective_batching.selective_attention(
            torch.nn.Identity(), anything, anything, anything, torch.ones(1, 1)
        )


def test_a_soft_cap_is_refused() -> None:
    anything = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ValueError, match="softcap"):
        selective_batching.selective_attention(
            torch.nn.Identity(), anything, anything, anything, None, softcap=30.0
        )
