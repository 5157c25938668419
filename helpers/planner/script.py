"""A recipe as a program: one file that trains with the recipe, in one process or under torchrun.

The script contains only what the recipe asks for: no switch between precisions, and no branch for an optimizer that was
not chosen. So it reads like the recipe, line by line, and you can change it. Its text is the template `train.py.jinja`;
this module computes the values that go into the template.
"""

import contextlib
import json
import re
import shlex
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .catalog.configs import CONFIGS
from .catalog.hub import hub_models
from .catalog.models import ModelSpec, spec_of
from .config import RecipeError, TrainingConfig

TEMPLATE = Path(__file__).with_name("train.py.jinja")
STYLES = ("pytorch", "trainer")
_NODE = 8  # GPUs in a node, at most
_WIDE = 120  # characters in a line
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "adam": "torch.optim.Adam",
    "sgd": "torch.optim.SGD",
    "sgd-momentum": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor",
    "adamw-8bit": "AdamW8bit",
    "adamw-8bit-paged": "PagedAdamW8bit",
}
_WRITTEN = ("step_in_backward", "expandable_segments", "set_to_none", "image_size", "optimizer", "offload", "quantize")
_TRAINER_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "adamw-8bit": "adamw_bnb_8bit",
    "adamw-8bit-paged": "paged_adamw_8bit",
}


def training_script(recipe: TrainingConfig, style: str = "pytorch", name: str = "train.py") -> str:
    """Return the text of a script that trains a causal language model with `recipe`.

    The script starts from random weights, or with `--weights` from pretrained ones. It trains on Python's own manual,
    or with `--text` on a file. A file of chats has one line of JSON per chat, of which only the assistant's turns count
    in the loss. Chats are packed into rows; those that are longer than a row are dropped and counted. (The mask of
    packed rows takes seq² bytes per row, which no plan counts; plain text has no mask.) Rows are shuffled in each
    epoch, the learning rate warms up and decays, gradients are clipped if all of them exist before the step, and a part
    of the rows is held out. The script saves what it has trained, an adapter or the full model, with tokenizer and
    recipe. `--tiny` tests the file on any machine: it shrinks the model and makes a few steps. Without `--tiny` or
    `--cpu`, a missing GPU is an error.

    Updates whose loss or gradient is not finite are skipped and counted; many consecutive ones end the run. The script
    saves a checkpoint every `--checkpoint-every` steps and at the end. It keeps the two newest checkpoints and the one
    with the lowest held-out loss. SIGTERM, SIGUSR1 and Ctrl-C save a checkpoint after the current step. `--resume`
    continues from the newest one, and refuses a different text, model, rate, number of steps or number of ranks unless
    `--allow-changes` is given. Checkpoints load on any number of ranks. On one or two CPUs, a run that was killed and
    resumed ends bit for bit like an uninterrupted one; where sums have no fixed order, like another such run.

    Args:
        recipe: precision, optimizer, checkpointing, accumulation, adapters, sharding.
        style: "pytorch" for a training loop to read and change, "trainer" for Hugging Face's Trainer.
        name: the name of the file, for the command in its docstring.

    Raises:
        RecipeError: no script is written for an option of the recipe; the message names the option.
    """
    if style not in STYLES:
        raise RecipeError(f"style is {style!r}; choose one of {', '.join(STYLES)}.")
    spec = spec_of(recipe)
    for refused, message in _refusals(recipe, spec, style):
        if refused:
            raise RecipeError(message)
    return _template().render(
        recipe=recipe,
        style=style,
        sharded=recipe.shard != "none",
        checkpointed=recipe.checkpointing != "none",
        block_stride={"every-2": "[::2]", "every-3": "[::3]"}.get(recipe.checkpointing, ""),
        recipe_literal=_literal(recipe.changed()),
        quantization=_quantization(recipe),
        config=_config(spec),
        tiny_config=_tiny_config(spec),
        weight_dtype=str(recipe.weight_dtype),
        autocast_dtype=str(recipe.amp_dtype or ""),
        lora_settings=_lora_settings(recipe),
        fsdp_names=_fsdp_names(recipe),
        fsdp_options=_fsdp_options(recipe),
        optimizer_class=_OPTIMIZERS[recipe.optimizer],
        optimizer_options=_optimizer_options(recipe),
        trainer_optimizer=_trainer_optimizer(recipe),
        mark="step-" if style == "pytorch" else "checkpoint-",
        launch=f"{_launch(recipe)} {_quoted(name)}",
        attention=_attention(recipe),
        decays=recipe.optimizer.startswith("adamw"),
        swallows=_swallows(recipe),
        own=own_data(recipe),
        packages=", ".join(_packages(recipe, style)),
        **_rates(recipe),
    )


def own_data(recipe: TrainingConfig) -> str:
    """Return the options that start a script from pretrained weights: a name on huggingface.co where it is known."""
    model = CONFIGS.get(recipe.model) or hub_models().get(recipe.model)
    return f"--weights {model.source if model and model.source.count('/') == 1 else 'NAME'} --text FILE"


