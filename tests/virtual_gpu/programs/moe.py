import torch
from transformers import MixtralConfig, MixtralForCausalLM

with torch.device("cuda"):
    m = (
        MixtralForCausalLM(
            MixtralConfig(
                hidden_size=1024,
                intermediate_size=3584,
                num_hidden_layers=8,
                num_attention_heads=16,
                num_key_value_heads=8,
                use_cache=False,
            )
        )
        .bfloat16()
        .train()
    )
o = torch.optim.AdamW(m.parameters(), 1e-4, foreach=False)
for _ in range(8):
    x = torch.randint(0, 32000, (4, 1024), device="cuda")
    m(input_ids=x, labels=x).loss.backward()
    o.step()
    o.zero_grad()
