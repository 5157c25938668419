"""What other programs call the options of `plan` and their values: a refusal names the one that was meant."""

import difflib
import re
from collections.abc import Sequence

_SIXTEEN = "--precision bf16 (all in 16 bits) or --precision bf16-amp (FP32 weights)"
_HALF = "--precision fp16 (all in 16 bits) or --precision fp16-amp (FP32 weights)"
_NODES = "--gpus (of all nodes) and --gpus-per-node"
_WHOLE = "--run-tokens, which plans a whole run"
_NEITHER = "not needed: it changes neither memory nor time"
_FOREIGN = {  # an option of `plan` -> names of other programs: Trainer, TRL, Axolotl, torchtune, Megatron, DeepSpeed
    "--model": "model-name model-name-or-path model-path model-id base-model pretrained-model checkpoint name config",
    "--gpu": "device gpu-type gpu-name gpu-model accelerator card",
    "--budget GiB": "vram gpu-memory memory mem ram max-memory gpu-ram",
    "--micro-batch-size": "batch-size per-device-train-batch-size per-device-batch-size train-batch-size bs mbs"
    " local-batch-size microbatch-size per-gpu-batch-size train-micro-batch-size-per-gpu batch-size-per-gpu",
    "--micro-batch-size and --gradient-accumulation-steps": "global-batch-size gbs effective-batch-size",
    "--gradient-accumulation-steps": "grad-accum grad-acc gas gradient-accumulation accumulation-steps ga"
    " accumulate-grad-batches grad-accumulation-steps grad-accum-steps accum-steps num-microbatches",
    "--seq": "seq-len seq-length sequence-length sequence-len max-length max-len max-seq-length max-seq-len cutoff-len"
    " block-size context-length ctx ctx-len n-ctx model-max-length context-window context-size max-tokens",
    "--activation-checkpointing full": "gradient-checkpointing grad-checkpointing use-gradient-checkpointing ac"
    " checkpoint-activations recompute-activations recompute-granularity activation-checkpoint"
    " enable-gradient-checkpointing enable-activation-checkpointing grad-checkpoint",
    "--precision": "dtype torch-dtype mixed-precision param-dtype mixed-precision-param",
    _SIXTEEN: "bf16 bfloat16",
    _HALF: "fp16 float16 half amp",
    "--precision fp8": "fp8 fp8-format fp8-hybrid",
    "--precision fp32": "fp32 float32",
    "--quantize nf4 with --lora-rank": "qlora load-in-4bit load-4bit use-4bit 4bit bnb-4bit-quant-type",
    "--quantize int8 with --lora-rank": "load-in-8bit load-8bit use-8bit 8bit",
    "--quantize nf4-dq": "double-quant bnb-4bit-use-double-quant use-nested-quant use-bnb-nested-quant",
    "--quantize": "quantization quantization-bit bits",
    "--optimizer": "optim optimizer-name optimizer-type opt",
    "--lora-rank": "lora use-lora peft use-peft rank lora-dim",
    "--lora-targets": "target-modules lora-modules lora-target-linear target-linear lora-attn-modules",
    "--attention": "attn attn-implementation attn-impl attention-backend",
    "--attention sdpa, which is assumed": "flash-attn flash-attention use-flash-attn use-flash-attention-2 sdpa fa2"
    " flash-attention-2 use-flash-attn-2 flash-attn-2 xformers",
    "--compile": "torch-compile use-torch-compile use-compile compile-model",
    "--loss fused": "liger use-liger use-liger-kernel liger-kernel liger-fused-linear-cross-entropy",
    "--packed": "packing pack sample-packing group-by-length",
    "--method dpo": "dpo rl-dpo",
    "--method grpo": "grpo ppo",
    "--offload optimizer": "cpu-offload-optimizer optimizer-offload zero-offload offload-optimizer-device",
    "--offload optimizer or --offload all": "cpu-offload fsdp-offload-params offload-params offload-to-cpu"
    " offload-param fsdp-cpu-offload offload-param-device offload-optimizer",
    "--zero-stage 3": "fsdp fully-shard full-shard fsdp2 zero3 zero-3 fsdp-sharding-strategy",
    "--zero-stage 2": "zero2 zero-2 shard-grad-op",
    "--zero-stage 1": "zero1 zero-1 use-distributed-optimizer distributed-optimizer",
    "--zero-stage 0": "ddp no-shard",
    "--zero-stage, or --from FILE": "deepspeed deepspeed-config ds-config zero-optimization",
    "--gpus": "num-gpus n-gpus ngpus n-gpu gpu-count gpu-num world-size num-processes nproc devices num-devices"
    " nproc-per-node num-workers n-devices",
    _NODES: "nodes nnodes num-nodes n-nodes num-machines",
    "--tp": "tensor-parallel-size tensor-model-parallel-size tensor-parallel tp-size tp-degree tensor-parallel-degree",
    "--pp": "pipeline-parallel-size pipeline-model-parallel-size pipeline-parallel pp-size pp-degree"
    " pipeline-parallel-degree",
    "--cp": "context-parallel-size context-parallel cp-size cp-degree context-parallel-degree",
    "--cp N --context-method all-to-all": "sequence-parallel-size ulysses ulysses-size sp-size"
    " ulysses-sequence-parallel",
    "--ep": "expert-model-parallel-size expert-parallel-size expert-parallel ep-size ep-degree expert-parallel-degree",
    "--dp-shard or --dp-replicate": "data-parallel-size data-parallel dp-size dp-degree data-parallel-shard-degree",
    "--virtual-stages": "num-layers-per-virtual-pipeline-stage virtual-pipeline-model-parallel-size vpp",
    "on with --tp unless --no-sequence-parallel is given": "sequence-parallel sp",
    _WHOLE: "epochs num-train-epochs num-epochs max-steps train-iters train-steps steps train-samples total-tokens",
    _NEITHER: "learning-rate lr warmup-steps warmup-ratio weight-decay seed lr-scheduler-type max-grad-norm clip-grad",
}
_OPTIONS = {name: ours for ours, names in _FOREIGN.items() for name in names.split()}
_VALUES = {  # a value of an option of `plan` -> what other programs call it
    "adamw": "adamw-torch adamw-torch-fused adamw-hf adamw-apex-fused fused-adamw torch-adamw adam-w adamw-fused",
    "adamw-8bit": "adamw-bnb-8bit 8bit-adamw 8bit-adam adam8bit adamw8bit adam-8bit bnb-adamw-8bit bnb-8bit",
    "adamw-8bit-paged": "paged-adamw-8bit pagedadamw8bit",
    "adamw-32bit-paged": "paged-adamw-32bit paged-adamw pagedadamw pagedadamw32bit",
    "lion": "lion-32bit",
    "lion-8bit-paged": "paged-lion-8bit",
    "galore": "galore-adamw galore-adamw-layerwise",
    "galore-8bit": "galore-adamw-8bit galore-adamw-8bit-layerwise",
    "sgd-momentum": "momentum",
    "bf16 or bf16-amp": "bfloat16 bf16-true bf16-mixed mixed amp torch.bfloat16",
    "fp16 or fp16-amp": "float16 half fp16-mixed 16 torch.float16",
    "fp32": "float32 float single full 32 torch.float32",
    "--quantize nf4 with --lora-rank": "int4 4bit 4-bit nf4 fp4 qlora",
    "--quantize int8 with --lora-rank": "int8 8bit 8-bit",
    "fp8": "float8 fp8-hybrid e4m3 hybrid",
    "sdpa": "flash flash-attn flash-attention flash-attention-2 flash-attn-2 fa2 fa3 flash-attention-3 flex xformers"
    " flash2 memory-efficient",
    "eager": "math naive unfused",
    "optimizer or all": "cpu true yes gpu nvme",
    "all": "params parameters model param both",
}
_CALLED = {name: ours for ours, names in _VALUES.items() for name in names.split()}
_IN_QUANTIZE = {"double": "nf4-dq", "4": "nf4", "8": "int8"}  # part of a value -> the format


