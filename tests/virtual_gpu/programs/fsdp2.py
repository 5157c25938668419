import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("nccl")
torch.cuda.set_device(0)
m = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)).cuda()
p = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for b in m.transformer.h:
    fully_shard(b, mp_policy=p)
fully_shard(m, mp_policy=p)
o = torch.optim.AdamW(m.parameters(), 1e-4)
for _ in range(8):
    x = torch.randint(0, 50257, (4, 1024), device="cuda")
    m(input_ids=x, labels=x).loss.backward()
    o.step()
    o.zero_grad()
