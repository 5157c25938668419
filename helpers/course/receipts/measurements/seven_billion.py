"""LoRA on the shape of Llama-2-7B, with random weights: peak, reserved memory and tokens a second; and QLoRA."""

import time
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn

from ....claims.claims import Claims
from ....planner import Recipe, plan
from ....planner.measure import measure_recipe
from ..steps import Skip

_LORA = Recipe(
    "llama-2-7b",
    lora_rank=16,
    lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    checkpointing="every",
    optimizer_impl="fused",
)
_SHAPES = ((1, 512), (1, 2048), (4, 512), (4, 2048), (8, 1024))
_ROOM = 20 * 2**30  # bytes of GPU memory that the smallest of them wants


def measure(claims: Claims, device: torch.device) -> None:
    """Record what each shape takes, beside what was predicted."""
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[1] < _ROOM:
        raise Skip("the shape of a 7B model needs a CUDA GPU of 20 GiB or more")
    for batch, seq in _SHAPES:
        recipe = replace(_LORA, micro_batch_size=batch, seq=seq)
        predicted = plan(recipe)
        if predicted.reserved_bytes[1] > torch.cuda.mem_get_info(device)[0]:
            continue
        measured = measure_recipe(recipe, device)
        subject = f"Llama-2-7B, BF16, LoRA r=16, checkpointing, {batch} x {seq}"
        ratio = measured.peak_bytes / predicted.peak_allocated_bytes
        claims.record("planner", "measured / predicted peak", subject, ratio, "", 0.97, 1.03)
        claims.figure("peak allocated", subject, measured.peak_bytes / 2**30, "GiB")
        claims.figure("peak reserved", subject, measured.reserved_bytes / 2**30, "GiB")
        claims.figure("speed", subject, batch * seq / measured.seconds, "tokens/s")
        if batch * seq <= 2048:
            claims.record("T25", "7B with LoRA fits 24 GB", subject, measured.reserved_bytes / 1e9, "GB", 0, 24)
    _qlora(claims, device)


def _qlora(claims: Claims, device: torch.device) -> None:
    """Record the peak of a step on a base whose linear layers bitsandbytes keeps in NF4."""
    if find_spec("bitsandbytes") is None:
        return
    import bitsandbytes as bnb
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ....planner.catalog.models import find_model

    def in_four_bits(module: nn.Module) -> None:
        """Replace linear layers on the CPU; moving each to the GPU quantizes it."""
        for name, child in module.named_children():
            if type(child) is nn.Linear and name != "lm_head":
                small = bnb.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
                )
                small.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
                setattr(module, name, small.to(device))
            else:
                in_four_bits(child)

    torch.cuda.empty_cache()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(find_model("llama-2-7b").config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.zero_() if p.ndim == 1 else p.data.fill_(0.01)  # random numbers on a CPU would take minutes
    in_four_bits(model)
    model.to(device).gradient_checkpointing_enable()
    model.enable_input_require_grads()
    adapter = LoraConfig(r=16, target_modules=list(_LORA.lora_targets))
    model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    ids = torch.randint(32000, (1, 2048), device=device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)
    subject = "Llama-2-7B, NF4, LoRA r=16, checkpointing, 1 x 2048"
    predicted = plan(replace(_LORA, quantize="nf4", seq=2048)).peak_allocated_bytes
    peak = torch.cuda.max_memory_allocated(device)
    claims.record("planner", "measured / predicted peak", subject, peak / predicted, "", 0.95, 1.05)
    claims.figure("peak allocated", subject, peak / 2**30, "GiB")
    claims.figure("speed", subject, ids.numel() / (time.perf_counter() - began), "tokens/s")
