import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("nccl")
torch.cuda.set_device(0)
m = torch.nn.parallel.DistributedDataParallel(GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda(), device_ids=[0])
o = torch.optim.AdamW(m.parameters(), 1e-4)
for _ in range(8):
    x = torch.randint(0, 50257, (8, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = m(input_ids=x, labels=x).loss
    loss.backward()
    o.step()
    o.zero_grad(set_to_none=False)