def _packages(recipe: TrainingConfig, style: str) -> list[str]:
    """Return the packages that a script imports, with the versions that are installed here."""
    eight = recipe.optimizer in ("adamw-8bit", "adamw-8bit-paged")
    names = ["torch", "transformers"]
    names += ["peft"] if recipe.lora_rank else []
    names += ["bitsandbytes"] if recipe.quantize != "none" or eight else []
    names += ["accelerate"] if style == "trainer" or recipe.quantize != "none" else []
    return [f"{name} {_version(name)}".strip() for name in names]


def _version(name: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(name).partition("+")[0]
    return ""


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(TEMPLATE.name)


def _refusals(recipe: TrainingConfig, spec: ModelSpec, style: str) -> list[tuple[bool, str]]:
    """Return (whether it applies, why) for each option that no script is written for."""
    trainer = style == "trainer"
    unwritten = [name for name in recipe.only_in_a_plain_loop if name not in _WRITTEN]
    return [
        (bool(unwritten), f"No script is written for these options: {', '.join(unwritten)}."),
        (
            recipe.parallel.splits_the_model,
            "Scripts have data ranks only: for tensor, pipeline, context or expert ranks use --export torchtitan.",
        ),
        (
            recipe.parallel.replicate > 1 and recipe.shard != "none",
            "Scripts shard over all ranks, without replicas: leave out --dp-shard, or use --export torchtitan.",
        ),
        (recipe.optimizer not in _OPTIMIZERS, f"No script is written with the optimizer {recipe.optimizer}."),
        (spec.config is None or spec.kind != "CausalLM", f"{recipe.model} is not a causal language model."),
        (
            recipe.checkpointing == "sqrt",
            "Scripts checkpoint every block, every second or every third; the lab on checkpointing covers segments.",
        ),
        (recipe.quantize != "none" and recipe.shard != "none", "Scripts do not shard a quantized base: use zero none."),
        (
            recipe.shard == "zero3" and recipe.optimizer not in ("adamw", "adam", "sgd", "sgd-momentum"),
            f"fully_shard's parameters are DTensors, and scripts do not update DTensors with {recipe.optimizer}.",
        ),
        (recipe.shard == "zero1", "ZeRO-1 needs DeepSpeed: use zero2 or zero3, which fully_shard supports."),
        (recipe.shard == "zero2" and bool(recipe.lora_rank), "Adapters leave little to shard: use zero none or zero3."),
        (
            recipe.offload == "optimizer" or (recipe.offload == "all" and recipe.shard == "none"),
            "Offloading works only with fully_shard and for all state: use zero3 and offload all.",
        ),
        (
            recipe.compile and recipe.shard != "none",
            "Scripts with fully_shard do not compile: use --no-compile.",
        ),
        (not recipe.set_to_none, "Scripts free gradients: leave set_to_none at True."),
        (
            recipe.precision == "fp16-amp" and recipe.shard != "none",
            "Scripts do not combine FP16 with fully_shard: use bf16-amp.",
        ),
        (recipe.precision == "fp16-amp" and recipe.step_in_backward, "A scaler needs all gradients before the step."),
        (trainer and recipe.shard != "none", "Only the style pytorch shards: use --export pytorch."),
        (trainer and recipe.step_in_backward, "The Trainer cannot step in the backward pass: use --export pytorch."),
        (trainer and recipe.optimizer not in _TRAINER_OPTIMIZERS, f"The Trainer does not have {recipe.optimizer}."),
    ]


def _config(spec: ModelSpec) -> str:
    """Return the model's config, without what differs from the defaults in more than a plain value."""
    return _literal(dict(sorted(_plain_config(spec).items())))


def _literal(values: dict[str, Any]) -> str:
    """Return a dictionary as Python source, with as many entries per line as fit."""
    entries = [f'"{key}": {_source(value)}' for key, value in values.items()]
    if len(line := "{" + ", ".join(entries) + "}") <= _WIDE - len("RECIPE = "):
        return line
    lines = ["   "]
    for entry in entries:
        if len(lines[-1]) + len(entry) + len(" ,") > _WIDE:
            lines.append("   ")
        lines[-1] += f" {entry},"
    return "\n".join(["{", *lines, "}"])


def _source(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_source(part)}' for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_source, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _plain_config(spec: ModelSpec) -> dict[str, Any]:
    config = {k: v for k, v in spec.config.to_diff_dict().items() if isinstance(v, int | float | str | bool)}
    config.pop("transformers_version", None)
    return config | {"model_type": spec.config.model_type}


def _tiny_config(spec: ModelSpec) -> str:
    """Return what `--tiny` changes in the config: two layers, 64 wide, a token for each byte and no other."""
    plain = _plain_config(spec)
    gpt2 = "n_head" in plain
    heads, layers = ("n_head", "n_layer") if gpt2 else ("num_attention_heads", "num_hidden_layers")
    tiny = {"n_embd" if gpt2 else "hidden_size": 64, heads: 4, layers: 2, "vocab_size": 256}
    for name, size in {"num_key_value_heads": 2, "intermediate_size": 128, "head_dim": 16}.items():
        if hasattr(spec.config, name):
            tiny[name] = size
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    return _literal(tiny | {name: None for name in ids if plain.get(name, 0) >= tiny["vocab_size"]})


def _quantization(recipe: TrainingConfig) -> list[str]:
    """Return the arguments of `BitsAndBytesConfig`; none for a base that is not quantized."""
    if recipe.quantize == "none":
        return []
    if recipe.quantize == "int8":
        return ["load_in_8bit=True"]
    double = ["bnb_4bit_use_double_quant=True"] if recipe.quantize == "nf4-dq" else []
    compute = recipe.amp_dtype or recipe.weight_dtype
    return ["load_in_4bit=True", 'bnb_4bit_quant_type="nf4"', *double, f"bnb_4bit_compute_dtype={compute}"]


def _lora_settings(recipe: TrainingConfig) -> str:
    settings = [f"r={recipe.lora_rank}", f"lora_alpha={recipe.lora_alpha or 2 * recipe.lora_rank}"]
    settings += [f"lora_dropout={recipe.lora_dropout}"] if recipe.lora_dropout else []
    targets = "all-linear" if recipe.lora_targets == ("all-linear",) else list(recipe.lora_targets)
    settings += [f"target_modules={targets!r}"] if targets else []
    return ", ".join([*settings, 'task_type="CAUSAL_LM"'])


def _fsdp_names(recipe: TrainingConfig) -> list[str]:
    names = ["CPUOffloadPolicy"] if recipe.offload == "all" else []
    names += ["MixedPrecisionPolicy"] if recipe.precision == "bf16-amp" else []
    return [*names, "fully_shard"]


def _fsdp_options(recipe: TrainingConfig) -> list[str]:
    options = ["reshard_after_forward=False"] if recipe.shard == "zero2" else []
    if recipe.precision == "bf16-amp":
        options += ["mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"]
    if recipe.offload == "all":
        options += ['offload_policy=CPUOffloadPolicy(pin_memory=device.type == "cuda")']
    return options


def _optimizer_options(recipe: TrainingConfig) -> str:
    if recipe.optimizer.startswith("adamw-8bit"):
        return ""
    if recipe.optimizer == "adafactor":
        return f", foreach={recipe.optimizer_impl == 'foreach'}"
    momentum = ", momentum=0.9" if recipe.optimizer == "sgd-momentum" else ""
    return (
        momentum
        + {"foreach": ", foreach=True", "fused": ", fused=True", "for-loop": ", foreach=False"}[recipe.optimizer_impl]
    )


def _launch(recipe: TrainingConfig) -> str:
    """Return the command that starts a script: beyond eight ranks, on several nodes of equal size."""
    if recipe.ranks == 1:
        return "python"
    if recipe.ranks <= _NODE:
        return f"torchrun --standalone --nproc-per-node={recipe.ranks}"
    each = max(n for n in range(1, _NODE + 1) if recipe.ranks % n == 0)
    nodes = f"--nnodes={recipe.ranks // each} --nproc-per-node={each}"
    return f"torchrun {nodes} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500"


def _quoted(name: str) -> str:
    """Return a file's name as a shell and a docstring take it."""
    return shlex.quote(name) if re.fullmatch(r"[\w .-]+", name) else "FILE.py"


def _attention(recipe: TrainingConfig) -> str:
    """Return an expression for the attention: a compiled model would make a mask that plain text does not need."""
    if recipe.compile and recipe.attention == "sdpa":
        return '"sdpa" if str(args.text).endswith(".jsonl") else "unmasked"'
    return f'"{recipe.attention}"'


def _swallows(recipe: TrainingConfig) -> bool:
    """Return whether BF16 can round updates away: trained weights are in BF16, and updates as large as the rate."""
    in_bf16 = recipe.precision == "bf16" and (not recipe.lora_rank or recipe.lora_dtype == "weights")
    return in_bf16 and recipe.optimizer.startswith("adam")


def _rates(recipe: TrainingConfig) -> dict[str, str]:
    """Return the default learning rate, as an expression and in words."""
    if recipe.optimizer.startswith("sgd"):
        rate = "1e-2"
    elif recipe.optimizer == "adafactor":
        rate = "1e-3"
    elif recipe.lora_rank:
        rate = "2e-4"
    else:
        return {"default_lr": "2e-5 if args.weights else 3e-4", "lr_help": "2e-5, from random weights 3e-4"}
    return {"default_lr": rate, "lr_help": rate}


def _trainer_optimizer(recipe: TrainingConfig) -> str:
    """Return the Trainer's name of the optimizer; empty where it has none."""
    fused = recipe.optimizer == "adamw" and recipe.optimizer_impl == "fused"
    return "adamw_torch_fused" if fused else _TRAINER_OPTIMIZERS.get(recipe.optimizer, "")
