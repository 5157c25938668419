"""`python -m helpers plan`, and models that come as config files."""

import argparse
import json
import re
import subprocess
import sys
from types import SimpleNamespace

from helpers import GiB
from helpers.__main__ import main
from helpers.planner import Recipe, RecipeError, plan
from helpers.planner.catalog import GPUS, find_model, limits, model_names
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.cli import NOTHING, add_arguments
from helpers.planner.short_help import EXAMPLES

import pytest
import torch

from tests.planner.support import MIXTURES, QKVO, command_alone, peak


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `python -m helpers plan` in this process, without what this machine's user keeps."""
    monkeypatch.setenv("TAS_PROGRESS", "off")

    def run(*arguments):
        try:
            status = main(["plan", *arguments])
        except SystemExit as stop:  # by the parser
            status = stop.code
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=printed.out, stderr=printed.err)

    return run


@pytest.mark.slow  # a process of its own, as a user starts it
def test_7b_lora_with_checkpointing():
    arguments = [
        "--model",
        "llama-2-7b",
        "--precision",
        "bf16",
        "--lora-rank",
        "16",
        "--micro-batch-size",
        "1",
        "--seq",
        "512",
    ]
    run = command_alone(*arguments, "--lora-targets", ",".join(QKVO), "--checkpointing", "every", "--json")
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert 13.0 * GiB <= answer["peak_allocated_bytes"] <= 13.3 * GiB
    assert sum(answer["at_peak"].values()) == answer["peak_allocated_bytes"]
    assert answer["trained"] == 16_777_216
    low, high = answer["reserved_bytes"]
    assert answer["peak_allocated_bytes"] <= low < high
    assert answer["fits"]["rtx-4090-24gb"] is True
    assert answer["fits"]["rtx-3060-12gb"] is False
    assert "log_softmax" in answer["peak_at"]
    assert {"remedies", "recipe", "seconds"} <= set(answer)
    assert answer["recipe"]["lora_targets"] == list(QKVO)
    forecast = answer["forecasts"]["rtx-4090-24gb"]
    assert forecast["low"] <= forecast["seconds"] <= forecast["high"]
    assert forecast["per_second"] == pytest.approx(512 / forecast["seconds"], rel=0.01)
    assert 0 < forecast["mfu"] < 1
    assert set(forecast["bounds"]) == {"compute", "memory", "launch", "paging"}


RUN = "Run: python train.py --weights openai-community/gpt2 --text FILE"


def test_the_command_exports_the_script_of_the_run_that_it_plans(tmp_path, command):
    path = tmp_path / "train.py"
    run = ["--model", "gpt2", "--seq", "128", "--lora-rank", "8", "--activation-checkpointing", "full"]
    written = command(*run, "--gpu", "rtx-4090", "--export", "pytorch", "--out", str(path))
    assert (written.returncode, written.stdout) == (0, f"Wrote {path}.\n{RUN}\nrtx-4090-24gb: fits\n")
    script = path.read_text(encoding="utf-8")
    compile(script, str(path), "exec")
    assert "r=8, lora_alpha=16" in script
    assert ", full checkpointing.\n" in script.splitlines(keepends=True)[0]  # as the option is called
    assert f"add {RUN.removeprefix('Run: python train.py ')};\nwithout them" in script
    assert re.search(r"^Packages, .*:\ntorch \d[\d.]+, transformers \d[\d.]+, peft \d[\d.]+\.$", script, re.MULTILINE)
    assert "TrainingArguments" in command(*run, "--export", "trainer").stdout
    many = command(*run, "--micro-batch-size", "256", "--export", "pytorch", "--out", str(path)).stdout.splitlines()
    assert many[:2] == [f"Wrote {path}.", RUN]  # no GPU was named: one line for all that agree
    assert [line.partition(":")[0] for line in many[2:]] == ["fits", "tight", "does not fit"]
    assert "rtx-3060-12gb" in many[-1]


def test_where_nothing_makes_it_fit_the_answer_says_so(command):
    said = command("--model", "small-gpt", "--seq", "64", "--budget", "0.05").stdout
    assert "has no memory left beside the CUDA context" in said
    assert NOTHING in said


def test_an_answer_with_room_to_spare_names_what_uses_it(command):
    line = "  room is left: --largest-batch finds the largest micro-batch that fits; --compile may make a step faster"
    run = ("--model", "small-gpt", "--seq", "64")
    assert line in command(*run, "--gpu", "t4").stdout.splitlines()
    assert "room is left" not in command(*run, "--gpu", "t4", "--largest-batch").stdout
    assert "room is left" not in command(*run).stdout  # of all common GPUs
    assert "room is left" not in command(*run, "--budget", "0.05").stdout


