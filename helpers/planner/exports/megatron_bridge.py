"""Megatron Bridge: the layout as overrides of a recipe's fields, which its run_recipe.py takes as arguments.

Overrides are described at https://docs.nvidia.com/nemo/megatron-bridge/latest/recipe-usage.html; the fields are those
of Megatron Bridge 0.6. They stand on the plain GPT recipe, which is made for this, and state the model's sizes, too.
"""

from ..catalog.rotations import rotation_of
from ..layout.arch import Arch
from ..layout.layout import Layout
from .heading import heading
from .megatron import connections, refusals, uneven_stages, unknown_rotation
from .refusals import graphs, refuse

FILE = "planned.overrides"
COMMAND = f"scripts/training/run_recipe.py --recipe vanilla_gpt_pretrain_config $(grep -v '^#' {FILE})"
Fields = dict[str, bool | float | str | list[int]]
PRECISIONS = {
    "fp32": "null",
    "bf16-amp": "bf16_mixed",
    "fp16-amp": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
}


def text(layout: Layout, model: str, gpu: str) -> str:
    """Return the overrides, one a line, after comments that the command leaves out.

    Raises:
        RecipeError: Megatron Bridge cannot express a part of the layout.
    """
    latent = (bool(layout.arch.kv_lora), "The plain recipe does not support latent attention: use --export megatron.")
    eager = (
        layout.attention == "eager",
        "An override cannot choose Megatron's eager attention: use attention fused, or --export megatron.",
    )
    overlap = (layout.tensor_overlap, "The plain recipe has no tensor_overlap: use --export megatron.")
    refuse([*refusals(layout, "Megatron Bridge"), latent, eager, overlap, graphs(layout)])
    fields = _model(layout.arch) | _layout(layout) | _memory(layout) | _batch(layout)
    rotation = None if layout.arch.positions else rotation_of(model)
    if rotation:
        fields["model.rotary_base"] = rotation.base
    head = [
        heading(layout, model, gpu),
        f"Run on every node: torchrun ... {COMMAND}",
        *connections(layout),
        *unknown_rotation(layout.arch, model),
        *(["Not set here: the scaling of the model's rotary embeddings."] if rotation and rotation.factor else []),
        "The plan does not set the data, the tokenizer, the learning rate or the number of steps: the recipe's apply.",
    ]
    lines = [*(f"# {line}" for line in head), *(f"{name}={_plain(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"


def _plain(value: bool | float | str | list[int]) -> str:
    """Return a value as Hydra reads it; no spaces, as a shell splits at them."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def _model(arch: Arch) -> Fields:
    fields: Fields = {
        "model.num_layers": arch.layers,
        "model.hidden_size": arch.hidden,
        "model.ffn_hidden_size": arch.ffn or arch.moe_ffn,
        "model.num_attention_heads": arch.heads,
        "model.num_query_groups": arch.kv_heads,
        "model.kv_channels": arch.head_dim,
        "model.vocab_size": arch.vocab,
        "tokenizer.vocab_size": arch.vocab,
        "model.should_pad_vocab": False,
        "model.gated_linear_unit": arch.gated,
        "model.activation_func": "silu" if arch.gated else "gelu",
        "model.add_bias_linear": arch.bias,
        "model.share_embeddings_and_output_weights": arch.tied,
        "model.normalization": "LayerNorm" if arch.layer_norm else "RMSNorm",
        "model.position_embedding_type": "learned_absolute" if arch.positions else "rope",
        "model.attention_dropout": 0.0,
        "model.hidden_dropout": 0.0,
    }
    if arch.experts:
        fields |= {
            "model.num_moe_experts": arch.experts,
            "model.moe_router_topk": arch.experts_per_token,
            "model.moe_ffn_hidden_size": arch.moe_ffn,
            "model.moe_layer_freq": [int(arch.is_moe(layer)) for layer in range(arch.layers)],
            "model.moe_grouped_gemm": True,
            "model.moe_token_dispatcher_type": "alltoall",
        }
    if arch.shared_experts:
        fields["model.moe_shared_expert_intermediate_size"] = arch.shared_ffn
    return fields


def _layout(layout: Layout) -> Fields:
    fields: Fields = {
        "model.tensor_model_parallel_size": layout.tensor,
        "model.sequence_parallel": layout.splits_tokens,
        "model.pipeline_model_parallel_size": layout.pipeline,
        "model.context_parallel_size": layout.context,
        "ddp.overlap_grad_reduce": layout.data_overlap,
        "ddp.use_distributed_optimizer": layout.zero == "zero1",
        "optimizer.use_distributed_optimizer": layout.zero == "zero1",
    }
    if uneven := uneven_stages(layout):
        fields["model.pipeline_model_parallel_layout"] = f"'{uneven}'"
    elif layout.virtual_stages > 1:
        fields["model.virtual_pipeline_model_parallel_size"] = layout.virtual_stages
    if layout.context > 1:
        fields["model.cp_comm_type"] = "p2p" if layout.context_method == "ring" else "a2a"
    if layout.arch.experts:
        fields |= {"model.expert_model_parallel_size": layout.expert, "model.expert_tensor_parallel_size": 1}
    if layout.zero == "zero1":
        fields["ddp.overlap_param_gather"] = layout.data_overlap
        fields["ddp.num_distributed_optimizer_instances"] = layout.replicate
    return fields


def _memory(layout: Layout) -> Fields:
    fields: Fields = {"mixed_precision": PRECISIONS[layout.precision]}
    if layout.recompute != "none":
        fields["model.recompute_granularity"] = layout.recompute
    if layout.recompute == "full":
        fields |= {"model.recompute_method": "uniform", "model.recompute_num_layers": 1}
    return fields


def _batch(layout: Layout) -> Fields:
    return {
        "model.seq_length": layout.seq,
        "dataset.seq_length": layout.seq,
        "train.micro_batch_size": layout.micro_batch_size,
        "train.global_batch_size": layout.micro_batch_size * layout.micro_batches * layout.data,
    }
