"""Wrong and right answers for X4."""

from . import Mutant, one

LAYER, ADAPTER, PLAN, TUNE = "x4.layer", "x4.adapter", "x4.plan", "x4.finetune"
STARTS, CORRECTS, MERGES = "starts_as_the_base", "corrects_by_alpha_over_rank", "merges_once"
SITS, COUNTED = "adapter_sits_where_it_should", "count_is_predicted"
FITS, ROOM = "plan_fits", "plan_uses_the_room"
LEARNS, FROZEN, MERGED = "learns_the_new_text", "base_is_frozen", "merged_is_equal"

# Words of the reference that mutants replace.
ZERO = "nn.Parameter(torch.zeros(linear.out_features, rank, **like))"
OUT = "return y + self.scale * F.linear(F.linear(self.dropout(x), self.A), self.B)"
TRAINED = "[p for p in model.parameters() if p.requires_grad]"
STEP = "        optimizer.step()\n        optimizer.zero_grad()\n    return model.eval()"
CONFIG = "r=rank, lora_alpha=2 * rank, lora_dropout=0.05,"
INIT = "nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))"
ADD = "self.linear.weight += self.scale * (self.B @ self.A)"
TAKE_OUT = "self.linear.weight -= self.scale * (self.B @ self.A)"
MERGE = f"        if not self.is_merged:\n            {ADD}\n            self.is_merged = True\n"
UNMERGE = f"        if self.is_merged:\n            {TAKE_OUT}\n            self.is_merged = False\n"
COUNT = "return config.num_hidden_layers * rank * (q_and_o + k_and_v + mlp)"

