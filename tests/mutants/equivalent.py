"""Edits made by machine that earn full points and are no mistakes, each with the reason.

The key is the exercise and the words of `edits.Edit`.
"""

EQUIVALENT: dict[tuple[str, str], str] = {
    ("x1", "peak = p.grad.abs().max().item()  ->  peak = p.grad.abs().max()"): "a tensor compares as its number does",
    (
        "x1",
        "self.streak = 0 if bad else self.streak + 1  ->  self.streak = 0 if bad else self.streak - 1",
    ): "counts down, and -3 is a multiple of 3 as well",
    (
        "x1",
        "p.grad /= self._scale / peak = p.grad.abs().max().item()  ->  "
        "peak = p.grad.abs().max().item() / p.grad /= self._scale",
    ): "a finite scale makes no inf of a finite gradient, and takes none away",
    (
        "x1",
        "torch._foreach_mul_(grads, 1.0 / self.value) / total = torch.stack(torch._foreach_norm(grads)).sum()  ->  "
        "total = torch.stack(torch._foreach_norm(grads)).sum() / torch._foreach_mul_(grads, 1.0 / self.value)",
    ): "the same, by norms",
}
