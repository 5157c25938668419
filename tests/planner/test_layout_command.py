"""`python -m helpers plan` for layouts over many GPUs."""

import argparse
import json
from dataclasses import replace

from helpers.__main__ import _parse, main
from helpers.planner import RecipeError
from helpers.planner.catalog.archs import arch_of
from helpers.planner.described import described, fill
from helpers.planner.exports import EXPORTS
from helpers.planner.layout.layout import Layout, layout_of
from helpers.planner.named import name_options
from helpers.planner.options import add_arguments
from helpers.planner.rows import answers
from helpers.planner.script import STYLES

import pytest

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "vocab_size": 512}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False}
QUICK = ("--seq", "64", "--cluster", "dgx-h100")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def plan(model, capsys):
    """Run the command and return its exit status, what it printed, and what it said on the side."""

    def run(*options, name=model):
        try:
            status = main(["plan", "--model", name, *options])
        except SystemExit as stop:  # by the parser
            status = stop.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def answer_of(outcome):
    status, out, err = outcome
    assert status == 0, err
    return json.loads(out)


def test_the_dimensions_are_filled_and_the_answer_is_whole(plan):
    answer = answer_of(plan("--gpus", "32", "--tensor", "2", "--pipeline", "4", *QUICK, "--json"))
    layout = answer["layout"]
    assert (layout["shard"], layout["replicate"], layout["micro_batches"]) == (4, 1, 4)
    assert (layout["precision"], layout["zero"], layout["compile"]) == ("bf16-amp", "zero3", True)
    assert layout["arch"]["layers"] == 8
    assert answer["cluster"]["gpu"]["name"] == "h100-80gb"
    peaks = [sum(rank["at_peak"].values()) for rank in answer["pipeline_ranks"]]
    assert len(peaks) == 4
    assert max(peaks) == answer["peak_allocated_bytes"] <= answer["reserved_bytes"][1]
    low, high = answer["step_seconds_interval"]
    assert low <= answer["step_seconds"] <= high
    assert answer["tokens_per_step"] == 4 * 4 * 64
    per_gpu = answer["tokens_per_step"] / 32 / answer["step_seconds"]
    assert answer["tokens_per_second_per_gpu"] == pytest.approx(per_gpu)
    assert sum(answer["parts"].values()) == pytest.approx(1, rel=1e-6)
    assert answer["bound_by"] in answer["parts"]
    assert answer["fits"] == {"h100-80gb": True}
    assert answer["grades"] == {"h100-80gb": "fits"}
    assert answer["assumed"]["gradient_accumulation_steps"] == 4


def layout_of_options(model, options):
    config = described(vars(_parse(["plan", "--model", model, *options.split()]))).config
    return layout_of(config, arch_of(model))


def test_every_option_reaches_the_layout(model):
    options = (
        "--tensor 2 --pipeline 2 --schedule interleaved --virtual-stages 2 --context 2 --context-method all-to-all"
    )
    options += " --data-shard 2 --replicate 2 --zero zero2 --no-sequence-parallel --micro-batches 4 --recompute full"
    options += " --recompute-every 2 --engine pytorch --precision bf16 --no-compile --micro-batch-size 3 --seq 64"
    expected = {
        "tensor": 2,
        "sequence_parallel": False,
        "pipeline": 2,
        "schedule": "interleaved",
        "virtual_stages": 2,
        "context": 2,
        "context_method": "all-to-all",
        "shard": 2,
        "replicate": 2,
        "zero": "zero2",
        "micro_batch_size": 3,
        "micro_batches": 4,
        "seq": 64,
        "precision": "bf16",
        "recompute": "full",
        "recompute_every": 2,
        "compile": False,
        "engine": "pytorch",
    }
    arch = arch_of(model)
    assert layout_of_options(model, options) == Layout(arch, **expected)
    usual = {"shard": 8, "seq": 2048}  # which the model reads at most
    assert layout_of_options(model, "--gpus 8") == Layout(arch, **usual)
    options = "--gpus 8 --no-reshard-after-forward --attention eager"
    assert layout_of_options(model, options) == Layout(arch, **usual, reshard_after_forward=False, attention="eager")
    assert layout_of_options(model, "--gpus 8 --attention sdpa") == Layout(arch, **usual, attention="fused")
    megatron = Layout(arch, **usual, engine="megatron", zero="zero1")
    assert megatron.uses_transformer_engine
    assert layout_of_options(model, "--gpus 8 --engine megatron") == megatron
    assert layout_of_options("mixtral-8x7b", "--gpus 8 --expert 4").expert == 4


