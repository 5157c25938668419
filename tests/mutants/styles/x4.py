"""Right answers to parts of X4."""

LAYER, ADAPTER, PLAN, TUNE = "x4.layer", "x4.adapter", "x4.plan", "x4.finetune"

STYLES = {
    "a hook on the linear layer": (LAYER, """
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        for p in linear.parameters():
            p.requires_grad_(False)
        self.base, self.drop, self.ratio, self.on = linear, nn.Dropout(dropout), alpha / rank, True
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features).normal_(std=0.02))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        linear.register_forward_hook(self.correct)

    def correct(self, _, args, output):
        if self.on:
            return output + self.drop(args[0]) @ self.down.T @ self.up.T * self.ratio

    def forward(self, x):
        return self.base(x)

    def toggle(self, sign):
        with torch.no_grad():
            self.base.weight.addmm_(self.up, self.down, alpha=sign * self.ratio)
        self.on = not self.on

    def merge(self):
        if self.on:
            self.toggle(1)

    def unmerge(self):
        if not self.on:
            self.toggle(-1)
"""),
    "einsum": (LAYER, """
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear, self.p, self.scale, self.merged = linear, dropout, alpha / rank, False
        linear.weight.requires_grad = False
        if linear.bias is not None:
            linear.bias.requires_grad = False
        like = dict(device=linear.weight.device, dtype=linear.weight.dtype)
        self.A = nn.Parameter(torch.randn(rank, linear.in_features, **like) / rank**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))

    def forward(self, x):
        y = self.linear(x)
        if self.merged:
            return y
        dropped = F.dropout(x, self.p, training=self.training)
        return y + self.scale * torch.einsum("...i,ri,or->...o", dropped, self.A, self.B)

    def merge(self):
        if not self.merged:
            self.linear.weight.data += self.scale * torch.einsum("or,ri->oi", self.B.data, self.A.data)
        self.merged = True

    def unmerge(self):
        if self.merged:
            self.linear.weight.data -= self.scale * torch.einsum("or,ri->oi", self.B.data, self.A.data)
        self.merged = False
"""),
    "a subclass of nn.Linear that shares the weight": (LAYER, """
class LoRALinear(nn.Linear):
    def __init__(self, linear, rank, alpha, dropout):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.lora = nn.ParameterDict({
            "A": nn.init.xavier_normal_(torch.empty_like(linear.weight[:1]).repeat(rank, 1)),
            "B": torch.zeros_like(linear.weight[:, :1]).repeat(1, rank),
        })
        self.alpha, self.rank, self.drop, self.state = alpha, rank, nn.Dropout(dropout), "apart"

    @property
    def delta(self):
        return self.lora["B"] @ self.lora["A"] * self.alpha / self.rank

    def forward(self, x):
        y = super().forward(x)
        return y if self.state == "merged" else y + self.drop(x) @ self.delta.mT

    @torch.no_grad()
    def merge(self):
        if self.state == "apart":
            self.weight.add_(self.delta)
            self.state = "merged"

    @torch.no_grad()
    def unmerge(self):
        if self.state == "merged":
            self.weight.sub_(self.delta)
            self.state = "apart"
"""),
    "a sequence of two layers": (LAYER, """
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear = linear
        linear.requires_grad_(False)
        down = nn.Linear(linear.in_features, rank, bias=False)
        up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.path = nn.Sequential(nn.Dropout(dropout), down, up).to(linear.weight.device, linear.weight.dtype)
        self.register_buffer("scale", torch.tensor(alpha / rank, dtype=linear.weight.dtype, device=linear.weight.device))
        self.delta = None

    def forward(self, x):
        return self.linear(x) + (self.scale * self.path(x) if self.delta is None else 0)

    def merge(self):
        if self.delta is None:
            with torch.no_grad():
                self.delta = self.scale * self.path[2].weight @ self.path[1].weight
                self.linear.weight += self.delta

    def unmerge(self):
        if self.delta is not None:
            with torch.no_grad():
                self.linear.weight -= self.delta
            self.delta = None
"""),
    "a function of its own with a hand-written backward pass": (LAYER, """
class Correction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, A, B, scale):
        h = x @ A.T
        ctx.save_for_backward(x, A, B, h)
        ctx.scale = scale
        return scale * h @ B.T

    @staticmethod
    def backward(ctx, grad):
        x, A, B, h = ctx.saved_tensors
        flat = grad.flatten(0, -2) * ctx.scale
        gh = flat @ B
        return (gh @ A).view_as(x), gh.T @ x.flatten(0, -2), flat.T @ h.flatten(0, -2), None


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        w = linear.weight
        self.A = nn.Parameter(torch.rand(rank, w.shape[1], dtype=w.dtype, device=w.device) - 0.5)
        self.B = nn.Parameter(torch.zeros(w.shape[0], rank, dtype=w.dtype, device=w.device))
        self.dropout, self.scale, self.times = nn.Dropout(dropout), alpha / rank, 0

    def forward(self, x):
        y = self.linear(x)
        return y if self.times else y + Correction.apply(self.dropout(x), self.A, self.B, self.scale)

    @torch.no_grad()
    def merge(self):
        self.linear.weight += (1 - self.times) * self.scale * self.B @ self.A
        self.times = 1

    @torch.no_grad()
    def unmerge(self):
        self.linear.weight -= self.times * self.scale * self.B @ self.A
        self.times = 0
"""),
    "a mask by hand": (LAYER, """
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.add_module("linear", linear.requires_grad_(False))
        self.A = nn.Parameter(torch.zeros(rank, linear.in_features).to(linear.weight))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank).to(linear.weight))
        nn.init.orthogonal_(self.A)
        self.rank, self.alpha, self.p, self.original = rank, alpha, dropout, None

    def forward(self, x):
        y = self.linear(x)
        if self.original is None:
            if self.training and self.p > 0:
                x = x * (torch.rand_like(x) >= self.p) / (1 - self.p)
            y = y + (x @ self.A.t()) @ self.B.t() * (self.alpha / self.rank)
        return y

    @torch.no_grad()
    def merge(self):
        if self.original is None:
            self.original = self.linear.weight.clone()
            self.linear.weight.copy_(self.original + self.alpha / self.rank * (self.B @ self.A))

    @torch.no_grad()
    def unmerge(self):
        if self.original is not None:
            self.linear.weight.copy_(self.original)
            self.original = None
"""),
    "targets by a pattern": (ADAPTER, """
def adapter_config(rank):
    return LoraConfig("CAUSAL_LM", r=rank, lora_alpha=rank + rank, lora_dropout=0.05,
                      target_modules=r".*\\.(self_attn|mlp)\\.[a-z]+_proj")
"""),
    "a set of targets, counted on the meta device": (ADAPTER, """
def adapter_config(rank):
    names = {f"{which}_proj" for which in "q k v o gate up down".split()}
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names, lora_dropout=5e-2, bias="none", task_type="CAUSAL_LM")


def trained_parameters(config, rank):
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    linear = [m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    return rank * sum(m.in_features + m.out_features for m in linear)
"""),
    "counted shape by shape": (ADAPTER, """
def trained_parameters(config, rank):
    h, d = config.hidden_size, config.head_dim
    shapes = [(h, d * config.num_attention_heads), (d * config.num_attention_heads, h)]
    shapes += 2 * [(h, d * config.num_key_value_heads)]
    shapes += 3 * [(h, config.intermediate_size)]
    total = 0
    for _ in range(config.num_hidden_layers):
        for rows, columns in shapes:
            total += rank * rows + columns * rank
    return total
"""),
    "two long sequences": (PLAN, """
def fine_tune_plan():
    import dataclasses

    first = Recipe("llama-2-7b", lora_rank=16, lora_targets=("v_proj", "o_proj", "q_proj", "k_proj"), checkpointing="every")
    return dataclasses.replace(first, micro_batch_size=2, seq=4096, gradient_accumulation_steps=16)
"""),
    "the layer of part 1 in the place of each linear layer": (TUNE, """
def fine_tune(base, batches):
    base.requires_grad_(False)
    for block in base.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, LoRALinear(child, 8, 16, 0.05))
    base.train()
    optimizer = torch.optim.AdamW([p for p in base.parameters() if p.requires_grad], lr=1e-2)
    for ids in batches:
        optimizer.zero_grad()
        logits = base(input_ids=ids).logits
        F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)).backward()
        optimizer.step()
    return base.eval()


def merged_model(model):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                child.merge()
                setattr(parent, name, child.linear.requires_grad_(True))
    return model
"""),
    "warm-up and clipping": (TUNE, """
def fine_tune(base, batches):
    model = get_peft_model(base, adapter_config(8))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.5e-2, betas=(0.9, 0.95), weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    for ids in batches:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        warm.step()
        for p in trained:
            p.grad = None
    model.eval()
    return model
"""),
    "foreach off, two groups": (TUNE, """
def fine_tune(base, batches):
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in named if key in n], "lr": lr} for key, lr in (("lora_A", 5e-3), ("lora_B", 2e-2))]
    optimizer = torch.optim.AdamW(groups, foreach=False)
    model.train()
    for ids in batches:
        optimizer.zero_grad()
        grads = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, [p for _, p in named])
        for (_, p), g in zip(named, grads):
            p.grad = g
        optimizer.step()
    return model.eval()
"""),
}  # fmt: skip
