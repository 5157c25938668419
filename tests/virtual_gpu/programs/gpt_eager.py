import torch
from transformers import GPT2Config, GPT2LMHeadModel

m = GPT2LMHeadModel(GPT2Config(use_cache=False, attn_implementation="eager")).cuda().train()
o = torch.optim.AdamW(m.parameters(), 1e-4)
for _ in range(8):
    x = torch.randint(0, 50257, (8, 512), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = m(input_ids=x, labels=x).loss
    loss.backward()
    o.step()
    o.zero_grad()