def test_an_answer_calls_checkpointing_what_its_option_does(command):
    answer = command("--model", "small-gpt", "--gpu", "t4", "--activation-checkpointing", "full").stdout
    assert ", full checkpointing\n" in answer
    assert "every" not in answer
    assert "t4-16gb has no BF16 units, so BF16 runs at the rate of FP32; --precision fp16-amp is faster" in answer
    answer = command("--model", "small-gpt", "--gpu", "t4", "--activation-checkpointing", "every-2").stdout
    assert ", checkpointing every-2\n" in answer


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--model NAME"),
        (["--model", "gpt2", "--export", "torchtian"], "one of pytorch, trainer, torchtitan"),
        (["--model", "gpt2", "--export", "pytorch", "--out", "train.py", "--wrap", "sbatch"], "docstring"),
        (["--model", "lama-2-7b"], "did you mean llama-2-7b"),
        (["--model", "7b"], "did you mean llama-2-7b, mistral-7b or qwen2.5-7b?"),
        (["--model", "13b"], "did you mean llama-2-13b?"),
        (["--model", "llama-2-7b", "--gpu", "a100"], "a100-40gb or a100-80gb"),
        (["--model", "llama-2-7b", "--gpu", "tpu"], "--budget"),
        (["--model", "llama-2-7b", "--gpu", "h2000"], "did you mean h200-141gb"),
        (["--model", "acme/Qwen2.5-7B-of-ours"], "did you mean qwen2.5-7b"),
        (["--model", "meta-llama/Llama-3-8B-Instrct"], "did you mean llama-3-8b"),
        (["--model", "llama-2-7b", "--gpus", "8", "--gpu", "h100", "--run-tokens", "abc"], "abc"),
        (["--model", "llama-2-7b", "--gpus", "8", "--gpu", "h100", "--timeline", "nowhere/a.svg"], "no such folder"),
        (["--model", "llama-2-7b", "--budget", "-1"], "more than 0"),
        (["--model", "llama-2-7b", "--gpu", "t4", "--budget", "3"], "not both"),
        (["--model", "llama-2-7b", "--micro-batch-size", "0"], "--micro-batch-size is 0; it must be at least 1"),
        (["--model", "gpt2", "--seq", "2048"], "at most 1024"),
        (["--model", "llama-2-7b", "--precision", "fp8"], "Name the GPUs"),
        (["--activation-checkpointing", "on"], "--activation-checkpointing: 'on' is not one of none, selective, full"),
        (["--checkpointing", "every-0"], "--checkpointing: 'every-0' is not one of none, selective, full"),
        (["--model", "llama-2-7b", "--precision", "int4"], "choose from"),
        (["--model", "mixtral-8x7b"], "Name the GPUs"),
        (["--model", "mixtral-8x7b", "--engine", "pytorch"], "mixture of experts"),
        (["--model", "llama-2-7b", "--out", "plan.txt"], "--export or --rows"),
        (["--model", "llama-2-7b", "--quantize", "nf4"], "LoRA"),
        (["--model", "llama-2-7b", "--lora-rank", "8", "--lora-targets", "query"], "q_proj"),
        (["--model", "llama-2-7b", "--shard", "zero2"], "ranks"),
        (
            ["--model", "llama-2-7b", "--step-in-backward", "--gradient-accumulation-steps", "4"],
            "--gradient-accumulation-steps to 1",
        ),
        (["--model", "vit-l-16", "--attention", "eager"], "sdpa"),
        (["--model", "gpt2", "--image-size", "32"], "--image-size"),
        (["--model", "vit-l-16", "--image-size", "100"], "multiple of 16"),
        (["--model", "small-cnn", "--checkpointing", "every"], "no repeated blocks"),
        (["--model", "pyproject.toml"], "not a Hugging Face config"),
        (["--model", "gpt2", "--lora-alpha", "8"], "--lora-alpha was given without adapters: set --lora-rank"),
        (["--model", "gpt2", "--lora-rank", "8", "--lora-alpha", "nan"], "must be a number"),
        (["--model", "gpt2", "--budget", "nan"], "more than 0"),
        (["--model", "gpt2", "--gpu", ""], "--list"),
        (["--model", "gpt2", "--gpu", "this"], "python -m helpers roofline"),
        (["--model", "gpt2", "--micro-batch-size", "1000000000000"], "at most"),
        (["--model", "gpt2", "--ranks", "1000000", "--shard", "zero3"], "at most"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(command, arguments, word):
    run = command(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    assert word in run.stderr


def test_old_spellings_of_options_still_work(command):
    new = ["--micro-batch-size", "2", "--gradient-accumulation-steps", "3", "--no-set-to-none"]
    old = ["--batch", "2", "--accumulate", "3", "--keep-grads"]
    answers = []
    for options in (new, old):
        run = command("--model", "small-gpt", "--seq", "32", "--json", *options)
        assert run.returncode == 0, run.stderr
        answers.append(json.loads(run.stdout) | {"seconds": 0})
    assert answers[0] == answers[1]
    recipe = answers[0]["recipe"]
    assert (recipe["micro_batch_size"], recipe["gradient_accumulation_steps"], recipe["set_to_none"]) == (2, 3, False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_measuring_needs_a_gpu(command):
    run = command("--model", "small-gpt", "--measure")
    assert run.returncode == 2
    assert "PyTorch sees none" in run.stderr


@pytest.mark.parametrize(
    "arguments", [["--model", "lama-2-7b"], ["--model", "nowhere/config.json", "--gpus", "8", "--gpu", "h100"]]
)
def test_a_misspelt_model_is_refused_before_anything_heavy_is_imported(arguments):
    """In well under a second of a quiet machine: PyTorch and transformers alone take several."""
    program = (
        "import sys\nfrom helpers.__main__ import main\n"
        f"status = main(['plan', *{arguments!r}])\n"
        "print(status, *sorted({'torch', 'transformers', 'numpy', 'matplotlib', 'joblib'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2"]
    assert "There is no model" in run.stderr


def test_help_fits_one_screen_and_begins_with_examples(command):
    run = command("--help")
    lines = run.stdout.splitlines()
    assert run.returncode == 0
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 110
    assert lines[0] == "examples:"
    assert all(
        option in run.stdout
        for option in ("--model", "--gpu ", "--seq", "--lora-rank", "--lora-targets", "--gpus", "--help-all")
    )


def test_every_option_is_in_the_whole_help(command):
    run = command("--help-all")
    assert run.returncode == 0
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for action in parser._actions:
        assert action.option_strings[0] in run.stdout or action.help == argparse.SUPPRESS
    short = {line.split()[0] for line in command("--help").stdout.splitlines() if line.startswith("  --")}
    assert short <= {option for action in parser._actions for option in action.option_strings}


def test_the_examples_of_the_help_are_commands():
    """Each is parsed, and refused for no other reason than a file that is not here."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    for arguments, _ in EXAMPLES:
        known = parser.parse_args(arguments.split())
        assert known.from_file or known.model


def test_the_list_names_everything(command):
    run = command("--list")
    assert all(name in run.stdout for name in [*model_names(), *MIXTURES, *GPUS, *CLUSTERS])


def test_a_config_file_is_a_model(tmp_path):
    config = {"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "architectures": ["LlamaForCausalLM"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    answer = plan(Recipe(str(path), seq=32))
    assert answer.parameters == 2 * 500 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64)
    assert plan(Recipe(str(tmp_path), seq=32)).parameters == answer.parameters  # the folder will do
    path.write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    assert find_model(str(path)).kind == "MaskedLM"
    path.write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"], "model_type": "t5"}))
    with pytest.raises(RecipeError, match="a BertForMaskedLM, which is not planned"):
        find_model(str(path))
    path.write_text(json.dumps(config | {"model_type": "nonesuch"}))
    with pytest.raises(RecipeError, match="does not know the model type"):
        find_model(str(path))
    path.write_text(json.dumps(config | {"num_attention_heads": "four"}))
    with pytest.raises(RecipeError):
        plan(Recipe(str(path), seq=32))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "vit", "image_size": [32, 32], "patch_size": [8, 8], "hidden_size": 32}, ""),
        ({"model_type": "llama", "hidden_act": "nonsense"}, "cannot be simulated"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "Name the GPUs"),
        ({"model_type": ["llama"]}, "not a Hugging Face config"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value["model_type"]),
)
def test_odd_configs_are_planned_or_refused_in_one_line(command, config, word, tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sizes | config))
    run = command("--model", str(path), *([] if config["model_type"] == "vit" else ["--seq", "16"]))
    assert run.returncode == (2 if word else 0), run.stderr
    assert word in run.stderr
    assert len(run.stderr.strip().splitlines()) == bool(word)


def test_images_of_another_size_change_a_hugging_face_model(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    path.write_text(json.dumps({"model_type": "vit", "image_size": 32, "patch_size": 8, **sizes}))
    assert peak(Recipe(str(path), micro_batch_size=8), image_size=64) > 1.5 * peak(
        Recipe(str(path), micro_batch_size=8)
    )


@pytest.mark.parametrize("name", model_names())
def test_the_catalog_lists_the_limits_of_the_models_themselves(name):
    spec = find_model(name)
    assert limits(name) == (spec.context, spec.side)
