"""Peaks that Megatron-LM with Transformer Engine allocated, to the byte, beside what `plan --rows` says of them.

The rows are functional tests of Megatron-LM (the last rank's peak) and the runs by which SimuMax was validated. Facts
alone are kept here: arguments and bytes.
"""

from helpers.planner.config import RecipeError
from helpers.planner.importers.megatron import row_of
from helpers.planner.layout.schedule import interleaved
from helpers.planner.rows.answers import answer
from helpers.planner.rows.line import read_line

import pytest

from ..sampling import sample
from .megatron_rows import PAGE, ROWS, line


@pytest.mark.slow
@pytest.mark.parametrize("each", sample(ROWS, one_in=4), ids=lambda each: each["row"]["id"])
def test_a_peak_is_met_within_a_percent(each):
    found = answer(each["row"])
    assert found["error"] is None
    assert found["peak_allocated_bytes"] == pytest.approx(each["peak_bytes"], rel=0.01)
    assert line(each, found["peak_allocated_bytes"]) in PAGE.read_text("utf-8"), (
        "run python -m tests.planner.megatron_rows"
    )


def test_what_dropout_masks_and_dummies_take():
    small = {
        "framework": "megatron-lm",
        "arch": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1024, "positions": 512},
        **{"gpus": 1, "seq": 512, "gradient_accumulation_steps": 2, "checkpointing": "none", "compile": False},
    }

    def peak(**changes):
        found = answer(small | changes)
        assert found["error"] is None
        return found["peak_allocated_bytes"]

    tokens = 512 * 256
    assert peak() - peak(dropout=0) == 5 * tokens  # after the embedding, and twice in each block
    assert peak() - peak(attention_mask=False) == 512 * 512
    weights = 3 * 256 * 256 + 256 * 256 + 2 * 4 * 256 * 256  # of the four distinct shapes
    assert peak() - peak(wgrad_fusion=False) == 2 * weights
    assert peak(stage="first", deterministic=True) - peak(stage="first") == 0  # an H100 has as much anyway


def test_the_options_of_megatron_take_what_they_take():
    small = {
        "framework": "megatron-lm",
        "arch": {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 8192, "positions": 512},
        **{"gpus": 2, "pipeline": 2, "seq": 512, "gradient_accumulation_steps": 4, "virtual_stages": 1},
        **{"checkpointing": "none", "compile": False, "wgrad_fusion": False, "dropout": 0, "attention": "unfused"},
    }

    def peak(**changes):
        found = answer(small | changes)
        assert found["error"] is None
        return found["peak_allocated_bytes"]

    tokens, vocab, weights = 512, 8192, 4 * 256**2 + 2 * 4 * 256**2
    biases, norms = 9 * 256, 4 * 256
    held = 2 * (weights + biases + norms) + 2 * 256 + 256 * vocab  # of the last stage
    # Beside the logits' gradients wait the norm's output, and the stage's input and its gradient, where its graph ends.
    logits = tokens * (vocab + 3 * 256) * 2
    assert peak(deferred_logits=1) - peak() == logits
    assert peak(deferred_logits=-1) - peak() == 3 * logits  # those of the last micro-batch are there anyway
    fused = peak(deferred_logits=1, wgrad_fusion=True) - peak(wgrad_fusion=True)
    assert fused - logits == 256 * vocab * 2  # the head's dummy gradient
    assert peak(fused_loss=True) - peak() == tokens * vocab * 4  # its exponentials are not in place
    assert peak() - peak(wide_gradients=False) == pytest.approx(2 * held, abs=512)
    scores = 4 * 512 * 512 * 2  # one buffer for all blocks, and no workspace of Transformer Engine
    assert peak(transformer_impl="local") - peak() == scores - 32 * 2**20
    wide = 2 * 4 * 512 * 512 * (4 - 2)  # the attention probabilities of the last stage's blocks, in FP32
    assert peak(softmax_fusion=False) - peak() == pytest.approx(wide, abs=4 * 512 * 512 * 4)
    normed = peak(arch=small["arch"] | {"qk_norm": True}) - peak()
    assert normed > 2 * 2 * tokens * 256 * 2  # queries and keys of two blocks, as they are and normed


def test_normed_queries_leave_the_result_of_cudnns_attention_in_the_order_of_the_tokens():
    arch = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 512, "positions": 512, "qk_norm": True}
    row = {"framework": "megatron-lm", "arch": arch, "gpu": "h100", "gpus": 1, "seq": 512, "micro_batch_size": 2}
    row |= {"gradient_accumulation_steps": 1, "checkpointing": "none", "compile": False, "dropout": 0}
    peaks = {name: answer(row | {"attention": name})["peak_allocated_bytes"] for name in ("cudnn", "flash")}
    assert peaks["flash"] - peaks["cudnn"] == 2 * 2 * 512 * 256 * 2  # one copy of each block's result


