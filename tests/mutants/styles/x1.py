"""Right answers to parts of X1."""

SCALER, STEP, COMPARE = "x1.scaler", "x1.step", "x1.compare"

STYLES = {
    "the scale in an exponent": (SCALER, """
import math


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.log = math.log2(init_scale)
        self.up, self.down, self.every = math.log2(growth_factor), math.log2(backoff_factor), growth_interval
        self.run, self.found = 0, None

    def get_scale(self):
        return 2.0**self.log

    def scale(self, loss):
        return torch.ldexp(loss, torch.tensor(self.log))

    def unscale_(self, optimizer):
        self.found = False
        for group in optimizer.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                p.grad.mul_(2.0**-self.log)
                self.found |= bool((p.grad - p.grad).ne(0).any())  # inf - inf and nan - nan are NaN

    def step(self, optimizer):
        self.unscale_(optimizer) if self.found is None else None
        return False if self.found else (optimizer.step(), True)[1]

    def update(self):
        self.run = 0 if self.found else self.run + 1
        self.log += self.down if self.found else self.up if self.run == self.every else 0.0
        self.run %= self.every
        self.found = None
"""),
    "PyTorch's own function for unscaling": (SCALER, """
class DynamicLossScaler:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval
        self._scale, self._tracker = torch.tensor(init_scale), torch.tensor(0, dtype=torch.int32)
        self._found = None

    def get_scale(self):
        return self._scale.item()

    def scale(self, loss):
        return loss * self._scale.to(loss.device)

    def unscale_(self, optimizer):
        self._found = torch.zeros(1)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            found = torch.zeros(1, device=grad.device)
            torch._amp_foreach_non_finite_check_and_unscale_([grad], found, 1 / self._scale.to(grad.device))
            self._found += found.cpu()

    def step(self, optimizer):
        if self._found is None:
            self.unscale_(optimizer)
        if self._found.item():
            return False
        optimizer.step()
        return True

    def update(self):
        torch._amp_update_scale_(self._scale, self._tracker, self._found, self.growth, self.backoff, self.interval)
        self._found = None
"""),
    "a dataclass and a generator of parameters": (SCALER, """
from dataclasses import dataclass


def gradients_of(optimizer):
    for group in optimizer.param_groups:
        yield from (p.grad for p in group["params"] if p.grad is not None)


@dataclass
class DynamicLossScaler:
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    good: int = 0
    finite: bool | None = None

    def __post_init__(self):
        self.value = self.init_scale

    def get_scale(self):
        return float(self.value)

    def scale(self, loss):
        return torch.mul(loss, self.value)

    @torch.no_grad()
    def unscale_(self, optimizer):
        checks = [True]
        for gradient in gradients_of(optimizer):
            gradient /= self.value
            checks.append(bool(gradient.isfinite().all()))
        self.finite = all(checks)

    def step(self, optimizer):
        if self.finite is None:
            self.unscale_(optimizer)
        if self.finite:
            optimizer.step()
        return self.finite

    def update(self):
        match self.finite, self.good + 1 == self.growth_interval:
            case False, _:
                self.value, self.good = self.value * self.backoff_factor, 0
            case True, True:
                self.value, self.good = self.value * self.growth_factor, 0
            case _:
                self.good += 1
        self.finite = None
"""),
    "states by name": (SCALER, """
class DynamicLossScaler:
    READY, CLEAN, DIRTY = range(3)

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.s, self.grow, self.shrink, self.n = init_scale, growth_factor, backoff_factor, growth_interval
        self.state, self.since = self.READY, 0

    def get_scale(self):
        return self.s

    def scale(self, loss):
        return self.s * loss

    def unscale_(self, optimizer):
        flat = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.copy_(p.grad / self.s)
                    flat.append(p.grad.flatten())
        self.state = self.CLEAN if torch.cat(flat).abs().amax() < torch.inf else self.DIRTY

    def step(self, optimizer):
        if self.state == self.READY:
            self.unscale_(optimizer)
        stepped = self.state == self.CLEAN
        if stepped:
            optimizer.step()
        return stepped

    def update(self):
        if self.state == self.DIRTY:
            self.s, self.since = self.s * self.shrink, 0
        else:
            self.since += 1
            if self.since >= self.n:
                self.s, self.since = self.s * self.grow, 0
        self.state = self.READY
"""),
    "a history of what was found": (SCALER, """
class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.now = init_scale
        self.factors = {True: growth_factor, False: backoff_factor}
        self.interval, self.history, self.current = growth_interval, [], []

    def get_scale(self):
        return self.now

    def scale(self, loss):
        return loss * loss.new_tensor(self.now)

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.data = p.grad.data.div_(self.now)
                    self.current.append(not (p.grad.isinf() | p.grad.isnan()).any().item())

    def step(self, optimizer):
        if not self.current:
            self.unscale_(optimizer)
        if all(self.current):
            optimizer.step()
            return True
        return False

    def update(self):
        good = all(self.current)
        self.history = [*self.history, good] if good else []
        if not good or len(self.history) == self.interval:
            self.now, self.history = self.now * self.factors[good], []
        self.current = []
"""),
    "the loss inside autocast, torch.autograd.backward": (STEP, """
def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = F.nll_loss(F.log_softmax(model(images).float(), -1), labels)
    torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
    if scaler is not None:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=False)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss.detach().clone()
"""),
    "something that scales nothing where there is no scaler": (STEP, """
class NoScaler:
    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    scaler = scaler or NoScaler()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    context = torch.amp.autocast(device_type=images.device.type, dtype=dtype, enabled=dtype != torch.float32)
    with context:
        logits = model(images)
    one_hot = F.one_hot(labels, logits.shape[1]).float()
    loss = -(one_hot * logits.float().log_softmax(1)).sum(1).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    with torch.no_grad():
        torch._foreach_mul_([p.grad for p in model.parameters()], (max_norm / (norm + 1e-6)).clamp(max=1))
    scaler.step(optimizer)
    scaler.update()
    return loss.data
"""),
    "torch.func.functional_call": (STEP, """
def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    named = dict(model.named_parameters())
    with torch.autocast(images.device.type, dtype, dtype != torch.float32):
        logits = torch.func.functional_call(model, named, (images,))
    loss = F.cross_entropy(logits.to(torch.float32), labels)
    scaled = loss if scaler is None else scaler.scale(loss)
    grads = torch.autograd.grad(scaled, list(named.values()))
    for p, g in zip(named.values(), grads, strict=True):
        p.grad = g.detach()
    if scaler is not None:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(named.values(), max_norm)
    scaler.step(optimizer) if scaler is not None else optimizer.step()
    if scaler is not None:
        scaler.update()
    return loss.detach()
"""),
    "the sum of losses over the rows": (STEP, """
def forward(model, images, dtype):
    if dtype == torch.float32:
        return model(images)
    with torch.autocast(images.device.type, dtype=dtype):
        return model(images).float()


def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad(set_to_none=False)
    logits = forward(model, images, dtype)
    loss = F.cross_entropy(logits, labels, reduction="sum") / len(labels)
    if scaler:
        loss_to_go_back = scaler.scale(loss)
    else:
        loss_to_go_back = loss
    loss_to_go_back.backward()
    if scaler:
        scaler.unscale_(optimizer)
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, total)
    if scaler:
        scaler.step(optimizer), scaler.update()
    else:
        optimizer.step()
    with torch.no_grad():
        return loss.clone()
"""),
    "gradients collected by hooks": (STEP, """
def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    squares = []
    handles = [p.register_post_accumulate_grad_hook(lambda p: squares.append(p)) for p in model.parameters()]
    try:
        with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32, cache_enabled=False):
            logits = model(images)
        loss = torch.nn.CrossEntropyLoss()(logits.float(), labels)
        (loss if scaler is None else scaler.scale(loss)).backward()
    finally:
        for handle in handles:
            handle.remove()
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = sum(p.grad.square().sum() for p in squares).sqrt()
    if norm > max_norm:
        for p in squares:
            p.grad *= max_norm / norm
    (optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update()))
    return loss.detach()
"""),
    "epochs in a loop, the meter on a batch of the second": (COMPARE, """
def train(precision, seed=0, epochs=3):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    data, dtype = digits(device), DTYPES[precision]
    model = SmallCNN(width=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
    seconds, peak, steps = [], None, 0
    for _ in range(epochs):
        order = torch.randperm(len(data.train_x), generator=generator).to(device)
        for start in range(0, len(order), 64):
            index = order[start : start + 64]
            x, y = data.train_x[index], data.train_y[index]
            if steps == 5:
                with MemoryMeter(model, optimizer) as meter:
                    train_step(model, optimizer, scaler, x, y, dtype, 1.0)
                peak = meter.peak_bytes
            else:
                began = time.perf_counter()
                train_step(model, optimizer, scaler, x, y, dtype, 1.0)
                seconds.append(time.perf_counter() - began)
            steps += 1
    with torch.inference_mode():
        guesses = torch.cat([model.eval()(part).argmax(-1) for part in data.test_x.split(100)])
    accuracy = (guesses == data.test_y).double().mean().item()
    return {"model": model, "accuracy": accuracy, "peak_bytes": peak, "step_seconds": sum(seconds[1:]) / len(seconds[1:])}
"""),
    "batches from a DataLoader": (COMPARE, """
def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed)
    data, dtype = digits(device), DTYPES[precision]
    model = SmallCNN(16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    scaler = DynamicLossScaler(init_scale=2.0**12) if dtype is torch.float16 else None
    rows = torch.utils.data.TensorDataset(data.train_x, data.train_y)
    loader = torch.utils.data.DataLoader(rows, 64, shuffle=True)
    for _ in range(epochs):
        for batch in loader:
            train_step(model, optimizer, scaler, *batch, dtype, 1.0)
    x, y = next(iter(loader))
    with MemoryMeter(model, optimizer) as meter:
        train_step(model, optimizer, scaler, x, y, dtype, 1.0)
    began = time.monotonic()
    for _ in range(4):
        train_step(model, optimizer, scaler, x, y, dtype, 1.0)
    took = (time.monotonic() - began) / 4
    model.train(False)
    with torch.no_grad():
        right = int((model(data.test_x).argmax(1) == data.test_y).sum())
    return dict(model=model, accuracy=right / len(data.test_y), peak_bytes=meter.peak_bytes, step_seconds=took)
"""),
    "a scaler around one from PyTorch": (SCALER, """
class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.inner = torch.amp.GradScaler(
            "cpu", init_scale=init_scale, growth_factor=growth_factor, backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self.inner.scale(torch.zeros(()))  # makes its tensors
        self.unscaled = False

    def get_scale(self):
        return self.inner.get_scale()

    def scale(self, loss):
        return loss * self.get_scale()

    def unscale_(self, optimizer):
        self.inner.unscale_(optimizer)
        self.unscaled = True

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        found = self.inner._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        bad = any(value.item() for value in found.values())
        self.inner.step(optimizer)
        return not bad

    def update(self):
        self.inner.update()
        self.unscaled = False
"""),
}  # fmt: skip