MUTANTS = [
    # the layer
    one("B not zero", LAYER, STARTS, ZERO, ZERO.replace("zeros", "randn")),
    one("A and B both zero", LAYER, STARTS, "nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))", "nn.init.zeros_(self.A)"),
    one("all rows of A alike", LAYER, STARTS, "nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))", "nn.init.ones_(self.A)"),
    one("base not frozen", LAYER, STARTS, "linear.requires_grad_(False)", "linear"),
    one("bias not frozen", LAYER, STARTS, "linear.requires_grad_(False)", "linear\n        linear.weight.requires_grad_(False)"),
    one("FP32 whatever the layer", LAYER, STARTS, '"dtype": linear.weight.dtype', '"dtype": torch.float32'),
    one("dropout in front of the base", LAYER, STARTS, "y = self.linear(x)", "y = self.linear(self.dropout(x))"),
    one("alpha ignored", LAYER, CORRECTS, "self.scale = alpha / rank", "self.scale = 1 / rank"),
    one("rank ignored", LAYER, CORRECTS, "self.scale = alpha / rank", "self.scale = alpha"),
    one("alpha over the root of rank", LAYER, CORRECTS, "self.scale = alpha / rank", "self.scale = alpha / math.sqrt(rank)"),
    one("dropout at all times", LAYER, CORRECTS, "self.dropout(x)", "F.dropout(x, self.dropout.p)"),
    one("no dropout", LAYER, CORRECTS, "self.dropout(x)", "x"),
    one("dropout of 0.1 for all", LAYER, CORRECTS, "nn.Dropout(dropout)", "nn.Dropout(0.1)"),
    one("dropout behind A", LAYER, CORRECTS, "F.linear(F.linear(self.dropout(x), self.A), self.B)", "F.linear(self.dropout(F.linear(x, self.A)), self.B)"),
    one("dropout without 1 / (1 - p)", LAYER, CORRECTS, "self.dropout(x)", "(self.dropout(x) * (1 - self.dropout.p) if self.training else x)"),
    one("merged, and trained from now on", LAYER, MERGES, "            self.linear.weight += self.scale * (self.B @ self.A)\n", "            self.linear.weight = nn.Parameter(self.linear.weight + self.scale * (self.B @ self.A))\n"),
    one("merged in evaluation only", LAYER, MERGES, "        if self.is_merged:\n            return y\n", "        if self.is_merged and not self.training:\n            return y\n"),
    one("A without gradient", LAYER, CORRECTS, OUT, OUT.replace("self.A", "self.A.detach()")),
    one("merge twice", LAYER, MERGES, "        if not self.is_merged:\n            self.linear.weight += self.scale * (self.B @ self.A)\n            self.is_merged = True",
        "        self.linear.weight += self.scale * (self.B @ self.A)\n        self.is_merged = True"),
    one("merged and added again", LAYER, MERGES, "        if self.is_merged:\n            return y\n", ""),
    one("scale forgotten in the merge", LAYER, MERGES, "self.linear.weight += self.scale * (self.B @ self.A)", "self.linear.weight += self.B @ self.A"),
    one("unmerge does nothing", LAYER, MERGES, "            self.linear.weight -= self.scale * (self.B @ self.A)\n", ""),
    one("merge clears B", LAYER, MERGES, "            self.is_merged = True\n", "            self.is_merged = True\n            self.B.data.zero_()\n"),
    one("unmerge without a look", LAYER, MERGES, "        if self.is_merged:\n            self.linear.weight -=", "        if True:\n            self.linear.weight -="),
    one("freezes a bias that need not be there", LAYER, STARTS, "self.linear = linear.requires_grad_(False)",
        "self.linear = linear\n        linear.weight.requires_grad = False\n        linear.bias.requires_grad = False", raises="NoneType"),
    one("a copy is wrapped", LAYER, STARTS, "linear.requires_grad_(False)", "copy.deepcopy(linear).requires_grad_(False)"),
    one("A has a row too few", LAYER, STARTS, "torch.empty(rank, linear", "torch.empty(rank - 1, linear"),
    one("B at a hundredth", LAYER, STARTS, ZERO, ZERO.replace("torch.zeros(linear.out_features, rank, **like)", "torch.full((linear.out_features, rank), 0.01, **like)")),
    one("the whole correction cut off", LAYER, STARTS, OUT, "return y + self.scale * F.linear(F.linear(self.dropout(x), self.A), self.B).detach()"),
    one("no gradient at all", LAYER, CORRECTS, "    def forward(self, x):\n", "    @torch.no_grad()\n    def forward(self, x):\n"),
    one("no gradient for the input", LAYER, CORRECTS, "self.dropout(x)", "self.dropout(x.detach())"),
    one("transposes all dimensions", LAYER, CORRECTS, OUT, "return y + self.scale * (self.B @ self.A @ self.dropout(x).flatten(0, -2).T).T", raises="size of tensor"),
    one("rows in one long list", LAYER, CORRECTS, "y = self.linear(x)", "x = x.flatten(0, -2)\n        y = self.linear(x)"),
    one("correction subtracted", LAYER, CORRECTS, OUT, OUT.replace("y +", "y -")),
    one("the bias twice", LAYER, CORRECTS, OUT, OUT.replace("return y", "return y + (0 if self.linear.bias is None else self.linear.bias)")),
    one("one mask for all rows", LAYER, CORRECTS, "self.dropout(x)", "(x * self.dropout(torch.ones_like(x[:1, :1])))"),
    one("whole rows dropped", LAYER, CORRECTS, "self.dropout(x)", "(x * self.dropout(torch.ones_like(x[..., :1])))"),
    one("kept with the probability to drop", LAYER, CORRECTS, "nn.Dropout(dropout)", "nn.Dropout(1 - dropout)"),
    Mutant("another tensor for the weight", LAYER, MERGES, (
        ("self.linear.weight += self.scale", "self.linear.weight = nn.Parameter(self.linear.weight + self.scale"),
        ("(self.B @ self.A)\n            self.is_merged = True", "(self.B @ self.A), requires_grad=False)\n            self.is_merged = True"))),
    one("A and B frozen by unmerge", LAYER, MERGES, "            self.is_merged = False\n\n\n", "            self.is_merged = False\n            self.A.requires_grad_(False)\n\n\n"),
    one("A the same in each layer", LAYER, STARTS, INIT, "nn.init.eye_(self.A)"),
    one("A from a generator of its own", LAYER, STARTS, INIT, "self.A.data.normal_(generator=torch.Generator().manual_seed(0))"),
    one("A and B on the CPU", LAYER, STARTS, '"device": linear.weight.device', '"device": "cpu"'),
    one("B never initialized", LAYER, STARTS, ZERO, ZERO.replace("zeros", "empty")),
    one("dropout in place", LAYER, STARTS, "nn.Dropout(dropout)", "nn.Dropout(dropout, inplace=True)"),
    one("FP32 on the way", LAYER, CORRECTS, OUT, OUT.replace("return y +", "return y.float() +").replace("self.B)", "self.B).float()")),
    one("one mask for neighboring rows", LAYER, CORRECTS, "self.dropout(x)", "(x * self.dropout(torch.ones_like(x[..., :1, :])))"),
    one("one mask for all calls", LAYER, CORRECTS, "self.dropout(x)", "(x * F.dropout(torch.ones_like(x), self.dropout.p) if torch.manual_seed(0) and self.training else x)"),
    one("no correction without dropout", LAYER, CORRECTS, "        if self.is_merged:\n            return", "        if self.is_merged or self.training and self.dropout.p == 0:\n            return"),
    one("the scale of the layer made last", LAYER, CORRECTS, "self.scale = alpha / rank", "LoRALinear.scale = alpha / rank"),
    one("the dropout of the layer made last", LAYER, CORRECTS, "self.dropout = nn.Dropout(dropout)", "LoRALinear.dropout = property(lambda _, p=dropout: lambda x: F.dropout(x, p, _.training))"),
    one("contiguous inputs only", LAYER, CORRECTS, "self.dropout(x)", "self.dropout(x.view(-1, x.shape[-1])).view(x.shape)", raises="view size is not compatible"),
    one("a matrix is no input", LAYER, CORRECTS, "y = self.linear(x)", "batch, length, _ = x.shape\n        y = self.linear(x)", raises="not enough values to unpack"),
    one("other memory for the merged weight", LAYER, MERGES, ADD, ADD.replace("weight +=", "weight.data = self.linear.weight +")),
    one("other memory for the unmerged weight", LAYER, MERGES, TAKE_OUT, TAKE_OUT.replace("weight -=", "weight.data = self.linear.weight -")),
    one("dropout once merged", LAYER, MERGES, "y = self.linear(x)", "y = self.linear(self.dropout(x) if self.is_merged else x)"),
    one("merged for the first time only", LAYER, MERGES, MERGE, MERGE.replace("not self.is_merged:", "not hasattr(self, 'once'):\n            self.once = True")),
    one("unmerged for the first time only", LAYER, MERGES, UNMERGE, UNMERGE.replace("self.is_merged:", "self.is_merged and not hasattr(self, 'once'):\n            self.once = True")),
    one("the first correction for ever", LAYER, MERGES, ADD, "self.delta = getattr(self, 'delta', self.scale * (self.B @ self.A))\n            self.linear.weight += self.delta"),
    Mutant("the weight of the beginning comes back", LAYER, MERGES, (
        ("self.is_merged = False\n\n    def forward", "self.is_merged = False\n        self.start = linear.weight.clone()\n\n    def forward"),
        (TAKE_OUT, "self.linear.weight.copy_(self.start)"))),
    Mutant("one flag for all layers", LAYER, MERGES, (
        ("self.is_merged = False\n\n    def forward", "LoRALinear.is_merged = False\n\n    def forward"), ("self.is_merged = True", "LoRALinear.is_merged = True"),
        (f"{TAKE_OUT}\n            self.is_merged = False", f"{TAKE_OUT}\n            LoRALinear.is_merged = False"))),
    one("nothing is merged in training mode", LAYER, MERGES, "if not self.is_merged:", "if not self.is_merged and not self.training:"),
    one("merge ends training mode", LAYER, MERGES, "self.is_merged = True", "self.is_merged = True\n            self.eval()"),
    one("merged, and cut off from the input", LAYER, MERGES, "            return y\n", "            return y.detach()\n"),
    # the adapter
    one("two blocks only", ADAPTER, SITS, CONFIG, CONFIG + " layers_to_transform=[0, 1],"),
    one("blocks of one digit", ADAPTER, SITS, CONFIG + " target_modules=layers", CONFIG + " target_modules=r'.*layers\\.\\d\\..*_proj'"),
    one("biases, too", ADAPTER, SITS, CONFIG, CONFIG + ' bias="all",'),
    one("a rank of 32 at most", ADAPTER, SITS, CONFIG, CONFIG.replace("r=rank, lora_alpha=2 * rank", "r=min(rank, 32), lora_alpha=2 * min(rank, 32)")),
    one("an alpha of 32 at most", ADAPTER, SITS, CONFIG, CONFIG.replace("2 * rank", "min(2 * rank, 32)")),
    one("another alpha that gives the scale", ADAPTER, SITS, CONFIG, CONFIG.replace("2 * rank", "2 * math.sqrt(rank)") + " use_rslora=True,", raises="alpha is"),
    one("a count with a fraction", ADAPTER, COUNTED, COUNT, f"{COUNT} / 1"),
    one("the configuration loses its blocks", ADAPTER, COUNTED, COUNT, COUNT.replace("return ", "count = ") + "\n    config.num_hidden_layers = 0\n    return count"),
    one("adapters made and counted", ADAPTER, COUNTED, COUNT, "shapes = 2 * (width + queries), 2 * (width + keys), 3 * (width + inner)\n    return config.num_hidden_layers * sum(torch.empty(rank, n).numel() for n in shapes)"),
    one("a model made and counted", ADAPTER, COUNTED, COUNT, "import transformers\n    model = get_peft_model(transformers.LlamaForCausalLM(config), adapter_config(rank))\n    return sum(p.numel() for p in model.parameters() if p.requires_grad)"),
    one("a rank of 4 at least", ADAPTER, COUNTED, COUNT, COUNT.replace("* rank", "* max(rank, 4)")),
    one("biases counted", ADAPTER, COUNTED, COUNT, f"{COUNT} + config.attention_bias * config.num_hidden_layers * 2 * (queries + keys)"),
    one("wrong targets", ADAPTER, SITS, '["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]\n    return', '["q_proj", "v_proj"]\n    return'),
    one("the head, too", ADAPTER, SITS, '"down_proj"]\n    return', '"down_proj", "lm_head"]\n    return'),
    one("all-linear of one layer fewer", ADAPTER, SITS, '"up_proj", "down_proj"]\n    return', '"up_proj"]\n    return'),
    one("alpha is the rank", ADAPTER, SITS, CONFIG, CONFIG.replace("2 * rank", "rank")),
    one("a fixed rank", ADAPTER, SITS, CONFIG, CONFIG.replace("r=rank", "r=8")),
    one("rank 8, whatever is asked", ADAPTER, SITS, CONFIG, CONFIG.replace("r=rank, lora_alpha=2 * rank", "r=8, lora_alpha=16")),
    one("alpha of rank 8", ADAPTER, SITS, CONFIG, CONFIG.replace("2 * rank", "16")),
    one("alpha over the root of the rank", ADAPTER, SITS, CONFIG, CONFIG + " use_rslora=True,"),
    one("B from the weight's own directions", ADAPTER, SITS, CONFIG, CONFIG + ' init_lora_weights="pissa",', raises="B does not start at zero"),
    one("another rank for one layer", ADAPTER, SITS, CONFIG, CONFIG + ' rank_pattern={"q_proj": 1},'),
    one("the first block only", ADAPTER, SITS, CONFIG, CONFIG + " layers_to_transform=[0],"),
    one("embedding trained as well", ADAPTER, SITS, CONFIG, CONFIG + ' modules_to_save=["embed_tokens"],'),
    one("dropout forgotten", ADAPTER, SITS, CONFIG, CONFIG.replace(" lora_dropout=0.05,", "")),
    one("DoRA", ADAPTER, SITS, CONFIG, CONFIG + " use_dora=True,"),
    one("B at random", ADAPTER, SITS, CONFIG, CONFIG + " init_lora_weights=False,"),
    one("no task", ADAPTER, SITS, ', task_type="CAUSAL_LM")', ")"),
    one("grouped queries forgotten", ADAPTER, COUNTED, "keys = config.num_key_value_heads", "keys = config.num_attention_heads"),
    one("head_dim assumed", ADAPTER, COUNTED, "queries = config.num_attention_heads * config.head_dim", "queries = config.hidden_size"),
    one("one block", ADAPTER, COUNTED, "config.num_hidden_layers * rank", "2 * rank"),
    one("whole matrices", ADAPTER, COUNTED, "3 * (width + inner)", "3 * width * inner"),
    one("three layers of the MLP for two", ADAPTER, COUNTED, "3 * (width + inner)", "2 * (width + inner)"),
    one("A without B", ADAPTER, COUNTED, "2 * (width + queries)", "2 * width"),
    one("the rank left out", ADAPTER, COUNTED, "config.num_hidden_layers * rank", "config.num_hidden_layers * 8"),
    # the plan
    one("plan over budget", PLAN, FITS, "micro_batch_size=4,\n        seq=2048,\n        gradient_accumulation_steps=8", "micro_batch_size=8,\n        seq=2048,\n        gradient_accumulation_steps=4"),
    one("without checkpointing", PLAN, FITS, 'checkpointing="every"', 'checkpointing="none"'),
    one("effective batch of 16", PLAN, FITS, "gradient_accumulation_steps=8", "gradient_accumulation_steps=4"),
    one("a smaller model", PLAN, FITS, '"llama-2-7b"', '"llama-3.2-1b"'),
    one("quantised", PLAN, FITS, 'precision="bf16"', 'precision="bf16", quantize="nf4"'),
    one("q and v only", PLAN, FITS, '("q_proj", "k_proj", "v_proj", "o_proj")', '("q_proj", "v_proj")'),
    one("a dictionary", PLAN, FITS, "return Recipe(", "return dict(model=", raises="must return a Recipe"),
    one("far under what fits", PLAN, ROOM, "micro_batch_size=4,\n        seq=2048,\n        gradient_accumulation_steps=8", "micro_batch_size=1,\n        seq=512,\n        gradient_accumulation_steps=32"),
    one("half of what fits", PLAN, ROOM, "micro_batch_size=4,\n        seq=2048,\n        gradient_accumulation_steps=8", "micro_batch_size=4,\n        seq=1024,\n        gradient_accumulation_steps=8"),
    # the fine-tune
    one("not trained", TUNE, LEARNS, "lr=1e-2)", "lr=0.0)"),
    one("learning rate of full training", TUNE, LEARNS, "lr=1e-2)", "lr=3e-5)"),
    one("up the gradient", TUNE, LEARNS, "lr=1e-2)", "lr=1e-2, maximize=True)", raises="The loss rose"),
    one("labels shifted once more", TUNE, LEARNS, "labels=ids)", "labels=ids.roll(-1, 1))"),
    one("half of the batches", TUNE, LEARNS, "for ids in batches:", "for ids in batches[::2]:"),
    one("one update for two batches", TUNE, LEARNS, STEP, STEP.replace("        optimizer.step()\n        optimizer.zero_grad()\n", "        if ids is batches[-1] or len(model.__dict__.setdefault('n', [])) % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n        model.__dict__['n'].append(0)\n")),
    one("adapter in evaluation mode only", TUNE, LEARNS, "get_peft_model(base, adapter).train()", "get_peft_model(base, adapter).eval()"),
    one("the same batch each time", TUNE, LEARNS, "for ids in batches:", "for ids in [batches[0]] * len(batches):"),
    one("gradients never cleared", TUNE, LEARNS, STEP, STEP.replace("        optimizer.zero_grad()\n", "")),
    one("Adam with something else", TUNE, LEARNS, "torch.optim.AdamW(", "torch.optim.NAdam("),
    one("left in training mode", TUNE, LEARNS, "return model.eval()", "return model.train()"),
    one("all tokens but those of one row", TUNE, LEARNS, "labels=ids)", "labels=ids.masked_fill(torch.arange(len(ids))[:, None] == 0, -100))"),
    one("each batch backwards", TUNE, LEARNS, "        model(input_ids=ids, labels=ids)", "        ids = ids.flip(1)\n        model(input_ids=ids, labels=ids)"),
    one("spaces hidden", TUNE, LEARNS, "labels=ids)", "labels=ids, attention_mask=(ids != 32).long())"),
    one("a look at the inner model", TUNE, LEARNS, STEP, STEP.replace("    return", "        with torch.no_grad():\n            base.model(ids)\n    return")),
    one("cleared before the step", TUNE, LEARNS, STEP, STEP.replace("        optimizer.step()\n        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        optimizer.step()\n")),
    one("a new optimizer for each batch", TUNE, LEARNS, "    for ids in batches:\n", f"    for ids in batches:\n        optimizer = torch.optim.AdamW({TRAINED}, lr=1e-2)\n"),
    one("dropout layers in evaluation mode", TUNE, LEARNS, "    for ids in batches:\n", "    for m in model.modules():\n        if isinstance(m, nn.Dropout):\n            m.eval()\n    for ids in batches:\n"),
    one("evaluation mode for the outer module only", TUNE, LEARNS, "return model.eval()", "model.training = False\n    return model"),
    one("A is not trained", TUNE, FROZEN, TRAINED, '[p for n, p in model.named_parameters() if "lora_B" in n]'),
    one("norms with the adapters", TUNE, FROZEN, "    optimizer = ", "    for n, p in model.named_parameters():\n        p.requires_grad_(p.requires_grad or 'norm' in n)\n    optimizer = "),
    one("the base decays", TUNE, FROZEN, STEP, STEP.replace("    return", "        for p in model.parameters():\n            if not p.requires_grad:\n                p.data.mul_(1 - 1e-7)\n    return")),
    one("base not frozen", TUNE, FROZEN, "get_peft_model(base, adapter).train()", "get_peft_model(base, adapter).train().requires_grad_(True)"),
    one("loss met by full fine-tuning", TUNE, FROZEN, "    model = get_peft_model(base, adapter).train()\n    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)",
        "    model = get_peft_model(base, adapter).train()\n    model.requires_grad_(True)\n    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)"),
    one("optimizer holds frozen weights", TUNE, FROZEN, TRAINED, "model.parameters()"),
    one("rank 16", TUNE, FROZEN, "adapter_config(8)", "adapter_config(16)"),
    one("the head trained as well", TUNE, FROZEN, "    model = get_peft_model", "    adapter.modules_to_save = ['lm_head']\n    model = get_peft_model"),
    one("gradients of the base", TUNE, FROZEN, "    return model.eval()\n", "    for p in model.parameters():\n        p.grad = torch.zeros_like(p)\n    return model.eval()\n"),
    one("merged into the base while training", TUNE, FROZEN, "    return model.eval()\n", "    model.merge_adapter()\n    return model.eval()\n"),
    one("adapter thrown away", TUNE, MERGED, "model.merge_and_unload()", "model.unload()"),
    Mutant("a kind of its own comes back", TUNE, MERGED, ((
        "    return model.merge_and_unload()",
        "    merged = model.merge_and_unload()\n    merged.__class__ = type('Merged', (type(merged),), {})\n    return merged"),)),
    one("merged twice over", TUNE, MERGED, "    return model.merge_and_unload()",
        "    model.merge_adapter()\n    for m in model.modules():\n        if hasattr(m, 'merged_adapters'):\n            m.merged_adapters.clear()\n    return model.merge_and_unload()"),
    one("the adapter in hooks", TUNE, MERGED, "    return model.merge_and_unload()",
        "    tuned, plain = copy.deepcopy(model), model.unload()\n    plain.lm_head.register_forward_hook(lambda m, args, out: tuned(input_ids=plain.ids).logits)\n"
        "    plain.register_forward_pre_hook(lambda m, args, kwargs: setattr(m, 'ids', kwargs['input_ids']), with_kwargs=True)\n    return plain"),
    one("the model of the first call", TUNE, MERGED, "    return model.merge_and_unload()", "    fine_tune.merged = getattr(fine_tune, 'merged', None) or model.merge_and_unload()\n    return fine_tune.merged"),
    Mutant("tuned once for all", TUNE, MERGED, (
        ("    adapter = adapter_config(8)\n", "    if hasattr(fine_tune, 'model'):\n        return fine_tune.model\n    adapter = adapter_config(8)\n"),
        ("    return model.eval()\n", "    fine_tune.model = model.eval()\n    return fine_tune.model\n"),
        ("model.merge_and_unload()", "copy.deepcopy(model).merge_and_unload()"))),
    one("in half precision", TUNE, MERGED, "model.merge_and_unload()", "model.merge_and_unload().bfloat16()"),
    one("one layer left out", TUNE, MERGED, "    return model.merge_and_unload()", "    model.base_model.model.model.layers[1].mlp.up_proj.lora_B['default'].weight.data.zero_()\n    return model.merge_and_unload()"),
    one("not merged", TUNE, MERGED, "model.merge_and_unload()", "model"),
    one("merged and still wrapped", TUNE, MERGED, "    return model.merge_and_unload()", "    model.merge_adapter()\n    return model"),
]  # fmt: skip

