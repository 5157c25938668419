"""The sizes of models, for layouts: against published counts, and of anybody's config."""

import json

from helpers.planner import RecipeError, TrainingConfig
from helpers.planner.catalog import model_names
from helpers.planner.catalog.archs import arch_names, arch_of
from helpers.planner.catalog.configs import CONFIGS
from helpers.planner.catalog.models import _context, find_context, kind_of, make_config, spec_of
from helpers.planner.layout.arch import arch_of_config

import pytest

from tests.planner.support import MIXTURES, PARAMETERS, PRINTED

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 500}


@pytest.fixture
def config(tmp_path):
    """Write a config and return its path."""

    def write(**sizes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(TINY | sizes))
        return str(path)

    return write


@pytest.mark.parametrize("name", arch_names())
def test_counts_are_the_published_ones(name):
    assert arch_of(name).count() == pytest.approx((PARAMETERS | MIXTURES)[name], rel=0.01)


def test_the_catalog_states_what_transformers_makes_of_it():
    """So that neither a layout nor a refusal has to wait for transformers."""
    for name, published in CONFIGS.items():
        config = make_config(name, published.model_type, dict(published.sizes))
        kind = kind_of(name, config, published.model_type)[0]
        assert find_context(name) == ((0, False) if kind == "ImageClassification" else _context(config)), name
        assert (kind == "CausalLM") == (name in arch_names()), name
        if kind == "CausalLM":
            assert arch_of(name) == arch_of_config(name, config.get_text_config()), name


@pytest.mark.parametrize("name", PRINTED)
def test_mixtures_have_the_parameters_that_are_printed_of_them(name):
    arch, (whole, active) = arch_of(name), PRINTED[name]
    assert arch.count() == pytest.approx(1e9 * whole, rel=0.01)
    without = arch.count(active=True)
    assert 0.99 * without <= 1e9 * active <= 1.01 * (without + arch.hidden * arch.vocab)


def test_every_mixture_is_refused_by_recipes_and_known_to_layouts():
    assert set(MIXTURES) == {name for name, config in CONFIGS.items() if config.mixture}
    assert not set(MIXTURES) & set(model_names())
    for name in MIXTURES:
        assert arch_of(name).experts > 1
        with pytest.raises(RecipeError, match="mixture of experts"):
            spec_of(TrainingConfig(name))


def test_latent_attention_and_dense_blocks_are_read():
    arch = arch_of("deepseek-v3")
    assert (arch.q_lora, arch.kv_lora, arch.head_dim, arch.rope_dim, arch.value_dim) == (1536, 512, 192, 64, 128)
    assert (arch.dense_layers, arch.shared_experts, arch.experts_per_token) == (3, 1, 8)
    assert [arch.is_moe(layer) for layer in (2, 3)] == [False, True]


def test_a_config_file_has_the_sizes_that_it_says(config):
    arch = arch_of(config(model_type="mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2))
    assert (arch.layers, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim) == (4, 64, 4, 2, 16)
    assert (arch.experts, arch.experts_per_token, arch.moe_ffn, arch.vocab) == (4, 2, 96, 500)


def test_a_type_that_transformers_does_not_know_is_taken_at_its_word(config):
    latent = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    arch = arch_of(config(model_type="kimi_k2", first_k_dense_replace=1, **latent, **experts))
    assert (arch.head_dim, arch.experts, arch.dense_layers, arch.kv_lora) == (24, 8, 1, 16)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"model_type": "bert"}, "not a causal language model"),
        ({"model_type": "vit"}, "not a causal language model"),
        ({"model_type": "t5"}, "not a causal language model"),
        (
            {
                "model_type": "qwen2_moe",
                "num_experts": 4,
                "shared_expert_intermediate_size": 512,
                "num_key_value_heads": 4,
            },
            "other parts",
        ),
        ({"model_type": "llama", "hidden_act": "nonsense"}, "cannot be built"),
        ({"model_type": "nonesuch", "num_hidden_layers": None}, "number of layers"),
        ({}, "not a Hugging Face config"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("model_type", "nothing"),
)
def test_what_is_no_decoder_of_known_parts_is_refused_in_one_line(sizes, word, config):
    with pytest.raises(RecipeError, match=word) as error:
        arch_of(config(**sizes))
    assert "\n" not in str(error.value)


def test_names_that_nobody_has():
    with pytest.raises(RecipeError, match="did you mean mixtral-8x7b"):
        arch_of("mixtral-8x7")
    with pytest.raises(RecipeError, match="not a causal language model"):
        arch_of("vit-b-16")
