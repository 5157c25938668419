import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

c = LlamaConfig(
    hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, use_cache=False
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    m = LlamaForCausalLM(c)
torch.set_default_dtype(torch.float32)
m = get_peft_model(m, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
m.enable_input_require_grads()
m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
m.train()
o = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-4)
for _ in range(8):
    x = torch.randint(0, 32000, (2, 1024), device="cuda")
    m(input_ids=x, labels=x).loss.backward()
    o.step()
    o.zero_grad()
