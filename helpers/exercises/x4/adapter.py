"""Checks of part 2: the adapter, and how many parameters it trains."""

from typing import Any

import torch

from ...core.units import human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from .small_llama import ALL_LINEAR, llama_config


class AdapterSitsWhereItShould(Check):
    """Each linear layer of attention and MLP has an adapter of that rank, alpha is twice the rank, the rest frozen."""

    points = 1
    hint = "target_modules names layers by the end of their name. Print the model once and read the names."

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        first = 2 + seed % 5
        return {str(rank): AdapterSitsWhereItShould._one(rank, adapter_config) for rank in (first, first + 3)}

    @staticmethod
    def _one(rank: int, adapter_config: Any) -> Evidence:
        from peft import get_peft_model
        from transformers import LlamaForCausalLM

        model = get_peft_model(LlamaForCausalLM(llama_config()), adapter_config(rank))
        layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A")}
        return {
            "where": sorted({name.rsplit(".", 1)[1] for name in layers}),
            "layers": len(layers),
            "ranks": sorted({next(iter(m.r.values())) for m in layers.values()}),
            "scales": sorted({next(iter(m.scaling.values())) for m in layers.values()}),
            "dropouts": sorted({getattr(next(iter(m.lora_dropout.values())), "p", 0.0) for m in layers.values()}),
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "starts at": max(p.detach().abs().max().item() for n, p in model.named_parameters() if "lora_B" in n),
            "others": sorted(n for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n)[:3],
            "task": str(getattr(adapter_config(rank), "task_type", None)),
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
            return f"{seen['layers']} layers have an adapter; {expected['layers']} is right for 2 blocks."
        if seen["ranks"] != expected["ranks"]:
            return f"it makes adapters of rank {', '.join(map(str, seen['ranks']))}."
        if seen["scales"] != [2.0]:
            return f"alpha / r is {seen['scales']}; with alpha twice the rank it is 2."
        if seen["others"]:
            return f"besides the adapters this is trained: {', '.join(seen['others'])}."
        if seen["dropouts"] != [0.05]:
            return f"dropout is {seen['dropouts']}; 0.05 was asked for."
        if seen["starts at"] != 0:
            return (
                f"B does not start at zero (its largest entry is {seen['starts at']:.2g}), so the adapted model is "
                "not the base. Leave init_lora_weights as it is by default."
            )
        if seen["trained"] != expected["trained"]:
            return (
                f"{seen['trained']:,} parameters are trained; A and B of each layer have {expected['trained']:,}. "
                "Does an option train something besides them, as DoRA its magnitudes?"
            )
        if "CAUSAL_LM" not in seen["task"]:
            return f"task_type is {seen['task']}; that of a causal language model is CAUSAL_LM."
        return None


class CountIsPredicted(Check):
    """The number of trained parameters is said beforehand, for any Llama, without making one."""

    points = 1
    hint = (
        "r (in + out) for each layer, times the number of blocks. With grouped-query attention k and v are narrower: "
        "num_key_value_heads heads of head_dim. And head_dim need not be hidden_size / num_attention_heads."
    )
    SIZES = (
        {},
        {"num_key_value_heads": 2, "num_hidden_layers": 3},
        {"head_dim": 24, "num_key_value_heads": 1},
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8},
    )  # fmt: skip

    @staticmethod
    def probe(seed: int, adapter_config: Any, trained_parameters: Any) -> Evidence:
        rank = 4 + seed % 5
        with MemoryMeter(device=torch.device("cpu")) as meter:
            counts = [int(trained_parameters(llama_config(**sizes), rank)) for sizes in CountIsPredicted.SIZES]
        return {"rank": rank, "counts": counts, "bytes": meter.peak_bytes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for sizes, got, want in zip(CountIsPredicted.SIZES, seen["counts"], expected["counts"], strict=True):
            if got != want:
                return f"Llama with {sizes or 'the small sizes'}, r={seen['rank']}: {got:,} said, {want:,} there."
        if seen["bytes"] > 2**24:
            return f"{human_bytes(seen['bytes'])} were allocated for counting: it should be done without a model."
        return None


ADAPTER = (AdapterSitsWhereItShould, CountIsPredicted)
