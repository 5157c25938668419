"""Lines of `plan --rows`: whatever is in them, there is an answer, or one line that says what is wrong."""

import json
import random
from types import SimpleNamespace

from helpers.planner.config import RecipeError
from helpers.planner.layout.layout_plan import reserved_bytes
from helpers.planner.rows import answers
from helpers.planner.rows.answers import FIELDS, answer
from helpers.planner.rows.habits import HABITS
from helpers.planner.rows.line import read_line

import pytest

from tests.planner.layout_runs import RUNS

ARCH = {"layers": 4, "hidden": 64, "heads": 4}
LINE = {"id": "somebody-1", "arch": ARCH, "gpu": "h100", "gpus": 8}
PUBLISHED = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
ODD = (None, "", "many", -1, 0, 1.5, 3, True, [], {}, [8], {"a": 1}, float("nan"), float("inf"), 10**30)


@pytest.fixture
def read_only(monkeypatch):
    """Nothing is planned: how a layout is simulated is asked elsewhere."""
    figures = ("seconds", "low", "high", "tokens_per_second", "mfu", "hfu", "bound_by", "grade")
    worst, first = SimpleNamespace(nbytes=2, apart=0), SimpleNamespace(nbytes=1, apart=0)
    plan = SimpleNamespace(worst=worst, ranks=[first, worst], assumed={}, **dict.fromkeys(figures, 1))

    def plan_of(layout, cluster):
        plan.layout, plan.cluster = layout, cluster
        return plan

    monkeypatch.setattr(answers, "plan_layout", plan_of)


def checked(line):
    said = answer(line)
    assert tuple(said) == FIELDS
    assert (said["error"] is None) == (said["step_seconds"] is not None)
    if said["error"] is not None:
        assert "\n" not in said["error"]
        assert not said["error"].startswith("this cannot be simulated"), (line, said["error"])
    json.dumps(said)
    return said


def test_every_published_line_is_read(read_only):
    for line in PUBLISHED:
        said = checked(line)
        assert said["error"] is None
        assert line["framework"] == line["id"].rpartition("-")[0]


def test_odd_values_get_an_answer_or_a_clear_line(read_only):
    chance = random.Random(0)
    for line in chance.sample(PUBLISHED, 60):
        for name in (
            *line,
            "framework",
            "schedule",
            "sequence_parallel",
            "shard",
            "replicate",
            "gpus_per_node",
            "lora_rank",
        ):
            checked({**line, name: chance.choice(ODD)})
            checked({key: value for key, value in line.items() if key != name})
        if isinstance(line.get("arch"), dict):
            for name in (*line["arch"], "gated", "experts", "moe_ffn", "dense_layers"):
                checked(line | {"arch": line["arch"] | {name: chance.choice(ODD)}})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"arch": None}, "model"),
        ({"arch": {"layers": 2}}, "arch does not give"),
        ({"arch": ARCH | {"experts": 4, "experts_per_token": 5}}, "5 of 4"),
        ({"gpu": "abacus"}, "abacus"),
        ({"tensor": 3}, "divide"),
        ({"tensor": 2, "shard": 3}, "shard 3"),
        ({"global_batch_size": 7}, "global_batch_size"),
        ({"precision": "fp2"}, "precision"),
        ({"checkpointing": "sometimes"}, "recompute"),
        ({"lora_rank": 8}, "engine megatron"),
        ({"framework": "abacus"}, "framework is 'abacus'; choose one of generic, torchtitan"),
    ],
)
def test_contradictions_are_named(changes, word, read_only):
    assert word in checked(LINE | changes)["error"]


def test_what_is_absent_or_null_is_assumed_and_named(read_only):
    names = ("tensor", "pipeline", "seq", "precision", "checkpointing", "compile", "micro_batch_size", "schedule")
    absent, null = checked(LINE), checked(LINE | dict.fromkeys(names))
    assert absent == null
    assert {"framework", "seq", "precision", "checkpointing", "arch.gated", "arch.vocab"} <= set(absent["assumed"])


@pytest.mark.parametrize("framework", HABITS)
def test_a_framework_brings_its_habits(framework):
    question = read_line(LINE | {"framework": framework})
    assert "framework" not in question.assumed  # since the line names it
    said, casts = HABITS[framework].precision, HABITS[framework].casts_weights
    assert question.layout.precision == ("bf16" if casts and said == "bf16-amp" else said)


