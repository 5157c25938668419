"""A recipe as a program: one file that trains with it, as it is, on one process or under torchrun.

The script holds what the recipe asks for and nothing else: no switch that chooses between precisions, no branch for an
optimizer that was not chosen. So it reads like the recipe, line by line, and is meant to be changed.
"""

import json
import textwrap

from .catalog.models import ModelSpec, check_model, find_model
from .recipe import Recipe, RecipeError

STYLES = ("pytorch", "trainer")
_LAYERS = textwrap.dedent('''\
    def layers(model):
        """Return the repeated blocks of the model."""
        return max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)''')
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "adam": "torch.optim.Adam",
    "sgd": "torch.optim.SGD",
    "sgd-momentum": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor",
    "adamw-8bit": "AdamW8bit",
}
_TRAINER_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "adamw-8bit": "adamw_bnb_8bit",
}


def training_script(recipe: Recipe, style: str = "pytorch") -> str:
    """Return the text of a script that trains a causal language model with `recipe`.

    The script starts from random weights, or with `--weights` from pretrained ones; it trains on Python's own manual,
    or with `--text` on a file. `--tiny` shrinks the model and takes a few steps: a test of the file, on any machine.

    Args:
        recipe: precision, optimizer, checkpointing, accumulation, adapters, sharding.
        style: "pytorch": a training loop to read and change; "trainer": Hugging Face's Trainer.

    Raises:
        RecipeError: the recipe has something that no such script is written for; the message says what.
    """
    if style not in STYLES:
        raise RecipeError(f"style is {style!r}; choose one of {', '.join(STYLES)}.")
    subject = find_model(recipe.model)
    check_model(recipe, subject)
    for broken, message in _refusals(recipe, subject, style):
        if broken:
            raise RecipeError(message)
    sharded = recipe.shard != "none"
    blocks = sharded or recipe.checkpointing != "none"
    parts = [_head(recipe, subject), *([_distributed()] if style == "pytorch" else []), _data()]
    parts += [*([_LAYERS] if blocks else []), _model(recipe)]
    parts += [_trainer(recipe)] if style == "trainer" else [_prepare(recipe, sharded), _loop(recipe, sharded)]
    return _imports(recipe, style, sharded) + "\n\n\n".join(parts) + '\n\n\nif __name__ == "__main__":\n    main()\n'


def _refusals(recipe: Recipe, subject: ModelSpec, style: str) -> list[tuple[bool, str]]:
    trainer = style == "trainer"
    return [
        (subject.config is None or subject.kind != "CausalLM", f"{recipe.model} is no causal language model."),
        (recipe.quantize != "none", "A quantized base must be loaded, not made: take quantize none; lab 14 loads one."),
        (
            recipe.checkpointing == "sqrt",
            "Checkpoint every block, every second or third; segments are in lab 05.",
        ),
        (recipe.shard == "zero1", "ZeRO-1 is DeepSpeed's (lab 12): take zero2 or zero3, which fully_shard does."),
        (recipe.shard == "zero2" and bool(recipe.lora_rank), "Adapters leave little to shard: take none or zero3."),
        (
            recipe.offload == "optimizer" or (recipe.offload == "all" and recipe.shard == "none"),
            "Offloading goes with fully_shard, and whole: shard zero3, offload all.",
        ),
        (recipe.keep_grads, "Gradients are freed here: leave keep_grads out."),
        (
            recipe.precision == "fp16-amp" and recipe.shard != "none",
            "FP16 with fully_shard is left out: take bf16-amp.",
        ),
        (recipe.precision == "fp16-amp" and recipe.step_in_backward, "A scaler needs all gradients before the step."),
        (trainer and recipe.shard != "none", "Sharding is written in plain PyTorch: style pytorch."),
        (trainer and recipe.step_in_backward, "The Trainer has no step in the backward pass: style pytorch."),
        (trainer and recipe.optimizer not in _TRAINER_OPTIMIZERS, f"The Trainer has no {recipe.optimizer}."),
    ]


