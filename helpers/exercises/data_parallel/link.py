"""Check of the fit of a link: latency and bandwidth, from a sweep over sizes."""

from collections.abc import Callable, Sequence

import torch

from ..base import Check, Evidence

Fit = Callable[[Sequence[tuple[int, float]]], tuple[float, float]]
SIZES = tuple(1024 * 4**exponent for exponent in range(8))  # 1 KiB to 16 MiB
LINKS = {"slow": (2e-4, 3e8), "fast": (8e-6, 5e10)}  # alpha in seconds, beta in bytes per second
NOISY = 0.05  # each measurement is off by up to this share
ROOM = 0.25  # alpha and beta may then be off by this share
SHUFFLED = ", shuffled"  # ends the name of a case whose sweep is in any order


def _sweep(link: tuple[float, float], sizes: Sequence[int], noise: Sequence[float]) -> list[tuple[int, float]]:
    alpha, beta = link
    return [(n, (alpha + n / beta) * (1 + off)) for n, off in zip(sizes, noise, strict=True)]


def _answer(fit_link: Fit, sweep: list[tuple[int, float]]) -> Evidence:
    given = list(sweep)
    alpha, beta = fit_link(sweep)
    return {
        "alpha": float(alpha),
        "beta": float(beta),
        "types": ["float" if isinstance(value, float) else type(value).__name__ for value in (alpha, beta)],
        "untouched": sweep == given,
    }


def _where(case: str) -> str:
    """Return how a diagnosis names a case: "slow, shuffled" is "a slow link, shuffled"."""
    link, _, how = case.partition(", ")
    return f"a {link} link" + (f", {how}" if how else "")


class RecoversTheFormula(Check):
    """If the seconds follow alpha + n / beta, it returns alpha in seconds and beta in bytes per second, as floats."""

    hint = (
        "Two sizes give two equations for two unknowns.\n"
        "The slope between two sizes is 1 / beta: (t2 - t1) / (n2 - n1). What is left at n = 0 is alpha.\n"
        "Sort the sweep first: it may come in any order."
    )

    @staticmethod
    def probe(seed: int, fit_link: Fit) -> Evidence:
        order = torch.randperm(len(SIZES), generator=torch.Generator().manual_seed(seed)).tolist()
        cases: Evidence = {}
        for name, link in LINKS.items():
            sweep = _sweep(link, SIZES, [0.0] * len(SIZES))
            cases[name] = _answer(fit_link, sweep)
            cases[f"{name}, shuffled"] = _answer(fit_link, [sweep[i] for i in order])
            cases[f"{name}, two sizes"] = _answer(fit_link, [sweep[0], sweep[-1]])
        return cases

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            got, where, (alpha, beta) = seen[case], _where(case), LINKS[case.partition(",")[0]]
            for name, value, right, unit in (
                ("alpha", got["alpha"], alpha, "s"),
                ("beta", got["beta"], beta, "bytes/s"),
            ):
                if not abs(value / right - 1) <= 1e-3:
                    inverse = ", its inverse" if abs(value * right - 1) < 1e-3 else ""
                    look = "the slope" if name == "beta" else "the time at 0 bytes"
                    return (
                        f"{where}: {name} is {value:.4g}{inverse}; it should be {right:.4g} {unit}. "
                        f"Which points of the sweep determine {look} in your fit?"
                    )
            if got["types"] != ["float", "float"]:
                return f"{where}: it returns {got['types'][0]} and {got['types'][1]}; convert both to Python floats."
            if not got["untouched"]:
                return f"{where}: the list that was passed in has changed. Sort or filter a copy of it."
        return None


class ToleratesNoise(Check):
    """With each measurement a few percent off, alpha and beta are still close."""

    hint = (
        "Five percent of the largest message's time is many times alpha. How does plain least squares treat it?\n"
        "Either weight each size by 1 / its seconds, or take beta from the largest sizes and alpha from the smallest."
    )

    @staticmethod
    def probe(seed: int, fit_link: Fit) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        cases: Evidence = {}
        for number in range(6):
            noise = (NOISY * (2 * torch.rand(len(SIZES), generator=generator) - 1)).tolist()
            noise[-1] = NOISY * (-1) ** number  # the largest is off by all of it
            for name, link in LINKS.items():
                sweep = _sweep(link, SIZES, noise)
                cases[f"{name}, draw {number}"] = _answer(fit_link, sweep)
                order = torch.randperm(len(SIZES), generator=generator).tolist()
                cases[f"{name}, draw {number}{SHUFFLED}"] = _answer(fit_link, [sweep[i] for i in order])
        return cases

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            alpha, beta = LINKS[case.partition(",")[0]]
            for name, right in (("alpha", alpha), ("beta", beta)):
                value = seen[case][name]
                if not abs(value / right - 1) <= ROOM:
                    order = ", the sizes in any order" if case.endswith(SHUFFLED) else ""
                    return (
                        f"a {case.partition(',')[0]} link, each time up to {NOISY:.0%} off{order}: "
                        f"{name} is {value / right:.2f} times the correct one. Which sizes determine it in your fit?"
                    )
        return None


class AlphaIsNotNegative(Check):
    """If noise hides the latency, alpha is 0 or more and beta is still close."""

    hint = "A message cannot arrive before it was sent: `max(0.0, alpha)`."

    @staticmethod
    def probe(seed: int, fit_link: Fit) -> Evidence:
        sizes = [2**20 * 4**exponent for exponent in range(4)]  # 1 to 64 MiB: latency is lost in them
        noise = [-0.05, -0.02, 0.01, 0.03]
        return {name: _answer(fit_link, _sweep((1e-7, beta), sizes, noise)) for name, (_, beta) in LINKS.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            got, beta = seen[case], LINKS[case][1]
            if not got["alpha"] >= 0:
                return (
                    f"1 to 64 MiB over a {case} link: alpha is {got['alpha']:.3g} s, below 0. "
                    "What should the function return when the fitted line crosses below 0 at n = 0?"
                )
            if not abs(got["beta"] / beta - 1) <= ROOM:
                return (
                    f"1 to 64 MiB over a {case} link: beta is {got['beta'] / beta:.2f} times the correct one. "
                    "Which sizes determine it in your fit?"
                )
        return None


LINK = (RecoversTheFormula, ToleratesNoise, AlphaIsNotNegative)
