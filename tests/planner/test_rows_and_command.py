"""A row and the command get one answer, and a framework is no more than what a row could say itself.

Random runs are drawn, written as a row and as the options that say the same, and both are asked.
"""

import json
import random
from dataclasses import asdict, fields, replace

from helpers.__main__ import _parse, main
from helpers.planner.catalog.archs import arch_of
from helpers.planner.config import RecipeError
from helpers.planner.described import cluster_of, described
from helpers.planner.layout.layout import layout_of
from helpers.planner.rows.answers import answer
from helpers.planner.rows.habits import GENERIC, HABITS, USUAL, Habits
from helpers.planner.rows.line import read_line

import pytest

from .frameworks_table import MARKS, PAGE, STATED, text

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 512}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False}
VALUES = {  # field of a row -> its values, and the options that say the same
    "tensor": {1: "", 2: "--tp 2", 4: "--tp 4"},
    "pipeline": {1: "", 2: "--pp 2", 4: "--pp 4"},
    "context": {1: "", 2: "--cp 2"},
    "shard": {2: "--dp-shard 2", 4: "--dp-shard 4"},
    "replicate": {1: "--dp-replicate 1", 2: "--dp-replicate 2"},
    "zero": {n: f"--zero-stage {n}" for n in range(4)},
    "schedule": {name: f"--schedule {name}" for name in ("gpipe", "1f1b", "interleaved", "zero-bubble")},
    "virtual_stages": {2: "--virtual-stages 2"},
    "sequence_parallel": {False: "--no-sequence-parallel"},
    "tensor_overlap": {True: "--tensor-overlap"},
    "context_method": {name: f"--context-method {name}" for name in ("ring", "all-to-all")},
    "reshard_after_forward": {False: "--no-reshard-after-forward"},
    "accumulate_whole": {True: "--accumulate-whole"},
    "plain_ends": {True: "--plain-ends"},
    "micro_batch_size": {n: f"--micro-batch-size {n}" for n in (1, 2, 3)},
    "gradient_accumulation_steps": {n: f"--gradient-accumulation-steps {n}" for n in (1, 4, 8)},
    "seq": {n: f"--seq {n}" for n in (64, 512, 4096)},
    "precision": {name: f"--precision {name}" for name in ("fp32", "bf16", "bf16-amp", "fp16-amp", "fp8")},
    "checkpointing": {
        name: f"--activation-checkpointing {name}" for name in ("none", "selective", "full", "every-2", "every-3")
    },
    "attention": {name: f"--attention {name}" for name in ("sdpa", "fused", "eager", "fused-2023")},
    "compile": {True: "--compile", False: "--no-compile"},
    "cuda_graphs": {True: "--cuda-graphs"},
    "lora_rank": {8: "--lora-rank 8"},
    "gpus_per_node": {4: "--gpus-per-node 4"},
}
MODELS = ("", "llama-3-8b", "mixtral-8x7b", "gpt2")  # the first is TINY


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def drawn(chance, tiny, models=MODELS):
    """Return a row, and the words of the command that say the same."""
    engine, gpu = chance.choice((*USUAL, "")), chance.choice(("h100-80gb", "a100-80gb", "b200-192gb"))
    gpus, model = chance.choice((1, 4, 8, 16)), chance.choice(models) or tiny
    row = {"model": model, "gpu": gpu, "gpus": gpus} | ({"engine": engine} if engine else {})
    words = f"--model {model} --gpu {gpu} --gpus {gpus} --engine {engine or 'torchtitan'}"
    for name, options in VALUES.items():
        if chance.random() < 0.25:
            row[name] = chance.choice(list(options))
            words += f" {options[row[name]]}"
    return row, words


def of_row(row):
    """Return the layout and the cluster of a row; None where it is refused."""
    try:
        question = read_line(row)
    except RecipeError:
        return None
    return question.layout, question.cluster


def of_command(words):
    args = _parse(["plan", *words.split()])
    try:
        config = described(vars(args)).config
        layout = layout_of(config, arch_of(config.model))
    except RecipeError:
        return None
    return replace(layout, **({"schedule": "1f1b"} if layout.pipeline == 1 else {})), cluster_of(vars(args))


def test_a_row_describes_the_run_of_the_command(tiny):
    chance, planned = random.Random(0), 0
    for _ in range(1500):
        row, words = drawn(chance, tiny)
        mine, theirs = of_row(row), of_command(words)
        assert mine == theirs, (row, words)
        planned += mine is not None
    assert planned > 200


@pytest.mark.parametrize("seed", range(4))
def test_a_row_gets_the_answer_of_the_command(tiny, capsys, seed):
    chance = random.Random(seed)
    while True:
        row, words = drawn(chance, tiny, ("",))
        if of_row(row):
            break
    figures = answer(row)
    assert main(["plan", *words.split(), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert figures["error"] is None
    for name in ("peak_allocated_bytes", "step_seconds", "step_seconds_interval", "tokens_per_second_per_gpu", "mfu"):
        assert figures[name] == said[name], (row, words)
    assert figures["reserved_bytes"][0] == said["reserved_bytes"][0]
    assert [figures["grade"]] == list(said["grades"].values())


# -- frameworks


ARCH = {"layers": 8, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512, "vocab": 1024, "gated": True}
ARCH |= {"bias": False, "layer_norm": False, "positions": 0}
LINE = {"arch": ARCH, "gpu": "h100-80gb", "gpus": 16, "tensor": 2, "pipeline": 2, "gpus_per_node": 8}


@pytest.mark.parametrize("framework", HABITS)
def test_a_framework_is_what_a_row_could_say_itself(framework):
    """All but what the page says that it alone decides."""
    theirs = read_line(LINE | STATED | {"framework": framework})
    engine = theirs.layout.engine
    plain = read_line(LINE | STATED | ({"engine": engine} if engine in USUAL else {}))
    apart = {"engine"} if engine not in USUAL else set()
    apart |= {"precision"} if HABITS[framework].casts_weights else set()
    apart |= {"deepspeed"} if HABITS[framework].deepspeed else set()
    unlike = {name for name, value in asdict(theirs.layout).items() if value != asdict(plain.layout)[name]}
    assert unlike <= apart


def test_the_page_says_what_frameworks_assume():
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(MARKS[0])[2].partition(MARKS[1])[0].strip() == text()


def test_every_habit_is_in_the_table_or_a_field():
    """A habit that someone adds has to be said on the page."""
    plain = Habits("torchtitan", "bf16-amp", "zero3")
    for each in fields(Habits):
        value = getattr(plain, each.name)
        other = {bool: not value, str: f"{value}x"}.get(type(value)) or (
            value + 1 if type(value) in (int, float) else ""
        )
        other = {"zero": "none", "as_command": None}.get(each.name, other)
        if other is not None:
            assert text({"mine": replace(plain, **{each.name: other})}) != text({"mine": plain}), each.name


def test_an_engine_is_named_without_a_framework():
    assert read_line(LINE | {"engine": "megatron"}).layout.engine == "megatron"
    assert read_line(LINE | {"framework": GENERIC, "engine": "megatron"}).layout.zero == "zero1"
    for changes in ({"framework": "nemo", "engine": "megatron"}, {"engine": "pytorch"}):
        with pytest.raises(RecipeError, match="choose torchtitan or megatron, and leave framework out"):
            read_line(LINE | changes)
