# two long sequences

from helpers import Recipe


def fine_tune_plan():
    import dataclasses

    first = Recipe(
        "llama-2-7b", lora_rank=16, lora_targets=("v_proj", "o_proj", "q_proj", "k_proj"), checkpointing="every"
    )
    return dataclasses.replace(first, micro_batch_size=2, seq=4096, gradient_accumulation_steps=16)
