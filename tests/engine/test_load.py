"""What is loaded, what is refused, and with which words."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.engine.iteration import Executor
from services.engine.kv_manager import KVManager
from services.engine.model import linear
from services.engine.model.linear import PackedLinear, pack_linear_layers
from services.engine.model.load import LoadedModel, find_eos_ids, load_model
from shared.errors import SettingsError
from tests.support.engine_driver import Driver, alone, sampling
from tests.support.tiny_models import VOCAB_SIZE, edit_json, make_tiny_llama

PROMPT = (5, 60, 17, 201, 99)


@pytest.fixture
def fresh(llama_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama whose files a test may change."""
    for path in llama_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_logits_are_those_of_transformers(family: str, request: pytest.FixtureRequest) -> None:
    model: LoadedModel = request.getfixturevalue(family)
    reference = AutoModelForCausalLM.from_pretrained(
        request.getfixturevalue(f"{family}_dir"), dtype=torch.float32
    )
    job = alone(model, PROMPT, sampling(6))
    with torch.no_grad():
        expected = reference(torch.tensor([[*PROMPT, *job.output]])).logits[0]
    got = torch.stack(job.logits)
    assert (got - expected[len(PROMPT) - 1 : -1]).abs().max() < 1e-4


def test_every_linear_layer_is_packed_and_the_tied_embedding_stays(llama: LoadedModel) -> None:
    network = llama.network
    assert not [one for one in network.modules() if type(one) is torch.nn.Linear]
    assert isinstance(network.lm_head, PackedLinear)
    assert network.model.embed_tokens.weight.shape == (VOCAB_SIZE, 64)


@pytest.mark.parametrize(("rows_in", "rows_out", "longest"), [(64, 128, 768), (33, 257, 8), (576, 1536, 192)])
def test_a_row_through_a_packed_layer_is_bitwise_the_same_in_any_batch(
    rows_in: int, rows_out: int, longest: int
) -> None:
    torch.manual_seed(0)
    layer = PackedLinear(torch.randn(rows_out, rows_in), torch.randn(rows_out), longest_sum=longest)
    x = torch.randn(70, rows_in)
    whole = layer(x)
    for n in range(1, 70):
        assert torch.equal(layer(x[:n]), whole[:n])
        assert torch.equal(layer(x[n : n + 1]), whole[n : n + 1])


def test_without_onednn_plain_layers_stay_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "can_pack", lambda: False)
    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with caplog.at_level(logging.WARNING):
        assert pack_linear_layers(network) == 0
    assert "no oneDNN" in caplog.text


def test_grouped_queries_have_a_small_kv(llama: LoadedModel, gpt2: LoadedModel) -> None:
    assert (llama.layout.n_kv_heads, llama.layout.head_dim, llama.layout.n_layers) == (2, 16, 3)
    assert (gpt2.layout.n_kv_heads, gpt2.layout.head_dim, gpt2.layout.n_layers) == (4, 12, 3)


def test_the_context_is_the_models_or_less(fresh: Path) -> None:
    assert load_model(fresh).max_model_len == 512
    assert load_model(fresh, max_model_len=100).max_model_len == 100
    with pytest.raises(SettingsError, match="--max-model-len 513 is over the model's context of 512"):
        load_model(fresh, max_model_len=513)


def test_every_end_of_sequence_id_counts(fresh: Path) -> None:
    edit_json(fresh / "config.json", eos_token_id=[2, 10])
    edit_json(fresh / "generation_config.json", eos_token_id=[2, 20])
    edit_json(fresh / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    tokenizer = {"added_tokens": [{"id": 30, "content": "<|im_end|>"}, {"id": 31, "content": "x"}]}
    (fresh / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert find_eos_ids(fresh, AutoConfig.from_pretrained(fresh)) == {2, 10, 20, 30}


def test_a_tokenizers_end_may_be_named_in_its_special_tokens_and_its_vocabulary(fresh: Path) -> None:
    edit_json(fresh / "special_tokens_map.json", eos_token="</s>")
    (fresh / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"</s>": 40}}}), "utf-8")
    assert find_eos_ids(fresh, AutoConfig.from_pretrained(fresh)) == {2, 40}


@pytest.mark.parametrize("eos", [2, 10, 20])
def test_each_of_them_ends_a_sequence(fresh: Path, eos: int) -> None:
    edit_json(fresh / "config.json", eos_token_id=[2, 10])
    edit_json(fresh / "generation_config.json", eos_token_id=[20])
    params = sampling(5, ignore_eos=False, logit_bias={eos: 100.0})
    job = alone(load_model(fresh), PROMPT, params)
    assert (job.output, job.finish) == ([eos], "stop")


def test_a_missing_directory_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json.*give --model"):
        load_model(tmp_path / "nowhere")


def test_missing_weights_are_a_clear_refusal(fresh: Path) -> None:
    (fresh / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match="cannot be loaded"):
        load_model(fresh)


def test_an_unreadable_config_is_a_clear_refusal(fresh: Path) -> None:
    (fresh / "config.json").write_text("{", "utf-8")
    with pytest.raises(SettingsError, match=r"config\.json"):
        load_model(fresh)


def test_an_unknown_family_is_refused_by_name(fresh: Path) -> None:
    edit_json(fresh / "config.json", model_type="nonesuch")
    with pytest.raises(SettingsError, match="nonesuch"):
        load_model(fresh)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mistral", "sliding_window": 100}, "slides over 100 tokens; --max-model-len 100"),
        ({"model_type": "gemma2"}, "soft-capped"),
        ({"model_type": "mixtral"}, "mixture of experts"),
        ({"model_type": "gpt_oss"}, "mixture of experts"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
    ids=["sliding-window", "soft-cap", "experts", "sinks", "encoder-decoder", "quantised"],
)
def test_families_that_this_attention_would_get_wrong_are_refused(
    fresh: Path, changes: dict[str, object], reason: str
) -> None:
    edit_json(fresh / "config.json", **changes)
    with pytest.raises(SettingsError, match=f"not supported: .*{reason}"):
        load_model(fresh)


def test_a_window_that_the_context_never_reaches_is_no_window(fresh: Path) -> None:
    edit_json(
        fresh / "config.json", model_type="mistral", sliding_window=100, architectures=["MistralForCausalLM"]
    )
    model = load_model(fresh, max_model_len=100)
    driver = Driver(model)
    driver.executor.warm_up()
    assert alone(model, PROMPT, sampling(3)).finish == "length"


def test_an_untied_head_with_biases_works_too(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path, tie_word_embeddings=False, attention_bias=True)
    job = alone(load_model(directory), PROMPT, sampling(3))
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT])).logits[0, -1]
    assert (job.logits[0] - expected).abs().max() < 1e-4


def test_a_model_whose_attention_is_its_own_is_found_out_by_the_first_forward_pass(
    llama: LoadedModel,
) -> None:
    deeper = replace(llama, layout=replace(llama.layout, n_layers=4))  # one layer more than calls us
    executor = Executor(deeper, KVManager(deeper.layout, 100))
    with pytest.raises(SettingsError, match="computes attention in a way that is not supported"):
        executor.warm_up()
