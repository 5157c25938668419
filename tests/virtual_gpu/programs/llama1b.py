import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
c = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
    use_cache=False,
)
with torch.device("cuda"):
    m = LlamaForCausalLM(c).bfloat16()
m.gradient_checkpointing_enable()
m.train()
o = torch.optim.AdamW(m.parameters(), lr=1e-5)
for _ in range(8):
    x = torch.randint(0, 128256, (2, 2048), device="cuda")
    m(input_ids=x, labels=x).loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    o.zero_grad()
