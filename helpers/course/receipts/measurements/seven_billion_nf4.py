"""QLoRA on the shape of Llama-2-7B: random weights whose linear layers bitsandbytes keeps in NF4."""

import time
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn

from ....claims.claims import Claims
from ....planner import plan
from ....planner.catalog.models import find_model
from ..steps import Skip
from ._subjects import lora_7b, skip_without

_ROOM = 8 * 2**30  # bytes of GPU memory
_SEQ = 2048


def measure(claims: Claims, device: torch.device) -> None:
    """Record the peak of a step beside what was predicted, and tokens per second."""
    skip_without(device, _ROOM, "a 7B model in NF4")
    if find_spec("bitsandbytes") is None:
        raise Skip("a 7B model in NF4 needs bitsandbytes")
    model = _model(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    ids = torch.randint(32000, (1, _SEQ), device=device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    subject = f"Llama-2-7B, NF4, LoRA r=16, checkpointing, 1 x {_SEQ}"
    predicted = plan(replace(lora_7b(), quantize="nf4", seq=_SEQ)).peak_allocated_bytes
    peak = torch.cuda.max_memory_allocated(device)
    claims.record("planner", "measured / predicted peak", subject, peak / predicted, "", 0.95, 1.05)
    claims.figure("peak allocated", subject, peak / 2**30, "GiB")
    claims.figure("speed", subject, ids.numel() / seconds, "tokens/s")


def _model(device: torch.device) -> nn.Module:
    """Return the model with adapters on `device`; its base never lies there in more than 4 bits a weight."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(find_model("llama-2-7b").config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.zero_() if p.ndim == 1 else p.data.fill_(0.01)  # random numbers on a CPU would take minutes
    _put_in_four_bits(model, device)
    model.to(device).gradient_checkpointing_enable()
    model.enable_input_require_grads()
    # As PEFT makes them, and as the plan has them: adapters in FP32.
    return get_peft_model(model, LoraConfig(r=16, target_modules=list(lora_7b().lora_targets)))


def _put_in_four_bits(module: nn.Module, device: torch.device) -> None:
    """Replace linear layers on the CPU, all but the head; moving each to the GPU quantizes it."""
    import bitsandbytes as bnb

    for name, child in module.named_children():
        if type(child) is nn.Linear and name != "lm_head":
            small = bnb.nn.Linear4bit(
                child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
            )
            small.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
            setattr(module, name, small.to(device))
        else:
            _put_in_four_bits(child, device)