def _imports(recipe: Recipe, style: str, sharded: bool) -> str:
    launch = "torchrun --standalone --nproc-per-node=" + str(recipe.ranks)
    command = f"{launch} train.py" if recipe.ranks > 1 else "python train.py"
    text = f'"""{recipe.words}.\n\nRun: {command}\nTest of this file, on any machine: add --tiny\n"""\n\n'
    standard = ["import argparse", "import json"]
    if style == "pytorch":
        standard += ["import contextlib"] if not sharded and recipe.accumulate > 1 else []
        standard += ["import os"]
    else:
        standard += ["import tempfile"]
    standard += ["from functools import partial"] if recipe.checkpointing != "none" else []
    standard += ["from pathlib import Path", "from pydoc_data.topics import topics"]
    third = ["import torch"]
    if style == "pytorch":
        third += ["import torch.distributed as dist"]
        third += ["from bitsandbytes.optim import AdamW8bit"] if recipe.optimizer == "adamw-8bit" else []
    third += ["from peft import LoraConfig, get_peft_model"] if recipe.lora_rank else []
    if style == "pytorch":
        if sharded:
            names = ["CPUOffloadPolicy"] if recipe.offload == "all" else []
            names += ["MixedPrecisionPolicy"] if recipe.precision == "bf16-amp" else []
            third += ["from torch.distributed.device_mesh import init_device_mesh"]
            third += [f"from torch.distributed.fsdp import {', '.join([*names, 'fully_shard'])}"]
        else:
            third += ["from torch.nn.parallel import DistributedDataParallel"]
    third += ["from torch import nn"] if recipe.checkpointing != "none" or sharded else []
    third += ["from torch.utils.checkpoint import checkpoint"] if recipe.checkpointing != "none" else []
    more = ", Trainer, TrainingArguments" if style == "trainer" else ""
    third += [f"from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer{more}"]
    plain = sorted(line for line in standard if line.startswith("import"))
    named = sorted(line for line in standard if line.startswith("from"))
    first = [line for line in third if line.startswith("import")]
    rest = [line for line in third if not line.startswith("import")]
    return text + "\n".join([*plain, *named, "", *first, *sorted(rest)]) + "\n\n"


def _head(recipe: Recipe, subject: ModelSpec) -> str:
    config = {k: v for k, v in subject.config.to_diff_dict().items() if isinstance(v, int | float | str | bool)}
    config.pop("transformers_version", None)
    config |= {"model_type": subject.config.model_type}
    sizes = json.dumps(config, indent=4, sort_keys=True)
    heads, layers = ("n_head", "n_layer") if "n_head" in config else ("num_attention_heads", "num_hidden_layers")
    width = "n_embd" if "n_head" in config else "hidden_size"
    tiny = {width: 64, heads: 4, layers: 2, "vocab_size": 256}
    for name, size in {"num_key_value_heads": 2, "intermediate_size": 128, "head_dim": 16}.items():
        if hasattr(subject.config, name):
            tiny[name] = size
    return (
        f'CONFIG = json.loads("""{sizes}""")\nTINY = {json.dumps(tiny, indent=4)}\n'
        f"BATCH, ACCUMULATE, SEQ = {recipe.batch}, {recipe.accumulate}, {recipe.seq}  # a micro-batch is BATCH x SEQ"
    )


def _distributed() -> str:
    return textwrap.dedent('''\
        def start():
            """Join the other processes; return this one's device, rank, and their number."""
            given = {"LOCAL_RANK": 0, "RANK": 0, "WORLD_SIZE": 1} | os.environ
            local, rank, world = (int(given[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
            gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            device = torch.device("cuda", local) if gpu else torch.device("cpu")
            if gpu:
                torch.cuda.set_device(device)
            if "WORLD_SIZE" in os.environ:
                dist.init_process_group("nccl" if gpu else "gloo")
            return device, rank, world''')


def _data() -> str:
    return textwrap.dedent('''\
        def token_ids(args):
            """Return the text as one row of token ids; without a tokenizer, a byte is a token."""
            text = Path(args.text).read_text() if args.text else "\\n\\n".join(topics[name] for name in sorted(topics))
            if args.weights:
                return torch.tensor(AutoTokenizer.from_pretrained(args.weights)(text)["input_ids"])
            return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()''')


