"""One rule says whether a run fits; people who went out of memory were not told that theirs does."""

import json
from dataclasses import replace

from helpers.__main__ import main
from helpers.core.units import GiB, human_bytes
from helpers.planner import TrainingConfig, plan
from helpers.planner.grades import grade

import pytest

SMOLLM = {  # SmolLM2-1.7B
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 130000,
    "tie_word_embeddings": True,
}
# github.com/hiyouga/LlamaFactory/issues/6999; github.com/lm-sys/FastChat/issues/2229
_FACTORY = "--model qwen2.5-32b --cluster a800 --seq 1024 --recompute full --no-compile --micro-batches 2"
_FASTCHAT = "--model llama-2-70b --gpus 16 --cluster a800 --seq 4096 --micro-batch-size 2 --recompute full --no-compile"
RAN_OUT = {
    "LLaMA-Factory #6999, 7 GPUs": f"{_FACTORY} --gpus 7",
    "LLaMA-Factory #6999, 8 GPUs": f"{_FACTORY} --gpus 8",
    "FastChat #2229": _FASTCHAT,
}


@pytest.fixture
def graded(capsys, monkeypatch):
    """Run the command and return its only grade, and what is assumed."""
    monkeypatch.setenv("TAS_PROGRESS", "off")

    def run(*options):
        assert main(["plan", "--json", *options]) == 0
        answer = json.loads(capsys.readouterr().out)
        (said,) = answer["grades"].values()
        return said, answer["assumed"]

    return run


def test_the_rule():
    assert grade(70 * GiB, 75 * GiB, 79 * GiB) == "fits"
    assert grade(70 * GiB, 79 * GiB, 79 * GiB) == "fits"  # equal is enough
    assert grade(70 * GiB, 80 * GiB, 79 * GiB) == "tight"
    assert grade(80 * GiB, 80 * GiB, 79 * GiB) == "does not fit"


def test_a_plan_says_how_much_is_left_or_lacking():
    one = plan(TrainingConfig("gpt2", seq=64), gpu="t4")
    (room,) = one.room_bytes.values()
    allocated, reserved, too_much = 8 * GiB, 9 * GiB, 20 * GiB
    for peak, high, words in (
        (allocated, reserved, f"{human_bytes(room - reserved)} to spare"),
        (allocated, too_much, f"as much as {human_bytes(too_much - room)} short"),
        (too_much, too_much, f": {human_bytes(too_much - room)} short"),
    ):
        text = str(replace(one, peak_allocated_bytes=peak, reserved_bytes=(peak, high)))
        assert f"t4-16gb has {human_bytes(room)} for the allocator" in text
        assert words in text
    fragments = replace(one, peak_allocated_bytes=allocated, reserved_bytes=(allocated, too_much))
    text = str(replace(fragments, grades={"t4-16gb": "does not fit"}))
    assert "enough for the tensors, but a replay in it runs out of memory" in text
    assert " short" not in text


def test_a_tight_plan_names_the_options_that_may_help():
    one = plan(TrainingConfig("gpt2", seq=64, micro_batch_size=2), gpu="t4")
    assert "  tight: " not in str(one)
    tight = replace(one, grades={"t4-16gb": "tight"})
    assert "tight: --expandable-segments may reserve less; --largest-batch finds the largest micro-batch" in str(tight)
    alone = replace(tight, recipe=replace(tight.recipe, micro_batch_size=1))
    assert "--largest-batch" not in str(alone)
    assert "  tight: " not in str(replace(tight, recipe=replace(alone.recipe, expandable_segments=True)))


def test_packed_weights_count_as_the_parameters_that_they_are():
    whole, packed = (plan(TrainingConfig("gpt2", seq=64, lora_rank=4, quantize=kind)) for kind in ("none", "nf4"))
    assert packed.parameters == whole.parameters


@pytest.mark.slow
@pytest.mark.parametrize("report", RAN_OUT)
def test_layouts_that_ran_out_of_memory_are_not_said_to_fit(graded, report):
    assert graded(*RAN_OUT[report].split())[0] == "tight"


@pytest.mark.slow
def test_a_long_context_that_ran_out_of_memory_is_not_said_to_fit(graded, tmp_path):
    """github.com/axolotl-ai-cloud/axolotl/pull/2412: on an H100, with 8-bit AdamW."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMOLLM))
    options = "--seq 16384 --optimizer adamw-8bit --precision bf16-amp --budget 79"
    said, assumed = graded("--model", str(path), *options.split())
    assert said != "fits"
    assert assumed["positions"] == "rotated beyond the config's 8,192"


@pytest.mark.slow
def test_what_ran_with_room_to_spare_fits(graded):
    """github.com/pytorch/torchtitan/issues/887 reserved 36.06 GiB of 80."""
    options = "--model llama-3-8b --gpus 8 --gpu a100-80gb --seq 8192 --activation-checkpointing full --no-compile"
    assert graded(*options.split())[0] == "fits"
