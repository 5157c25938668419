"""Models of the Hub: their names, and the parameters that are published of them."""

import json
import sys
from contextlib import nullcontext

from helpers.__main__ import main
from helpers.planner import Recipe
from helpers.planner.catalog import count_parameters, model_names, spec_of
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.configs import CONFIGS
from helpers.planner.catalog.hub import _plain, hub_models, known_name
from helpers.planner.catalog.models import find_context
from helpers.planner.simulate.model import build
from helpers.planner.simulate.quantized import QuantizedLinear

import pytest
from torch import nn

from tests.sampling import sample_with_quick

COUNTED = {name: model for name, model in hub_models().items() if model.parameters}
DENSE = [name for name, model in COUNTED.items() if not model.mixture]
MIXTURES = [name for name, model in COUNTED.items() if model.mixture]


@pytest.mark.slow
@pytest.mark.parametrize("name", sample_with_quick(DENSE, one_in=6, quick_one_in=12))
def test_a_model_has_the_parameters_that_are_published_of_it(name):
    assert count_parameters(name) == hub_models()[name].parameters


def test_contexts_are_those_that_are_published():
    whispers = [name for name in hub_models() if name.startswith("whisper")]
    assert {find_context(name) for name in whispers} == {(448, False)}  # n_text_ctx in openai/whisper's checkpoints
    assert len(whispers) == 7
    unlimited = {name for name in hub_models() if find_context(name)[0] == sys.maxsize}
    # Biases in place of positions (T5's, BLOOM's ALiBi): a config has no longest sequence.
    assert {hub_models()[name].config["model_type"] for name in unlimited} == {"t5", "mt5", "bloom"}


@pytest.mark.parametrize("name", MIXTURES)
def test_layouts_know_a_mixture(name):
    assert arch_of(name).count() == pytest.approx(hub_models()[name].parameters, rel=0.01)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("bigscience/mt0-xxl", "mt5-xxl"),
        ("gemma2-9b", "gemma-2-9b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2-57B-A14B-Instruct", "qwen2-57b-a14b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b-v0.1"),
        ("bert-base-uncased", "bert-base"),
        ("bert-base-cased", "bert-base-cased"),
        ("microsoft/Phi-3.5-mini-instruct", "phi-3-mini"),
        ("openai/whisper-large-v3", "whisper-large-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("qwen3_8b", "qwen3-8b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", ""),  # somebody's own, perhaps with more tokens
        ("./google/gemma-2-9b-it", ""),
        ("qwen2.5-9b", ""),
    ],
)
def test_a_model_is_known_by_the_names_that_people_type(typed, name):
    assert known_name(typed) == name


def test_no_name_is_that_of_two_models():
    taken = {}
    for name, also in [(name, ()) for name in CONFIGS] + [(name, m.also) for name, m in hub_models().items()]:
        for each in (name, *also):
            assert taken.setdefault(_plain(each), name) == name, each
    assert not set(hub_models()) & {*CONFIGS, *model_names()}


def test_a_plan_says_which_model_it_is_of(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["plan", "--model", "HuggingFaceTB/SmolLM2-135M-Instruct", "--seq", "64", "--gpu", "3080"]
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "smollm2-135m"
    assert answer["parameters"] == hub_models()["smollm2-135m"].parameters


def test_layers_that_transformers_keeps_in_fp32_are_not_quantized():
    recipe = Recipe("t5-small", seq=16, precision="bf16", lora_rank=4, quantize="nf4")
    model = build(recipe, spec_of(recipe), lambda: (nullcontext(), nullcontext()))
    linear = {
        name.rpartition(".")[2]: type(each) for name, each in model.named_modules() if isinstance(each, nn.Linear)
    }
    assert linear["wi"] is linear["k"] is QuantizedLinear
    assert linear["wo"] is linear["lm_head"] is nn.Linear
