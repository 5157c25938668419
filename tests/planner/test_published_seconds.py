"""Seconds of eager and of FP32 steps, which others have measured and published.

Nothing is fitted to these: `published_speeds.json` has none of them.
"""

import json

from helpers.planner import Recipe
from helpers.planner.catalog.gpus import GPUS
from helpers.planner.costs import forecasts
from helpers.planner.simulate.deepen import simulate_deep

import pytest

from tests.sampling import sample_with_quick

TIMM = "huggingface/pytorch-image-models, results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv and its NCHW twin"
GUIDE = "huggingface/transformers, docs/source/en/perf_train_gpu_one.md and model_memory_anatomy.md, version 4.27"
VIT_B = {
    "model_type": "vit",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "id2label": {str(label): str(label) for label in range(1000)},
}
BERT_LARGE = {
    "model_type": "bert",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
TRAINED = {"seq": 512, "attention": "eager", "optimizer_impl": "for-loop", "precision": "fp32"}
STEPS = {  # what was run, on which GPU, and seconds of a step: samples in it / samples per second
    "ViT-B, 192 images, FP16": (
        VIT_B,
        {"micro_batch_size": 192, "precision": "fp16-amp", "optimizer": "sgd-momentum", "attention": "eager"},
        "rtx-3090-24gb",
        0.488,
        TIMM,
    ),
    "BERT-large, FP32": (BERT_LARGE, TRAINED | {"micro_batch_size": 4}, "v100-16gb", 4 / 8.86, GUIDE),
    "BERT-large, FP32, accumulated": (
        BERT_LARGE,
        TRAINED | {"gradient_accumulation_steps": 4},
        "v100-16gb",
        4 / 7.75,
        GUIDE,
    ),
    "BERT-large, FP32, accumulated and recomputed": (
        BERT_LARGE,
        TRAINED | {"gradient_accumulation_steps": 4, "checkpointing": "every"},
        "v100-16gb",
        4 / 5.99,
        GUIDE,
    ),
    "BERT-large, FP16": (
        BERT_LARGE,
        TRAINED | {"micro_batch_size": 4, "precision": "fp16-amp"},
        "v100-16gb",
        4 / 18.64,
        GUIDE,
    ),
}


@pytest.mark.parametrize("name", sample_with_quick(list(STEPS), one_in=1, quick_one_in=3))
def test_eager_and_fp32_steps_take_about_as_long_as_published(name, tmp_path):
    """BERT's guide trains a classifier's head; ours for masked words has a tenth more FLOPs."""
    config, recipe, gpu, seconds, _ = STEPS[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    forecast = forecasts(simulate_deep(Recipe(str(path), **recipe)), 0, [GPUS[gpu]])[gpu]
    assert forecast.seconds == pytest.approx(seconds, rel=0.3)