def test_memory_is_that_of_the_rank_whose_memory_a_source_logs(read_only):
    piped = LINE | {"pipeline": 2, "micro_batch_size": 1, "global_batch_size": 16}
    assert checked(piped | {"framework": "torchtitan"})["peak_allocated_bytes"] == 2
    logged = checked(piped | {"framework": "kempnerforge"})
    assert logged["peak_allocated_bytes"] == 1
    assert logged["assumed"]["stage"] == "first"


def test_reserved_memory_is_no_more_than_there_is_and_less_where_the_plan_says_more():
    question = read_line(LINE | {"framework": "torchtitan"})
    room = question.cluster.gpu.room
    for held in (room // 4, room - 1):
        low, high = reserved_bytes(question.layout, question.cluster, held)
        assert held <= low <= high <= room
    low, high = reserved_bytes(question.layout, question.cluster, room + 1)
    assert low < room < high == room + 1


def test_experts_spread_and_stages_interleave_as_frameworks_have_it():
    mixed = ARCH | {"experts": 16, "moe_ffn": 32}
    assert read_line(LINE | {"framework": "automodel", "arch": mixed}).layout.expert == 8
    assert read_line(LINE | {"framework": "megatron-bridge", "arch": mixed}).layout.expert == 1
    piped = LINE | {"framework": "torchtitan", "pipeline": 2, "micro_batch_size": 1, "global_batch_size": 16}
    assert read_line(piped | {"schedule": "Interleaved 1F1B"}).layout.virtual_stages == 2
    assert read_line(piped | {"schedule": "zero_bubble"}).layout.schedule == "zero-bubble"
    assert not read_line(piped | {"framework": "kempnerforge", "pipeline": 1}).layout.compile
    assert read_line(piped | {"precision": "fp8"}).layout.compile


def test_one_line_that_fails_does_not_cost_the_others_theirs(monkeypatch):
    def broken(layout, cluster):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(answers, "plan_layout", broken)
    assert answer(LINE)["error"] == "this cannot be simulated: RuntimeError('out of\\nluck')"


_SMALL = {"layers": 8, "hidden": 1024, "heads": 8}


@pytest.mark.parametrize(
    ("sizes", "length", "gated"),
    [
        ({"vocab": 128256, "ffn": 4096}, 8192, True),  # Llama 3, of which one has an inner width four times the outer
        ({"vocab": 51200, "ffn": 4096, "positions": 2048}, 2048, False),  # GPT-3
        ({"vocab": 256000, "ffn": 4096}, 4096, False),  # Nemotron
        ({"vocab": 32000, "ffn": 2816}, 4096, True),
    ],
)
def test_what_nemo_trains_where_a_line_does_not_say(sizes, length, gated):
    asked = read_line({"framework": "dgxc-benchmarking", "arch": _SMALL | sizes, "gpus": 8})
    assert (asked.layout.seq, asked.layout.arch.gated) == (length, gated)
    assert asked.assumed["seq"] == length


@pytest.mark.parametrize(
    ("framework", "said", "taken"),
    [
        ("mlperf", "bf16", "bf16-amp"),
        ("bigscience", "fp16", "fp16-amp"),
        ("torchtune", "bf16", "bf16"),
        ("mlperf", "NVFP4", "fp8"),  # on an H100, which has no units for it
        ("mlperf", "mxfp8", "fp8"),
        ("nemo", "bf16-mixed", "bf16-amp"),
        ("megatron-bridge", "FP8_MX", "fp8"),
    ],
)
def test_precisions_in_the_words_of_others(framework, said, taken):
    asked = read_line({"framework": framework, "arch": _SMALL, "precision": said})
    assert asked.layout.precision == taken
    assert ("precision" in asked.assumed) == (said != taken)


def test_fields_in_the_words_of_others():
    line = {"framework": "megatron-bridge", "model": "meta-llama/Llama-3.1-405B", "gpus": 4, "context": 4, "seq": 512}
    asked = read_line(line | {"zero": "ZeRO-1", "context_method": "a2a"}).layout
    assert (asked.arch.layers, asked.zero, asked.context_method) == (126, "zero1", "all-to-all")
    assert read_line(line | {"context_method": "p2p"}).layout.context_method == "ring"


@pytest.mark.parametrize(("said", "named"), [("A100-SXM4-40GB", "a100-40gb"), ("NVIDIA H100 80GB HBM3", "h100-80gb")])
def test_gpus_are_known_by_their_drivers_names(said, named):
    assert read_line({"framework": "nemo", "arch": _SMALL, "gpu": said}).cluster.gpu.name == named


def test_other_chips_of_a_name_are_told_apart():
    known = {"H100 PCIe": "h100-pcie-80gb", "h100-nvl": "h100-nvl-94gb", "H100 SXM": "h100-80gb"}
    for said, named in (known | {"H200 NVL": "h200-nvl-141gb", "H200": "h200-141gb"}).items():
        assert read_line({"framework": "nemo", "arch": _SMALL, "gpu": said}).cluster.gpu.name == named


@pytest.mark.parametrize("said", ["null", "None", False, {"granularity": "null", "method": "null"}])
def test_a_recomputation_that_is_none(said):
    assert read_line({"framework": "mlperf", "arch": _SMALL, "checkpointing": said}).layout.recompute == "none"


def test_gpus_that_lie_on_pcie():
    asked = read_line({"framework": "simumax", "arch": _SMALL, "gpu": "A100-PCIe-80GB", "gpus": 8})
    assert asked.cluster.gpu.name == "a100-80gb"
    assert asked.cluster.inside < read_line({"arch": _SMALL, "gpu": "A100", "gpus": 8}).cluster.inside / 10


@pytest.mark.parametrize(
    ("framework", "said", "loss"),
    [
        ("simumax", True, "te"),
        ("megatron-lm", True, "fused"),
        ("megatron-lm", "te", "te"),
        ("simumax", "native", "fused"),
        ("simumax", False, "in-place"),
    ],
)
def test_whose_fused_loss_a_line_means(framework, said, loss):
    assert read_line({"framework": framework, "arch": _SMALL, "fused_loss": said}).layout.loss == loss


def test_an_unknown_fused_loss_is_refused():
    with pytest.raises(RecipeError, match="fused_loss is 'liger'"):
        read_line({"arch": _SMALL, "fused_loss": "liger"})


def test_the_loss_in_the_place_of_the_logits_takes_less():
    line = {"framework": "megatron-lm", "arch": _SMALL | {"vocab": 65536}, "seq": 4096, "dropout": 0}
    te, usual = (answer(line | {"fused_loss": loss})["peak_allocated_bytes"] for loss in ("te", False))
    logits = 4096 * 65536
    assert 3 * logits < usual - te < 7 * logits  # of FP32 shares, four bytes a logit, and of a gradient, two


def test_stages_of_the_embedding_and_the_head_alone():
    line = {"framework": "nemo", "arch": _SMALL, "gpus": 5, "pipeline": 5, "virtual_stages": 2}
    layout = read_line(line | {"gradient_accumulation_steps": 10}).layout
    assert [len(layers) for layers in layout.stage_layers()] == [0, *[1] * 8, 0]
    with pytest.raises(RecipeError, match="12 stages need at least 10 layers"):
        read_line(line | {"gpus": 6, "pipeline": 6, "gradient_accumulation_steps": 12})


@pytest.mark.parametrize(
    ("gpu", "said", "month", "kernel"),
    [
        ("H100", None, None, "fused"),
        ("H100", None, "2024-03", "flash"),
        ("H100", None, "2024-07", "fused"),
        ("H100", "flash", "2025-01", "flash"),
        ("A100", None, "2024-03", "fused"),
        ("B200", None, "2024-03", "fused"),
    ],
)
def test_the_month_of_a_runs_software_decides_about_attention_on_hopper(gpu, said, month, kernel):
    line = {"framework": "nemo", "arch": _SMALL, "gpu": gpu, "gpus": 8, "attention": said, "software": month}
    assert read_line(line).layout.attention == kernel


def test_old_attention_takes_longer_and_no_other_bytes():
    line = {"framework": "nemo", "arch": _SMALL, "gpu": "H100", "gpus": 8, "seq": 65536}
    old, new = (answer(line | {"software": month}) for month in ("2024-03", "2025-03"))
    assert old["peak_allocated_bytes"] == new["peak_allocated_bytes"]
    assert 1.2 < old["step_seconds"] / new["step_seconds"] < 1.5


@pytest.mark.parametrize("said", ["24.03", "2024-13", "March", 2024])
def test_what_is_no_month_is_refused(said):
    with pytest.raises(RecipeError, match="month of the run's container as YYYY-MM"):
        read_line({"arch": _SMALL, "software": said})
