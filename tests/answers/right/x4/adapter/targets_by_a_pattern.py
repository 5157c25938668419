# targets by a pattern

from peft import LoraConfig


def adapter_config(rank):
    return LoraConfig(
        "CAUSAL_LM",
        r=rank,
        lora_alpha=rank + rank,
        lora_dropout=0.05,
        target_modules=r".*\.(self_attn|mlp)\.[a-z]+_proj",
    )
