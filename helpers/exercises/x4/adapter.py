"""Checks of part 2: the adapter, and how many parameters it trains."""

from typing import Any

import torch

from ...core.units import human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from .small_llama import ALL_LINEAR, llama_config

# Eleven blocks, because some patterns match a block of one digit only; biases, because an option trains them.
BIASES = {"attention_bias": True, "mlp_bias": True}
TINY = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 11}


class AdapterSitsWhereItShould(Check):
    """Every linear layer of a block has an adapter of that rank; alpha is twice the rank; the rest is frozen."""

    points = 1
    hint = "target_modules matches the ends of layers' names. Print the model once and read the names."

    @staticmethod
    def _cases(seed: int) -> dict[int, dict[str, Any]]:
        """Return the sizes of a Llama for each rank."""
        return {2 + seed % 5: {}, 64: TINY | BIASES}

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        cases = AdapterSitsWhereItShould._cases(seed)
        return {str(rank): AdapterSitsWhereItShould._one(rank, sizes, adapter_config) for rank, sizes in cases.items()}

    @staticmethod
    def _one(rank: int, sizes: dict[str, Any], adapter_config: Any) -> Evidence:
        from peft import get_peft_model
        from transformers import LlamaForCausalLM

        config = adapter_config(rank)
        task = str(getattr(config, "task_type", None))
        model = get_peft_model(LlamaForCausalLM(llama_config(**sizes)), config)
        layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A")}
        return {
            "where": sorted({name.rsplit(".", 1)[1] for name in layers}),
            "layers": len(layers),
            "ranks": sorted({next(iter(m.r.values())) for m in layers.values()}),
            "alphas": sorted({next(iter(m.lora_alpha.values())) for m in layers.values()}),
            "scales": sorted({next(iter(m.scaling.values())) for m in layers.values()}),
            "dropouts": sorted({getattr(next(iter(m.lora_dropout.values())), "p", 0.0) for m in layers.values()}),
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "starts at": max(p.detach().abs().max().item() for n, p in model.named_parameters() if "lora_B" in n),
            "others": sorted(n for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n)[:3],
            "task": task,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, want in expected.items():
            wrong = AdapterSitsWhereItShould._wrong(seen[rank], want)
            if wrong:
                return f"adapter_config({rank}): {wrong}"
        return None

    @staticmethod
    def _wrong(seen: Evidence, expected: Evidence) -> str | None:
        missing, extra = (
            sorted(set(a) - set(b)) for a, b in ((ALL_LINEAR, seen["where"]), (seen["where"], ALL_LINEAR))
        )
        if missing or extra:
            return f"layers without an adapter: {missing or 'none'}; layers that should have none: {extra or 'none'}."
        if seen["layers"] != expected["layers"]:
            blocks = expected["layers"] // len(ALL_LINEAR)
            return f"{seen['layers']} layers have an adapter; with {blocks} blocks, {expected['layers']} layers should."
        if seen["ranks"] != expected["ranks"]:
            return f"the adapters have rank {', '.join(map(str, seen['ranks']))}; expected {expected['ranks'][0]}."
        if seen["alphas"] != expected["alphas"]:
            return f"alpha is {', '.join(map(str, seen['alphas']))}; twice the rank is {expected['alphas'][0]}."
        if seen["scales"] != [2.0]:
            return f"the correction is multiplied by {seen['scales']}; alpha / r is 2. Which option changes the scale?"
        if seen["others"]:
            return f"these parameters are trained in addition to the adapters: {', '.join(seen['others'])}."
        if seen["dropouts"] != [0.05]:
            return f"dropout is {seen['dropouts']}; it should be 0.05."
        if seen["starts at"] != 0:
            return (
                f"B does not start at zero (its largest entry is {seen['starts at']:.2g}), so the adapted model is "
                "not the base. Leave init_lora_weights at its default."
            )
        if seen["trained"] != expected["trained"]:
            return (
                f"{seen['trained']:,} parameters are trained; A and B of each layer have {expected['trained']:,}. "
                "Does an option train other parameters as well, as DoRA trains magnitudes?"
            )
        if "CAUSAL_LM" not in seen["task"]:
            return f"task_type is {seen['task']}; for a causal language model it is CAUSAL_LM."
        return None


class CountIsPredicted(Check):
    """The number of trained parameters is computed beforehand, for any Llama, without building one."""

    points = 1
    hint = (
        "Add up r (in + out) for the layers of a block, and multiply by the number of blocks. With grouped-query "
        "attention, k and v are narrower: num_key_value_heads * head_dim. head_dim need not be hidden_size / "
        "num_attention_heads."
    )
    SIZES = (
        {},
        {"num_hidden_layers": 1, "tie_word_embeddings": True, **BIASES},
        {"num_key_value_heads": 2, "num_hidden_layers": 3},
        {"head_dim": 24, "num_key_value_heads": 1},
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8},
        {},  # again, with another rank
    )  # fmt: skip
    MOST = 2**14  # bytes; the adapter of the smallest Llama has more

    @staticmethod
    def _ranks(seed: int) -> tuple[int, ...]:
        return 4 + seed % 5, 1, 3, 16, 16, 64, 2  # one twice: the rank alone does not decide, nor do the sizes

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        counts, kinds, most, changed = [], set(), 0, False
        for sizes, rank in zip(CountIsPredicted.SIZES, CountIsPredicted._ranks(seed), strict=True):
            if most > CountIsPredicted.MOST:
                break  # it makes models: the larger ones would not fit anywhere
            config = llama_config(**sizes)
            before = config.to_dict()
            with MemoryMeter(device=torch.device("cpu"), by_category=False) as meter:
                count = trained_parameters(config, rank)
            counts.append(int(count))
            kinds.add(type(count).__name__)
            most = max(most, meter.peak_bytes)
            changed |= config.to_dict() != before
        return {"ranks": CountIsPredicted._ranks(seed)[: len(counts)], "counts": counts, "kinds": sorted(kinds),
                "bytes": most, "changed": changed}  # fmt: skip

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["bytes"] > CountIsPredicted.MOST:
            return f"Counting allocated {human_bytes(seen['bytes'])}. Compute the number without creating any weights."
        cases = zip(CountIsPredicted.SIZES, expected["ranks"], seen["counts"], expected["counts"], strict=True)
        for sizes, rank, got, want in cases:
            if got != want:
                return f"Llama with {sizes or 'the small sizes'}, r={rank}: you return {got:,}; it trains {want:,}."
        if seen["kinds"] != ["int"]:
            return f"The count is a {' or a '.join(seen['kinds'])}; return an int."
        if seen["changed"]:
            return "trained_parameters has changed the configuration that it was given."
        return None


ADAPTER = (AdapterSitsWhereItShould, CountIsPredicted)