def test_the_speed_of_attention_that_is_assumed_is_printed(plan):
    options = ("--seq", "64", "--engine", "megatron")
    answer = answer_of(plan(*options, "--gpu", "h100", "--json"))
    assert answer["assumed"]["attention_speed"] == "cuDNN's on Hopper"
    assert "attention speed cuDNN's on Hopper" in plan(*options, "--gpu", "h100")[1]
    assert "attention_speed" not in answer_of(plan(*options, "--gpu", "a100-80gb", "--json"))["assumed"]


def test_slow_links_make_long_steps_and_nodes_have_a_size(plan):
    common = ("--tensor", "4", *QUICK, "--cuda-graphs", "--json")  # else so small a model waits for its host
    usual, slow, apart = (
        answer_of(plan(*common, *more))
        for more in ((), ("--link-inside", "0.1"), ("--gpus-per-node", "2", "--link-outside", "0.01"))
    )
    assert usual["step_seconds"] < slow["step_seconds"] < apart["step_seconds"]
    assert slow["cluster"]["inside"] == 0.1e9
    assert (apart["cluster"]["node"], apart["cluster"]["outside"]) == (2, 0.01e9)
    assert slow["peak_allocated_bytes"] == usual["peak_allocated_bytes"]


def test_the_answer_states_links_that_are_given(plan):
    given = plan("--gpus", "8", "--zero-stage", "3", *QUICK, "--link-outside", "12.5")[1]
    assert "links of a GPU, each way: 450 GB/s in its node, 12.5 GB/s to other nodes" in given
    assert "links of a GPU" not in plan("--gpus", "8", "--zero-stage", "3", *QUICK)[1]


def test_the_words_the_table_of_roles_and_the_timeline(plan, tmp_path):
    picture = tmp_path / "step.svg"
    options = ("--gpus", "4", "--pipeline", "4", *QUICK, "--roles", "--timeline", str(picture))
    status, out, err = plan(*options)
    assert (status, err) == (0, "")
    assert "4 x h100-80gb: FSDP 1, PP 4 1F1B, batch 1 x 4" in out
    table = out[out.index("rank  stages") :].splitlines()
    assert [row.split()[0] for row in table[1:5]] == ["0", "1", "2", "3"]
    assert str(picture) in out
    assert "4 pipeline ranks" in picture.read_text()


