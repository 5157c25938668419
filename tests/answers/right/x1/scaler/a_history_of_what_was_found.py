# a history of what was found


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.now = init_scale
        self.factors = {True: growth_factor, False: backoff_factor}
        self.interval, self.history, self.current = growth_interval, [], {}

    def get_scale(self):
        return self.now

    def scale(self, loss):
        return loss * loss.new_tensor(self.now)

    def unscale_(self, optimizer):
        found = self.current.setdefault(id(optimizer), [])
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.data = p.grad.data.div_(self.now)
                    found.append(not (p.grad.isinf() | p.grad.isnan()).any().item())

    def step(self, optimizer):
        if id(optimizer) not in self.current:
            self.unscale_(optimizer)
        if all(map(all, self.current.values())):
            optimizer.step()
            return True
        return False

    def update(self):
        good = all(map(all, self.current.values()))
        self.history = [*self.history, good] if good else []
        if not good or len(self.history) == self.interval:
            self.now, self.history = self.now * self.factors[good], []
        self.current = {}
