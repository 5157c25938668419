"""What other programs call options, values and models: each refusal is one line that names what was meant."""

import argparse
import gc
import json
import re
import runpy
import sys

from helpers.__main__ import main
from helpers.planner import RecipeError
from helpers.planner.catalog.gpus import find_gpu
from helpers.planner.catalog.models import SCANS, check_name
from helpers.planner.cli import _quick_imports, add_arguments
from helpers.planner.other_words import _CALLED, _FOREIGN, _OPTIONS, value_meant

import pytest


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["plan", *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("--per_device_train_batch_size", "2"), "here it is --micro-batch-size."),
        (("--max-seq-length=2048",), "here it is --seq."),
        (("--gradient-checkpointing",), "here it is --activation-checkpointing full."),
        (("--load-in-4bit",), "here it is --quantize nf4 with --lora-rank."),
        (("--fsdp", "full_shard"), "here it is --zero-stage 3."),
        (("--lora_rank", "8"), "did you mean --lora-rank?"),
        (("--micro-bach-size", "2"), "did you mean --micro-batch-size?"),
        (("llama-3-8b",), "did you mean --model llama-3-8b?"),
        (("--compile", "true"), "--compile takes no value."),
        (("--tp-size", "2", "--pp-size", "2"), "--tp-size is --tp here, --pp-size is --pp here."),
        (("--nonsense", "2"), "unrecognized arguments: --nonsense 2. Help"),
        (("--optimizer", "paged_adamw_8bit"), "did you mean adamw-8bit-paged?"),
        (("--attention", "flash_attention_2"), "did you mean sdpa?"),
        (("--precision", "bfloat16"), "did you mean bf16 or bf16-amp?"),
        (("--precision", "int4"), "did you mean --quantize nf4 with --lora-rank?"),
        (("--quantize", "4bit"), "did you mean nf4?"),
        (("--offload", "cpu"), "did you mean optimizer or all?"),
        (("--seq", "8k"), "argument --seq: '8k' may be 8192 or 8000; write the number."),
        (("--seq", "long"), "argument --seq: 'long' is not a whole number."),
        (("--micro-batch-size", "1.5"), "'1.5' is not a whole number."),
        (("--budget", "24TB"), "'24TB' is not an amount of memory such as 24 or 24GB, in GiB."),
        (("--budget", "GB"), "'GB' is not an amount of memory"),
    ],
)
def test_a_refusal_names_what_was_meant(arguments, meant, capsys):
    assert meant in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (("--lora-rank", "r16"), 16),
        (("--lora-rank", "r=16"), 16),
        (("--seq", "4,096"), 4096),
        (("--gpus", "8x"), 8),
        (("--micro-batch-size", "4.0"), 4),
        (("--budget", "24GB"), 24),
        (("--budget", "24 GiB"), 24),
        (("--budget", "23552MiB"), 23),
        (("--budget", "1e1"), 10),
    ],
)
def test_numbers_are_read_with_a_unit_that_can_mean_only_one_thing(arguments, read):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert read in vars(parser.parse_args(arguments)).values()


def test_what_is_meant_exists():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {name: action for action in parser._actions for name in action.option_strings}
    for ours in _FOREIGN:
        for name in re.findall(r"--[a-z-]+", ours):
            assert name in options
    assert not {f"--{name}" for name in _OPTIONS} & set(options)  # what the command knows is not refused
    choices = {str(choice) for action in options.values() for choice in action.choices or ()}
    for ours in set(_CALLED.values()):
        assert ours.startswith("--") or set(ours.split(" or ")) <= choices


def test_a_value_is_only_meant_where_the_option_has_it():
    assert value_meant("paged_adamw_8bit", "--loss", ["full", "fused"]) == ""
    assert value_meant("FUSED", "--loss", ["full", "fused"]) == "fused"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("lama-3.1-8b", "llama-3.1-8b"),
        ("gpt2-small", "gpt2"),
        ("qwen2.5-9b", ""),  # a model of another size is none
        ("tulu-9b", ""),
    ],
)
def test_a_model_that_is_not_known_is_refused_with_the_nearest(name, meant):
    with pytest.raises(RecipeError) as error:
        check_name(name)
    found = re.findall(r"did you mean (\S+)\?", str(error.value))
    assert found == [meant] * bool(meant)


def test_the_names_that_drivers_print_are_known():
    names = ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090", "NVIDIA L4")
    assert [find_gpu(name).name for name in names] == ["a100-80gb", "v100-16gb", "rtx-4090-24gb", "l4-24gb"]


@pytest.mark.parametrize("sizes", [{"model_type": name} for name in SCANS[:2]] + [{"layer_types": ["mamba"]}])
def test_layers_that_scan_are_refused_at_once(sizes, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "granitemoehybrid"} | sizes))
    with pytest.raises(RecipeError, match="scan the sequence"):
        check_name(str(path))


def test_a_command_ends_without_a_last_scan(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["helpers", "plan", "--list"])
    monkeypatch.delitem(sys.modules, "helpers.__main__")
    before = gc.get_freeze_count()
    try:
        with pytest.raises(SystemExit):
            runpy.run_module("helpers", run_name="__main__")
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()
    assert "models" in capsys.readouterr().out


def test_what_an_import_made_is_not_scanned(monkeypatch):
    thresholds = gc.get_threshold()
    scans = []
    made = []
    with _quick_imports():
        made += [[] for _ in range(50_000)]
        gc.callbacks.append(lambda phase, info: scans.append(info["generation"]))
    made += [[] for _ in range(10)]
    gc.callbacks.pop()
    assert (gc.get_threshold(), scans) == (thresholds, [])
