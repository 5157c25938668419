"""The same question gets the same answer: however it is spelled, whatever is printed, and whoever asks.

Random questions are drawn. Each is spelled in several ways, and what the command answers is compared: all figures, or
the one line with which it refuses. What was assumed is left out: who says more has less assumed for them.
"""

import json
import random

from helpers.__main__ import _parse, main
from helpers.planner.described import described
from helpers.planner.rows.answers import answer

import pytest

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 512}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False}
SEEDS = range(6)
ONE_GPU = (
    "--gpu h100-80gb",
    "--gpu h100-80gb --gpus 1",
    "--cluster dgx-h100",
    "--cluster dgx-h100 --tp 1 --pp 1 --cp 1 --ep 1",
    "--gpu h100-80gb --dp-shard 1 --dp-replicate 1",
    "--gpu h100-80gb --ranks 1",
    "--gpus 1 --cluster dgx-h100 --tensor 1 --data-shard 1",
)
GPUS = ("--gpus 8", "--dp-shard 8", "--data-shard 8 --replicate 1", "--gpus 8 --tp 1")  # who trains says what splits
ZERO3 = ("--ranks 8 --shard zero3", "--ranks 8 --zero-stage 3", "--gpus 8 --zero zero3 --tp 1", "--dp-shard 8 --zero 3")
FSDP = (*GPUS, *ZERO3)  # alike where torchtitan or plain PyTorch trains
DDP = ("--gpus 4 --zero-stage 0", "--ranks 4", "--gpus 4 --zero none", "--dp-shard 4 --shard none")
SPELLINGS = {  # a new spelling -> the old ones
    "--activation-checkpointing full": ("--checkpointing every", "--recompute full", "--checkpointing full"),
    "--activation-checkpointing every-2": ("--checkpointing every-2", "--recompute full --recompute-every 2"),
    "--gradient-accumulation-steps 3": ("--accumulate 3", "--micro-batches 3"),
    "--micro-batch-size 2": ("--batch 2",),
    "--attention sdpa": ("--attention fused",),
    "--gpus 8 --tp 2": ("--gpus 8 --tensor 2", "--ranks 8 --tensor 2 --shard zero3"),
    "--gpus 8 --pp 2 --zero-stage 1": ("--gpus 8 --pipeline 2 --zero zero1", "--pp 2 --data-shard 4 --shard zero1"),
    "--cp 2 --gpus 4": ("--context 2 --gpus 4", "--context 2 --data-shard 2"),
}
PRINTING = ((), ("--roles",), ("--run-tokens", "1B"), ("--roles", "--run-tokens", "1B", "--price-per-gpu-hour", "2"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def ask(model, capsys, monkeypatch):
    """Run the command and return its figures, or its one line of refusal."""
    monkeypatch.setenv("TAS_PROGRESS", "off")
    monkeypatch.setattr("helpers.core.sign_of_life._EVERY_LINE", 3600)  # no such line beside a refusal's

    def run(*options):
        status = main(["plan", "--model", model, "--json", *options])
        printed = capsys.readouterr()
        if status:
            assert len(printed.err.splitlines()) == 1
            return printed.err
        figures = json.loads(printed.out)
        for name in ("assumed", "seconds", "run"):
            figures.pop(name, None)
        return figures

    return run


def drawn(chance):
    """Draw options that a run on one GPU and a run on many may have."""
    options = ["--seq", chance.choice(("64", "128")), "--micro-batch-size", chance.choice("123")]
    for flag, values in (
        ("--precision", ("fp32", "bf16", "bf16-amp", "fp16-amp")),
        ("--activation-checkpointing", ("none", "full", "every-2", "every-3", "sqrt", "selective")),
        ("--optimizer", ("adamw", "sgd-momentum", "adafactor", "adamw-8bit")),
        ("--optimizer-impl", ("foreach", "fused")),
        ("--attention", ("sdpa", "eager")),
        ("--lora-rank", ("0", "4")),
        ("--quantize", ("nf4",)),
        ("--gradient-accumulation-steps", ("1", "2", "3")),
        ("--engine", ("pytorch", "torchtitan", "megatron")),
        ("--offload", ("none", "optimizer", "all")),
    ):
        if chance.random() < 0.3:
            options += [flag, chance.choice(values)]
    for flag, values in (
        ("--optimizer", ("lion", "muon", "adamw-32bit-paged")),
        ("--method", ("dpo", "grpo")),
        ("--loss", ("chunked", "fused")),
        ("--lengths", ("64,96,32",)),
        ("--packed", ("32",)),
        ("--dropout", ("0", "0.1")),
        ("--freeze", ("embed_tokens",)),
        ("--lora-targets", ("all-linear", "q_proj,v_proj")),
        ("--target-seq", ("32",)),
    ):
        if chance.random() < 0.1:
            options += [flag, chance.choice(values)]
    for flag in ("--quantized-inputs", "--tf32", "--master-weights", "--cuda-graphs", "--no-set-to-none", "--dora"):
        if chance.random() < 0.05:
            options.append(flag)
    return options + chance.choice(([], ["--compile"], ["--no-compile"], ["--expandable-segments"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_gpu_is_one_gpu_however_it_is_written(ask, seed):
    chance = random.Random(seed)
    options = drawn(chance)
    first, *others = (ask(*options, *spelled.split()) for spelled in (ONE_GPU[0], *chance.sample(ONE_GPU[1:], 2)))
    assert all(other == first for other in others), options


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ways", [GPUS, ZERO3, DDP], ids=["GPUs", "FSDP", "DDP"])
def test_data_parallel_ranks_are_the_same_however_they_are_written(ask, ways, seed):
    chance = random.Random(seed)
    options = drawn(chance)
    cluster = ("--cluster", "dgx-h100")
    first, *others = (ask(*options, *cluster, *spelled.split()) for spelled in (ways[0], chance.choice(ways[1:])))
    assert all(other == first for other in others), options


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_printed_changes_no_figure(ask, seed, tmp_path):
    chance = random.Random(seed)
    options = (
        *drawn(chance),
        *chance.choice((ONE_GPU[0], FSDP[0] + " --gpu h100-80gb", "--tp 2 --gpu h100-80gb")).split(),
    )
    plain = ask(*options)
    ways = [PRINTING[1], chance.choice(PRINTING[2:])]
    if "layout" in plain:
        ways.append(("--timeline", str(tmp_path / "step.svg")))
    for more in ways:
        answered = ask(*options, *more)
        if isinstance(answered, str) and "--run-tokens" in more and not isinstance(plain, str):
            assert "needs the seconds of a step" in answered
        else:
            assert answered == plain, (options, more)


def test_every_spelling_describes_the_same_run(model):
    def of(options):
        return described(vars(_parse(["plan", "--model", model, *options.split()]))).config

    for spellings in (ONE_GPU, FSDP, DDP, *((new, *old) for new, old in SPELLINGS.items())):
        assert len({of(spelled) for spelled in spellings}) == 1, spellings
    assert of("--gpus 8").by_blocks
    assert not of("--gpus 8 --engine pytorch").by_blocks
    assert not of("--gpus 8 --lora-rank 4").by_blocks


def test_the_words_have_the_figures_of_the_json(model, capsys):
    options = ["plan", "--model", model, "--gpus", "8", "--gpu", "h100-80gb", "--seq", "64"]
    assert main([*options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert main([*options, "--roles"]) == 0
    words = capsys.readouterr().out
    assert f"{figures['step_seconds']:.3g} s per step" in words
    assert figures["grades"]["h100-80gb"] in words
    for said in (model, "bf16-amp", "sequences of 64 tokens", "torchtitan", "assumed:", "zero zero3"):
        assert said in words


def test_the_id_of_a_row_means_nothing():
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512}
    line = {"arch": sizes, "gpu": "h100", "gpus": 8, "seq": 64}
    first, *others = (
        answer(line | {"id": name}) | {"id": None}
        for name in ("mine-1", "nemo-1", "torchtitan-1", "megatron-lm-7", "", None, 5)
    )
    assert first["error"] is None
    assert first["assumed"]["framework"] == "generic"
    assert all(other == first for other in others)
    assert answer(line | {"framework": "nemo"})["step_seconds"] != first["step_seconds"]
    assert "framework is 'nobody'" in answer(line | {"framework": "nobody"})["error"]