def option_meant(unknown: Sequence[str], given: Sequence[str], known: Sequence[str]) -> str:
    """Return what may have been meant by arguments that the parser does not know, as a question; "" for none.

    Args:
        unknown: the arguments.
        given: all arguments of the command.
        known: the options that it has.
    """
    named = [each.partition("=")[0] for each in unknown if each.startswith("--")]
    if not named:
        before = given[given.index(unknown[0]) - 1] if unknown[0] in given[1:] else ""
        return f"{before} takes no value" if before.startswith("--") else f"did you mean --model {unknown[0]}?"
    meant = {each: _meant(each.lower().replace("_", "-"), known) for each in named}
    found = {each: ours for each, ours in meant.items() if ours}
    if len(named) == 1 and found and named[0].lstrip("-").replace("_", "-") not in _OPTIONS:
        return f"did you mean {found[named[0]]}?"
    if len(named) == 1:
        return "".join(f"here it is {ours}" for ours in found.values())
    return ", ".join(f"{each} is {ours} here" for each, ours in found.items())


def _meant(name: str, known: Sequence[str]) -> str:
    """Return the option of `plan` that another program, or a typing error, calls `name`; "" if there is none."""
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, 1, 0.75)
    return _OPTIONS.get(name.lstrip("-"), near[0] if near else "")


def value_meant(value: str, option: str, choices: Sequence[str]) -> str:
    """Return which of the `choices` of an option may have been meant by `value`; "" where none is known."""
    name = re.sub(r"[_\s]+", "-", value.strip().lower())
    if name in choices:
        return name
    if option == "--quantize":
        return next((ours for part, ours in _IN_QUANTIZE.items() if part in name), "")
    meant = _CALLED.get(name, "")
    if meant.startswith("--") and option == "--precision":
        return meant
    if meant and set(meant.split(" or ")) <= set(choices):
        return meant
    near = difflib.get_close_matches(name, choices, 1, 0.7)
    return near[0] if near else ""
