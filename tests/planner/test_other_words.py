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
    ],
)
def test_a_refusal_names_what_was_meant(arguments, meant, capsys):
    assert meant in refusal(capsys, *arguments)


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
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("bert-base-uncased", "bert-base"),
        ("gpt2-small", "gpt2"),
        ("qwen3_8b", "qwen3-8b"),
        ("qwen2.5-9b", ""),  # a model of another size is none
        ("vicuna-7b", ""),
    ],
)
def test_a_model_is_known_by_its_name_on_the_hub(name, meant):
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