def test_a_configuration_is_printed_or_written_and_a_job_beside_it(plan, tmp_path):
    status, out, err = plan("--gpus", "16", "--gpu", "h100", "--export", "deepspeed", name="llama-3-8b")
    assert (status, err) == (0, "")
    assert json.loads(out)["train_batch_size"] == 16
    path = tmp_path / "ds_config.json"
    job = ("--export", "deepspeed", "--out", str(path), "--wrap", "sbatch")
    status, out, err = plan("--gpus", "16", "--gpu", "h100", *job, name="llama-3-8b")
    assert (status, err) == (0, "")
    assert "--nodes=2" in out
    assert json.loads(path.read_text())["train_batch_size"] == 16
    out = plan("--gpus", "16", "--gpu", "h100", *job[:4], name="llama-3-8b")[1]
    assert out.startswith(f"Wrote {path}.\n16 x h100-80gb: fits in ")
    assert out.count("\n") == 2
    assert plan("--gpus", "16", "--gpu", "h100", "--export", "megatron", name="llama-3-8b")[0] == 0  # with its habits


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--gpus 64 --gpu h100 --tensor 3", "not a multiple of --tp 3."),
        ("--gpus 60 --gpu h100 --tensor 4 --pipeline 2", "not a multiple of --tp 4 x --pp 2 = 8"),
        ("--gpus 64 --gpu h100 --data-shard 4 --replicate 4", "--dp-shard 4 x --dp-replicate 4 are 16 ranks"),
        ("--gpus 0 --gpu h100", "--gpus is 0; it must be at least 1"),
        ("--gpus 8 --gpu h100 --tp 0", "--tp is 0; it must be at least 1"),
        ("--gpus 64 --gpu h100 --tp 64", "--tp 64 does not divide the 32 heads"),
        ("--gpus 8 --gpu h100 --cp 2 --seq 4098", "--seq 4098 is not a multiple of 4, as --cp 2 and --tp 1 require"),
        ("--gpus 8", "--gpu NAME or --cluster NAME"),
        ("--gpus 8 --gpu h100 --cluster dgx-h100", "not both"),
        ("--gpus 8 --cluster dgx", "There is no cluster 'dgx': "),
        ("--gpus 8 --gpu tpu", "not in the catalog"),
        ("--gpus 8 --gpu h100 --link-inside -2", "--link-inside is -2 GB/s"),
        ("--gpus 8 --gpu h100 --gpus-per-node 0", "at least one GPU"),
        (
            "--gpus 8 --gpu h100 --tp 2 --lora-rank 8 --engine torchtitan",
            "adapters (--lora-rank) need --engine megatron",
        ),
        ("--gpus 8 --gpu h100 --engine torchtitan --optimizer sgd", "sgd needs --engine pytorch"),
        ("--gpus 8 --gpu h100 --tp 2 --optimizer-impl foreach", "set --optimizer-impl to fused"),
        ("--gpus 8 --gpu h100 --tp 2 --checkpointing sqrt", "one by one"),
        ("--gpus 8 --gpu h100 --tp 2 --offload optimizer", "offload"),
        ("--gpus 8 --gpu h100 --lora-targets q_proj", "set --lora-rank"),
        ("--gpus 8 --gpu h100 --zero-stage 4", "choose from 0, 1, 2, 3"),
        ("--gpus 8 --gpu h100 --dp-replicate 2 --engine pytorch", "use --engine torchtitan"),
        ("--gpus 8 --gpu h100 --lora-rank 8 --timeline step.svg", "see --engine"),
        ("--gpus 8 --budget 3 --gpu h100", "--budget works for one GPU"),
        ("--gpus 8 --gpu h100 --expert 2", "--ep needs a mixture of experts; this model is dense"),
        ("--gpus 8 --gpu h100 --pipeline 8 --virtual-stages 2", "--virtual-stages 2 needs"),
        ("--gpus 8 --gpu h100 --pipeline 2 --schedule zero-bubble", "add --no-reshard-after-forward"),
        ("--gpus 8 --gpu h100 --tp 2 --no-sequence-parallel --tensor-overlap", "leave out --no-sequence-parallel"),
        ("--gpus 8 --gpu h100 --zero zero3 --engine megatron", "use --zero-stage 1"),
        ("--gpus 8 --gpu h100 --timeline step.txt", ".svg, .png, .pdf"),
        ("--gpus 8 --gpu h100 --schedule zigzag", "choose from"),
        ("--gpus 8 --gpu h100 --wrap sbatch", "--export"),
        ("--gpus 8 --gpu h100 --export torchtitan --wrap sbatch", "--out FILE"),
        ("--gpus 8 --gpu h100 --export deepspeed --roles", "only the configuration"),
        ("--gpus 8 --gpu h100 --export deepspeed --out other.json --wrap sbatch", "ds_config.json"),
        ("--gpus 12 --gpu h100 --export deepspeed --out ds_config.json --wrap sbatch", "do not fill nodes of 8"),
        ("--gpus 8 --gpu h100 --export nonsense", "nonsense"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, word, plan):
    status, out, err = plan(*options.split(), name="llama-3-8b")
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert word in err


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "shard 2 x replicate 4 are 8 ranks: use zero 0.",
            "--dp-shard 2 x --dp-replicate 4 are 8 ranks: use --zero-stage 0.",
        ),
        ("Set lora_rank; seq is 0.", "Set --lora-rank; --seq is 0."),
        ("tensor ranks share 8 heads, and attention is eager", "tensor ranks share 8 heads, and attention is eager"),
        ("set reshard_after_forward to False; keep sequence_parallel", None),
        ("Only zero3 does: use zero3 or zero none", "Only --zero-stage 3 does: use --zero-stage 3 or --zero-stage 0"),
        ("use engine megatron, or an engine of yours", "use --engine megatron, or an engine of yours"),
        ("use precision bf16 or fp16, not bf16-amp", "use --precision bf16 or fp16, not bf16-amp"),
        ("reshard_after_forward False needs zero3", "--no-reshard-after-forward needs --zero-stage 3"),
        ("leave tensor_overlap False", "leave out --tensor-overlap"),
        ("configs/zero3.json and zero3-offload", "configs/zero3.json and zero3-offload"),
        ("my_lora_rank/lora_rank.json and --lora-rank", "my_lora_rank/lora_rank.json and --lora-rank"),
    ],
)
def test_messages_name_options_where_they_mean_fields(message, said):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    said = said or "add --no-reshard-after-forward; leave out --no-sequence-parallel"
    assert name_options(message, parser) == said
    assert name_options(said, parser) == said