def _model(recipe: Recipe) -> str:
    dtype = "torch.bfloat16" if recipe.precision == "bf16" else "torch.float32"
    how = f'dtype={dtype}, attn_implementation="{recipe.attention}"'
    lines = [
        "def make_model(args):",
        "    if args.weights:",
        f"        model = AutoModelForCausalLM.from_pretrained(args.weights, {how})",
        "    else:",
        "        config = AutoConfig.for_model(**CONFIG | (TINY if args.tiny else {}))",
        f"        model = AutoModelForCausalLM.from_config(config, {how})",
        "    model.config.use_cache = False",
    ]
    if recipe.lora_rank:
        alpha = recipe.lora_alpha or 2 * recipe.lora_rank
        targets = f", target_modules={list(recipe.lora_targets)!r}" if recipe.lora_targets else ""
        dropout = f", lora_dropout={recipe.lora_dropout}" if recipe.lora_dropout else ""
        settings = f'r={recipe.lora_rank}, lora_alpha={alpha}{dropout}{targets}, task_type="CAUSAL_LM"'
        why = "  # PEFT keeps adapters in FP32, as planned" if recipe.precision == "bf16" else ""
        lines += [f"    model = get_peft_model(model, LoraConfig({settings})){why}"]
    if recipe.checkpointing != "none":
        stride = {"every": "", "every-2": "[::2]", "every-3": "[::3]"}[recipe.checkpointing]
        lines += [
            f"    for block in layers(model){stride}:",
            "        block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        ]
    return "\n".join([*lines, "    return model.train()"])


def _optimizer(recipe: Recipe, of: str) -> str:
    options = {"adamw-8bit": "", "adafactor": f", foreach={recipe.optimizer_impl == 'foreach'}"}
    impl = {"foreach": ", foreach=True", "fused": ", fused=True", "for-loop": ", foreach=False"}[recipe.optimizer_impl]
    momentum = ", momentum=0.9" if recipe.optimizer == "sgd-momentum" else ""
    return f"{_OPTIMIZERS[recipe.optimizer]}({of}, lr=args.lr{momentum}{options.get(recipe.optimizer, impl)})"


def _prepare(recipe: Recipe, sharded: bool) -> str:
    lines = ["def prepare(model, device, world):", '    """Place the model, and share it out."""']
    if not sharded:
        wrap = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
        return "\n".join([*lines, "    model.to(device)", f"    return {wrap} if world > 1 else model"])
    options = ["reshard_after_forward=False"] if recipe.shard == "zero2" else []
    if recipe.precision == "bf16-amp":
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
        options += [f"mp_policy={policy}"]
    if recipe.offload == "all":
        options += ['offload_policy=CPUOffloadPolicy(pin_memory=device.type == "cuda")']
    how = "".join(f", {option}" for option in options)
    return "\n".join(
        [
            *lines,
            "    if world == 1:",
            "        return model.to(device)",
            "    mesh = init_device_mesh(device.type, (world,))  # shards go to the GPUs, the whole model to none",
            "    for block in layers(model):",
            f"        fully_shard(block, mesh=mesh{how})",
            f"    return fully_shard(model, mesh=mesh{how})  # what is outside the blocks",
        ]
    )


_ARGUMENTS = [
    "    parser = argparse.ArgumentParser(description=__doc__)",
    '    parser.add_argument("--tiny", action="store_true", help="a small random model, a few steps")',
    '    parser.add_argument("--weights", help="a pretrained model: a folder or a name")',
    '    parser.add_argument("--text", help="a file to train on")',
    '    parser.add_argument("--steps", type=int, default=1000)',
    '    parser.add_argument("--lr", type=float, default=1e-4)',
    "    args = parser.parse_args()",
    "    steps, seq = (4, 32) if args.tiny else (args.steps, SEQ)",
]


def _loop(recipe: Recipe, sharded: bool) -> str:
    amp = {"bf16-amp": "torch.bfloat16", "fp16-amp": "torch.float16"}.get(recipe.precision)
    loss = "model(input_ids=ids, labels=ids).loss" + (" / ACCUMULATE" if recipe.accumulate > 1 else "")
    lines = [
        "def main():",
        *_ARGUMENTS,
        "    device, rank, world = start()",
        "    torch.manual_seed(0)  # the same weights on every rank",
        "    model = prepare(make_model(args), device, world)",
        "    trained = [p for p in model.parameters() if p.requires_grad]",
    ]
    if recipe.step_in_backward:
        lines += [
            f"    optimizers = {{p: {_optimizer(recipe, '[p]')} for p in trained}}",
            "",
            "    def step(p):  # as soon as the gradient of `p` is there; then it is freed",
            "        optimizers[p].step()",
            "        p.grad = None",
            "",
            "    for p in trained:",
            "        p.register_post_accumulate_grad_hook(step)",
        ]
    else:
        lines += [f"    optimizer = {_optimizer(recipe, 'trained')}"]
    if amp == "torch.float16":
        lines += ["    scaler = torch.amp.GradScaler(device.type)"]
    lines += [
        "    rows = token_ids(args).unfold(0, seq, seq)",
        "    order = torch.Generator().manual_seed(rank)  # every rank draws rows of its own",
        "    for i in range(steps):",
    ]
    indent = "        "
    if recipe.accumulate > 1:
        lines += [f"        for {'_' if sharded else 'piece'} in range(ACCUMULATE):"]
        indent += "    "
    lines += [f"{indent}ids = rows[torch.randint(len(rows), (BATCH,), generator=order)].to(device)"]
    backward = "scaler.scale(loss).backward()" if amp == "torch.float16" else "loss.backward()"
    if recipe.accumulate > 1 and not sharded:
        wait = "world > 1 and piece < ACCUMULATE - 1"
        lines += [f"{indent}with model.no_sync() if {wait} else contextlib.nullcontext():"]
        indent += "    "
    if amp and (not sharded):
        lines += [f"{indent}with torch.autocast(device.type, {amp}):", f"{indent}    loss = {loss}"]
    elif amp:  # with one rank nothing is wrapped, and autocast does what the policy would
        lines += [
            f"{indent}with torch.autocast(device.type, {amp}, enabled=world == 1):",
            f"{indent}    loss = {loss}",
        ]
    else:
        lines += [f"{indent}loss = {loss}"]
    lines += [f"{indent}{backward}"]
    if not recipe.step_in_backward:
        step = ["scaler.step(optimizer)", "scaler.update()"] if amp == "torch.float16" else ["optimizer.step()"]
        lines += [f"        {line}" for line in [*step, "optimizer.zero_grad()"]]
    value = "loss.item() * ACCUMULATE" if recipe.accumulate > 1 else "loss.item()"
    of = "rank 0's last micro-batch" if recipe.accumulate > 1 else "rank 0's batch"
    lines += [
        "        if rank == 0 and (i % 10 == 0 or i == steps - 1):",
        f'            print(f"step {{i + 1}} of {{steps}}, {{world}} ranks: loss of {of} {{{value}:.4f}}", flush=True)',
        '    if device.type == "cuda":',
        '        print(f"rank {rank}: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)',
        "    if dist.is_initialized():",
        "        dist.barrier()",
        "        backend = dist.get_backend()",
        "        dist.destroy_process_group()",
        '        if backend == "gloo":',
        "            os._exit(0)  # freeing what is left of a gloo group can hang (PyTorch 2.13)",
    ]
    return "\n".join(lines)


def _trainer(recipe: Recipe) -> str:
    flags = {"bf16-amp": "bf16=True", "fp16-amp": "fp16=True"}.get(recipe.precision)
    optim = _TRAINER_OPTIMIZERS[recipe.optimizer]
    if recipe.optimizer == "adamw" and recipe.optimizer_impl == "fused":
        optim = "adamw_torch_fused"
    lines = [
        "def main():",
        *_ARGUMENTS,
        "    torch.manual_seed(0)",
        "    rows = token_ids(args).unfold(0, seq, seq)",
        "    with tempfile.TemporaryDirectory() as folder:  # nothing is kept: see save_strategy",
        "        arguments = TrainingArguments(",
        "            output_dir=folder,",
        "            max_steps=steps,",
        "            learning_rate=args.lr,",
        "            per_device_train_batch_size=BATCH,",
        "            gradient_accumulation_steps=ACCUMULATE,",
        f'            optim="{optim}",',
        *([f"            {flags},"] if flags else []),
        "            max_grad_norm=0.0,  # no clipping, as planned",
        "            logging_steps=1 if args.tiny else 10,",
        '            save_strategy="no",',
        '            report_to="none",',
        "            use_cpu=not torch.cuda.is_available(),",
        "            disable_tqdm=True,",
        "        )",
        '        examples = [{"input_ids": row, "labels": row} for row in rows]',
        "        trainer = Trainer(model=make_model(args), args=arguments, train_dataset=examples)",
        "        result = trainer.train()",
        '    print(f"{result.global_step} steps: mean training loss over all of them {result.training_loss:.4f}")',
    ]
    return "\n".join(lines)