def test_stages_have_the_blocks_that_the_arguments_give_them():
    given = {"num-layers": "12", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "32", "bf16": "true"}
    given |= {"pipeline-model-parallel-size": "4", "global-batch-size": "8"}

    def sizes(**arguments):
        row, unknown = row_of(given | {name.replace("_", "-"): value for name, value in arguments.items()}, 4, "a100")
        assert unknown == []
        return [len(blocks) for blocks in read_line(row).layout.stage_layers()]

    ends = {"decoder_first_pipeline_num_layers": "2", "decoder_last_pipeline_num_layers": "4"}
    assert sizes() == [3, 3, 3, 3]
    assert sizes(**ends) == [2, 3, 3, 4]
    assert sizes(decoder_first_pipeline_num_layers="6") == [6, 2, 2, 2]
    counted = {"account_for_embedding_in_pipeline_split": "true", "num_layers": "14"}
    assert sizes(**counted, account_for_loss_in_pipeline_split="true") == [3, 4, 4, 3]
    assert sizes(**counted | {"num_layers": "15"}) == [3, 4, 4, 4]
    assert sizes(**counted, pipeline_model_parallel_size="1") == [14]
    twice = {"num_virtual_stages_per_pipeline_rank": "2", "num_layers": "16"}
    assert sizes(**twice, decoder_first_pipeline_num_layers="4") == [2] * 8
    assert sizes(**twice, **ends | {"decoder_last_pipeline_num_layers": "2"}) == [1, 3, 3, 1, 1, 3, 3, 1]
    assert sizes(pipeline_model_parallel_layout="Et*2|(t*3|)*2t*4L") == [2, 3, 3, 4]
    assert sizes(pipeline_model_parallel_layout="Et*4|(t*4|)*2mL", mtp_num_layers="1") == [4, 4, 4, 0]
    for arguments, words in (
        ({"decoder_first_pipeline_num_layers": "1"}, "cannot be divided"),
        ({"pipeline_model_parallel_layout": "Et*3|t*3|t*3m|t*3L"}, "with m beside L"),
        ({"pipeline_model_parallel_layout": "t*3|Et*3|t*3|t*3L"}, "go from E"),
        ({"pipeline_model_parallel_layout": "Et*3|t*3|t*3|t*2L"}, "a sum of 12 layers"),
        ({"pipeline_model_parallel_layout": "Et*999999999999|t*3L"}, "go from E"),
    ):
        with pytest.raises(RecipeError, match=words):
            sizes(**arguments)


def test_groups_of_micro_batches_are_those_of_megatron():
    """Its own example (`get_schedule_table`): two ranks, groups of three, five micro-batches, two stages a rank."""
    passes = [(action.stage // 2, action.micro_batch) for action in interleaved(0, 2, 2, 5, 3) if action.kind == "F"]
    assert passes == list(zip([0, 0, 0, 1, 1, 1, 0, 0, 1, 1], [0, 1, 2, 0, 1, 2, 3, 4, 3, 4], strict=True))
    row = {"framework": "megatron-lm", "model": "llama-3.2-1b", "gpus": 2, "pipeline": 2, "virtual_stages": 2}
    assert "leave a group" in answer(row | {"gradient_accumulation_steps": 4, "micro_batch_group": 3})["error"]
    assert "at least the 2" in answer(row | {"gradient_accumulation_steps": 4, "micro_batch_group": 1})["error"]


def test_attention_is_the_one_that_transformer_engine_picks():
    row = {"framework": "megatron-lm", "model": "llama-3.2-1b", "gpus": 1}
    for gpu, said, picked in (
        ("h100", "fused", "cudnn"),
        ("h100", "flash", "flash"),
        ("a100", "fused", "fused"),
        ("b200", "fused", "fused"),
        ("a100", "unfused", "eager"),
    ):
        assert read_line(row | {"gpu": gpu, "attention": said}).layout.attention == picked


def test_arguments_are_read_or_named():
    given = {"num-layers": "2", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "32", "bf16": "true"}
    row, unknown = row_of(given | {"lr": "1e-4", "squared-relu": "true"}, 1, "a100")
    assert unknown == ["squared-relu"]
    assert answer(row)["error"] is None
    assert row_of(given | {"expert-tensor-parallel-size": "1"}, 1, "a100")[1] == []  # of no experts
    with pytest.raises(RecipeError, match="--hidden-size is missing"):
        row_of({"num-layers": "2"}, 1, "a100")
    with pytest.raises(RecipeError, match="must be a whole number"):
        row_of(given | {"seq-length": "long"}, 1, "a100")
    with pytest.raises(RecipeError, match="one by one"):
        row_of(given | {"recompute-granularity": "full", "recompute-num-layers": "2"}, 1, "a100")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("stage", "middle", "fullest, first or last"),
        ("dropout", 1.5, "less than 1"),
        ("transformer_impl", "mine", "or local"),
    ],
)
def test_nonsense_is_refused(field, value, words):
    row = {"framework": "megatron-lm", "model": "llama-3.2-1b", "gpus": 1, field: value}
    assert words in answer(row)["error"]