def test_rows_keep_the_names_of_their_fields():
    row = {"framework": "megatron-lm", "model": "llama-3-8b", "gpus": 64, "tensor": 64}
    assert answers.answer(row)["error"] == "tensor 64 does not divide the 32 heads."


def test_what_is_left_of_the_gpus():
    assert fill(None, {"tensor": 2}) == {}
    assert fill(64, {}) == {"shard": 64}
    assert fill(64, {"tensor": 8, "replicate": 2}) == {"shard": 4}
    assert fill(64, {"tensor": 8, "shard": 2}) == {"replicate": 4}
    assert fill(16, {"tensor": 8, "shard": 2, "replicate": 1}) == {}
    with pytest.raises(RecipeError, match="at least 1"):
        fill(8, {"tensor": 0})


def test_many_rows_from_a_file_into_a_file(monkeypatch, tmp_path, capsys):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    rows.write_text('{"id": "a"}\n\n{"id": "b"}\n')
    monkeypatch.setattr(answers, "answer_rows", lambda lines, *_: [line | {"error": None} for line in lines])
    assert main(["plan", "--rows", str(rows), "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": "a", "error": None},
        {"id": "b", "error": None},
    ]
    assert capsys.readouterr().out == ""
    assert main(["plan", "--rows", str(rows)]) == 0
    assert capsys.readouterr().out == out.read_text()
    assert main(["plan", "--rows", str(tmp_path / "none.jsonl")]) == 2


def test_a_whole_run_is_planned(plan):
    options = ("--gpus", "8", *QUICK, "--run-tokens", "1B", "--price-per-gpu-hour", "3")
    answer = answer_of(plan(*options, "--json"))
    whole = answer["run"]
    assert whole["tokens"] == 1e9
    step = answer["tokens_per_step"] / answer["step_seconds"]
    assert whole["seconds"] == pytest.approx(1e9 / step / whole["goodput"])
    assert whole["cost"] == pytest.approx(3 * whole["gpu_hours"])
    status, out, _ = plan(*options, "--failures-per-gpu-day", "0.01")
    assert status == 0
    assert all(word in out for word in ("GPU-hours", "goodput", "a failure every", "3 per GPU-hour"))
    assert "  1B tokens take " in out
    assert "  of the time: " in out
    assert "waiting for shard ranks" in out


def test_help_names_all_exports(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"({', '.join(STYLES)})" in said
    assert f"({', '.join(EXPORTS)})" in said


@pytest.mark.parametrize(
    "options",
    [("--price-per-gpu-hour", "3"), ("--run-tokens", "many"), ("--run-tokens", "1T", "--restart-seconds", "-1")],
)
def test_a_whole_run_of_nonsense_gets_one_line(plan, options):
    status, _, err = plan("--gpus", "8", *QUICK, *options)
    assert status == 2
    assert len(err.strip().splitlines()) == 1


def test_a_layout_made_by_hand_is_that_of_the_command(model):
    """Whoever names an engine has its kernels, also where one engine takes the place of another."""
    arch = arch_of(model)
    for engine, zero in (("megatron", "zero1"), ("torchtitan", "zero3")):
        mine = Layout(arch, shard=8, seq=2048, engine=engine, zero=zero)
        assert mine == layout_of_options(model, f"--gpus 8 --engine {engine}")
        other = {"megatron": ("torchtitan", "zero3"), "torchtitan": ("megatron", "zero1")}[engine]
        by_hand = Layout(arch, shard=8, seq=2048, engine=other[0], zero=other[1])
        assert replace(mine, engine=other[0], zero=other[1]) == by_hand
    megatron = Layout(arch, engine="megatron", zero="zero1")
    assert megatron.uses_transformer_engine
    assert not replace(megatron, transformer_engine=False).uses_transformer_engine
    with pytest.raises(RecipeError, match="transformer_engine needs engine megatron"):
        Layout(arch, transformer_engine=True)
