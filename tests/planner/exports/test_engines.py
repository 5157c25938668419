"""The engines themselves read what is exported, where they are installed; none needs a GPU for it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.planner.exports import FILES, export
from helpers.planner.exports.torchtitan_models import FLAVORS
from helpers.planner.layout.layout import Layout

import pytest

from .cases import ARCHS, BASES, DEEPSEEK, GPT_2, LLAMA_2, LLAMA_8B, LLAMA_70B, MEGATRON, MIXTURE

READERS = Path(__file__).parent


def needs(package: str, how: str):
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    return pytest.mark.skipif(found is None, reason=f"needs {package}: {how}")


def read(layout: Layout, engine: str, folder: Path, *arguments: str) -> dict:
    """Return what the engine reads in the exported file."""
    (folder / FILES[engine]).write_text(export(layout, "the model", engine), encoding="utf-8")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(READERS / f"read_{engine}.py"), str(layout.ranks), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# -- torchtitan

SPLITS = {
    "FSDP": Layout(LLAMA_8B, shard=8, micro_batch_size=2, micro_batches=4),
    "HSDP, tensor, a Llama of other sizes": Layout(
        LLAMA_2, shard=4, tensor=2, replicate=2, recompute="selective", compile=False, reshard_after_forward=False
    ),
    "interleaved": Layout(
        LLAMA_70B,
        tensor=8,
        pipeline=4,
        shard=2,
        micro_batches=8,
        virtual_stages=2,
        schedule="interleaved",
        recompute="full",
        seq=8192,
    ),
    "1F1B, uneven": Layout(LLAMA_8B, pipeline=3, micro_batches=3, precision="fp32", compile=False),
    "GPipe": Layout(LLAMA_8B, pipeline=2, micro_batches=4, schedule="gpipe", precision="bf16"),
    "zero bubble": Layout(
        LLAMA_8B,
        pipeline=2,
        shard=2,
        micro_batches=4,
        virtual_stages=2,
        schedule="zero-bubble",
        reshard_after_forward=False,
    ),
    "DDP": Layout(LLAMA_8B, shard=2, replicate=2, zero="none"),
    "experts": Layout(MIXTURE, shard=8, expert=8),
    "latent attention": Layout(DEEPSEEK, shard=8, expert=4),
}
CLASSES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"} | {
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
}
needs_torchtitan = needs("torchtitan", "pip install torchtitan")


@needs_torchtitan
@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_torchtitan_splits_the_model_as_planned(name, tmp_path):
    layout = SPLITS[name]
    told = read(layout, "torchtitan", tmp_path, "split")
    micro_batches = layout.micro_batches if layout.pipeline > 1 else 1
    sequences = layout.tokens // layout.seq
    assert told["batch"] == [layout.micro_batch_size * micro_batches, sequences, layout.seq]
    assert told["compile"] == layout.compile
    assert (
        told["recompute"]
        == {"none": "NoneType", "selective": "SelectiveAC.Config", "full": "FullAC.Config"}[layout.recompute]
    )
    assert told["dtypes"] == [
        "bfloat16" if layout.precision == "bf16" else "float32",
        "float32" if layout.precision == "fp32" else "bfloat16",
    ]
    assert told["blocks"] == [len(layers) for layers in layout.stage_layers()][:: layout.pipeline]
    if layout.pipeline > 1:
        assert told["schedule"] == [CLASSES[layout.schedule], layout.micro_batches]
    # Norms of latents and of heads are torchtitan's own; they are thousandths of a per cent.
    assert told["parameters"] == pytest.approx(layout.arch.count(), rel=1e-6)
    if layout.pipeline == 1:
        shards = layout.shard * layout.tensor if layout.zero == "zero3" else 1
        assert told["mine"] == pytest.approx(told["parameters"] / shards, rel=1e-4)


@needs_torchtitan
@pytest.mark.slow
def test_torchtitan_reads_fp8(tmp_path):
    assert read(Layout(LLAMA_8B, shard=8, precision="fp8"), "torchtitan", tmp_path, "fp8")["compile"]


@needs_torchtitan
@pytest.mark.slow
@pytest.mark.parametrize("flavor", ARCHS, ids="-".join)
def test_torchtitan_knows_models_of_these_sizes(flavor, tmp_path):
    arch = ARCHS[flavor]
    assert FLAVORS[arch].name == flavor[1]
    told = read(Layout(arch, shard=8), "torchtitan", tmp_path, "split")
    assert told["parameters"] == pytest.approx(arch.count(), rel=2e-6 if flavor[0] == "llama3" else 3e-5)


# -- Megatron

ARGUMENTS = {
    "uneven stages": Layout(
        LLAMA_70B,
        tensor=8,
        pipeline=4,
        shard=2,
        replicate=2,
        micro_batches=8,
        virtual_stages=3,
        schedule="interleaved",
        recompute="full",
        **MEGATRON,
    ),
    "context, FP8": Layout(LLAMA_70B, tensor=4, context=2, shard=2, precision="fp8", recompute="selective", **MEGATRON),
    "all-to-all": Layout(LLAMA_8B, context=2, context_method="all-to-all", shard=2, **MEGATRON),
    "latent attention and experts": Layout(DEEPSEEK, tensor=2, shard=16, expert=32, **MEGATRON),
    "GPT-2, eager": Layout(
        GPT_2, seq=1024, shard=8, engine="megatron", zero="none", precision="fp16-amp", attention="eager"
    ),
}


@needs("megatron.training", "pip install megatron-core, with Python 3.12")
@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_megatron_accepts_the_arguments(name, tmp_path):
    layout = ARGUMENTS[name]
    arch = layout.arch
    told = read(layout, "megatron", tmp_path)
    assert told["data_parallel_size"] == layout.data
    assert told["tensor_model_parallel_size"] == layout.tensor
    assert told["pipeline_model_parallel_size"] == layout.pipeline
    assert told["virtual_pipeline_model_parallel_size"] == (layout.virtual_stages if layout.pipeline > 1 else None)
    assert told["context_parallel_size"] == layout.context
    assert told["expert_model_parallel_size"] == layout.expert
    assert told["sequence_parallel"] == layout.splits_tokens
    assert told["global_batch_size"] == layout.tokens // layout.seq
    assert told["seq_length"] == layout.seq
    assert told["num_layers"] == arch.layers
    assert told["swiglu"] == arch.gated
    eager = layout.attention == "eager"
    assert told["attention_backend"] == ("AttnBackend.unfused" if eager else "AttnBackend.auto")
    assert told["attention_dropout"] == (0.1 if eager else 0)
    assert told["recompute_granularity"] == (layout.recompute if layout.recompute != "none" else None)
    assert (told["bf16"], told["fp16"]) == (layout.precision != "fp16-amp", layout.precision == "fp16-amp")
    assert bool(told["fp8"]) == (layout.precision == "fp8")
    if arch.experts:
        assert told["moe_layer_freq"] == [int(arch.is_moe(layer)) for layer in range(arch.layers)]
    if layout.context > 1:
        assert told["cp_comm_type"] == ["p2p" if layout.context_method == "ring" else "a2a"]


# -- DeepSpeed


@needs("deepspeed", "make install-deepspeed")
@pytest.mark.slow
@pytest.mark.parametrize("zero", ["none", "zero1", "zero2", "zero3"])
def test_deepspeed_reads_its_json(zero, tmp_path):
    layout = Layout(LLAMA_8B, shard=4, micro_batch_size=2, micro_batches=8, zero=zero)
    told = read(layout, "deepspeed", tmp_path)
    assert told["stage"] == ("none", "zero1", "zero2", "zero3").index(zero)
    assert (told["ranks"], told["batch"]) == (4, [2, 8, 64])
    assert told["autocast"] == [True, "torch.bfloat16"]
    assert (told["bf16"], told["clip"]) == (False, 1.0)


@needs("deepspeed", "make install-deepspeed")
@pytest.mark.slow
def test_deepspeed_reads_its_masters(tmp_path):
    told = read(Layout(LLAMA_8B, shard=4, **MEGATRON), "deepspeed", tmp_path)
    assert told["bf16"]
    assert not told["autocast"][0]


def test_each_engine_is_read():
    assert {path.stem.removeprefix("read_") for path in READERS.glob("read_*.py")} < set(BASES)