RIGHT = {
    "two linear layers, configurations by other words": """
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM

from helpers import Recipe


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        where = dict(bias=False, device=linear.weight.device, dtype=linear.weight.dtype)
        self.down = nn.Linear(linear.in_features, rank, **where)
        self.up = nn.Linear(rank, linear.out_features, **where)
        nn.init.zeros_(self.up.weight)
        self.base = linear
        for p in self.base.parameters():
            p.requires_grad = False
        self.factor, self.drop, self.kept = alpha / rank, nn.Dropout(dropout), None

    def forward(self, x):
        if self.kept is not None:
            return self.base(x)
        return self.base(x) + self.up(self.down(self.drop(x))) * self.factor

    @torch.no_grad()
    def merge(self):
        if self.kept is None:
            self.kept = self.base.weight.clone()
            self.base.weight.add_(self.up.weight @ self.down.weight, alpha=self.factor)

    @torch.no_grad()
    def unmerge(self):
        if self.kept is not None:
            self.base.weight.copy_(self.kept)
            self.kept = None


def adapter_config(rank):
    return LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=rank * 2, lora_dropout=0.05, target_modules="all-linear")


def trained_parameters(config, rank):
    with torch.device("meta"):
        model = get_peft_model(LlamaForCausalLM(config), adapter_config(rank))
    return sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)


def fine_tune_plan():
    return Recipe("llama-2-7b", micro_batch_size=2, seq=4096, gradient_accumulation_steps=16, checkpointing="every", lora_rank=16,
                  lora_targets=["o_proj", "v_proj", "k_proj", "q_proj"])


def fine_tune(base, batches):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32, target_modules="all-linear"))
    model.train()
    adapters = [p for n, p in model.named_parameters() if "lora_" in n]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * len(batches))
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=batch).logits[:, :-1]
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return model


def merged_model(model):
    model.eval()
    return model.merge_and_unload(safe_merge=True)
""",
    "low-rank product as a weight, long sequences, a copied base": """
import copy

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn

from helpers import Recipe

NAMES = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear, self.alpha, self.p, self.merged = linear.requires_grad_(False), alpha, dropout, 0
        self.a = nn.Parameter(torch.rand(rank, linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device))
        self.b = nn.Parameter(torch.zeros_like(linear.weight[:, :1]).repeat(1, rank))

    def delta(self):
        return (self.b @ self.a) * (self.alpha / self.a.shape[0])

    def forward(self, x):
        y = self.linear(x)
        if not self.merged:
            y = y + F.linear(F.dropout(x, self.p, self.training), self.delta())
        return y

    def merge(self):
        if not self.merged:
            self.linear.weight.data += self.delta().data
        self.merged = 1

    def unmerge(self):
        if self.merged:
            self.linear.weight.data -= self.delta().data
        self.merged = 0


def adapter_config(rank):
    from peft import TaskType
    return LoraConfig(r=rank, lora_alpha=2.0 * rank, lora_dropout=0.05, target_modules=NAMES, task_type=TaskType.CAUSAL_LM)


def trained_parameters(config, rank):
    d, heads, kv = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    shapes = {"q": (config.hidden_size, heads * d), "k": (config.hidden_size, kv * d), "v": (config.hidden_size, kv * d),
              "o": (heads * d, config.hidden_size), "gate": (config.hidden_size, config.intermediate_size),
              "up": (config.hidden_size, config.intermediate_size), "down": (config.intermediate_size, config.hidden_size)}
    return config.num_hidden_layers * sum(rank * (i + o) for i, o in shapes.values())


def fine_tune_plan():
    return Recipe("llama-2-7b", micro_batch_size=4, seq=2048, gradient_accumulation_steps=8, checkpointing="every", lora_rank=16, lora_alpha=8,
                  lora_targets=tuple(NAMES[:4]), optimizer_impl="for-loop")


def fine_tune(base, batches):
    torch.manual_seed(3)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=NAMES))
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=2e-2)
    for i in range(len(batches)):
        model.train()
        model(batches[i], labels=batches[i]).loss.backward()
        optimizer.step()
        model.zero_grad()
    return model.eval()


def merged_model(model):
    model.merge_adapter()
    return model.unload()
""",
}  # fmt: skip
