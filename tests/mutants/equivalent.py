"""Edits made by machine that earn full points and are no mistakes, each with the reason.

The key is the exercise and the words of `edits.Edit`.
"""

EQUIVALENT: dict[tuple[str, str], str] = {
    ("x1", "peak = p.grad.abs().max().item()  ->  peak = p.grad.abs().max()"): "a tensor compares as its number does",
    (
        "x1",
        "self.streak = 0 if self.state == 'bad' else self.streak + 1  ->  "
        "self.streak = 0 if self.state == 'bad' else self.streak - 1",
    ): "counts down, and -3 is a multiple of 3 as well",
}
