"""Small models whose layouts are run whole, or by real ranks."""

from dataclasses import replace

from helpers.planner.layout.arch import Arch
from helpers.planner.layout.layout import Layout

DENSE = Arch(layers=8, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=96, vocab=128)
GROUPED = replace(DENSE, kv_heads=2)
GPT = replace(DENSE, gated=False, tied=True, bias=True, layer_norm=True, positions=64)
MIXED = replace(DENSE, experts=8, experts_per_token=2, shared_experts=1, moe_ffn=32, dense_layers=1)
LATENT = replace(DENSE, q_lora=32, kv_lora=24, rope_dim=8, value_dim=8)


def layout(arch=DENSE, **changes):
    """A layout with small sizes; what is eager here is eager in the ranks' real run, too."""
    return Layout(arch, **({"seq": 32, "compile": False} | changes))
