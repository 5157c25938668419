"""Check of block-wise quantization: a tensor becomes a code for each number and a scale for each block, and back."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.plain import plain
from .books import drawn_book

Encode = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
Decode = Callable[[Tensor, Tensor, Tensor, int, Any], Tensor]
WIDE = 2.0**20  # numbers in the tensor whose bytes are measured
AT_ONCE = 40  # bytes for each number that may be held at once
_TRANSPOSED, _FEW = "a transposed tensor of 12 x 10, blocks of 32", "80 numbers, a book of 15 values, blocks of 32"


def _cases(seed: int) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """Yield (case, tensor, code book, block): magnitudes differ from block to block by powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.linspace(0, 254, 15).round().long()  # -1, 0 and 1 are among them
    for case, shape, block, signed in (
        ("12 x 32 numbers, blocks of 64", (12, 32), 64, True),
        ("7 x 43 numbers, blocks of 50", (7, 43), 50, True),
        ("90 numbers, none negative, blocks of 128", (90,), 128, False),
        (_TRANSPOSED, (12, 10), 32, True),
        (_FEW, (80,), 32, True),
    ):
        x = torch.randn(shape, generator=generator)
        x = x * 10 ** (torch.arange(x.numel()) // block - 3.0).view(shape)
        if case == _TRANSPOSED:
            x = x.t().contiguous().t()  # the same numbers, in another order in memory
        book = drawn_book(seed + block, signed)
        yield case, (x if signed else x.abs()).to(pick_device()), book[few] if case == _FEW else book, block


def _scales_of(x: Tensor, block: int) -> Tensor:
    return torch.stack([part.abs().max() for part in x.flatten().split(block)])


def _encoded(encode: Encode, *given: Any) -> tuple[Tensor, Tensor]:
    codes, scales = encode(*given)
    return plain(codes), plain(scales)


class OneScaleForEachBlock(Check):
    """`encode` returns one FP32 scale per block: its largest magnitude. The last block may be shorter."""

    hint = (
        "How many blocks are there, when the last one need not be full?\n"
        "`flatten()`, pad with zeros to a multiple of the block, `view(-1, block)`; then `abs().amax(1)`."
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        seen: Evidence = {}
        for case, x, book, block in _cases(seed):
            _, scales = _encoded(encode, x, book, block)
            want = _scales_of(x, block)
            same = scales.shape == want.shape
            seen[case] = {
                "shape": list(scales.shape),
                "dtype": str(scales.dtype),
                "times": (scales / want).tolist() if same else None,
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["shape"] != want["shape"]:
                return f"{case}: scales should have the shape {tuple(want['shape'])}; yours is {tuple(got['shape'])}."
            if got["dtype"] != want["dtype"]:
                return f"{case}: scales should be {want['dtype']}; they are {got['dtype']}."
            wrong = [i for i, times in enumerate(got["times"]) if not abs(times - 1) <= 1e-6]
            if wrong:
                times = f"{got['times'][wrong[0]]:.4g} times its block's largest magnitude"
                return f"{case}: the scale of block {wrong[0]} is {times}."
        return None


class CodesAreBytes(Check):
    """`encode` returns a code for each number, in the order of the flattened tensor: one byte, torch.uint8."""

    hint = (
        "How many numbers went in, and how many codes come out? Remove the padding.\n"
        "`codes.flatten()[:x.numel()].to(torch.uint8)`"
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        seen: Evidence = {}
        for case, x, book, block in _cases(seed + 1):
            codes, _ = _encoded(encode, x, book, block)
            storage = codes.untyped_storage().nbytes()
            seen[case] = {"shape": list(codes.shape), "dtype": str(codes.dtype), "storage": storage}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["dtype"] != want["dtype"]:
                return f"{case}: codes should be {want['dtype']}; they are {got['dtype']}."
            if got["shape"] != want["shape"]:
                return f"{case}: codes should have the shape {tuple(want['shape'])}; yours is {tuple(got['shape'])}."
            if got["storage"] > 2 * want["shape"][0]:
                return (
                    f"{case}: {want['shape'][0]} codes are in a storage of {got['storage']} bytes: a view "
                    "keeps all of it."
                )
        return None


class TakesTheNearest(Check):
    """Each code is the index in the book of the value nearest to number / scale of its block."""

    hint = (
        "Divide by the block's scale first; then every number is between -1 and 1, like the book's values.\n"
        "The book is sorted. The border between two neighbors is halfway: how many borders are below a number?\n"
        "`torch.bucketize(scaled, (book[1:] + book[:-1]) / 2)` counts them, and that is the code."
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        seen: Evidence = {}
        for case, x, book, block in _cases(seed + 2):
            codes, _ = _encoded(encode, x, book, block)
            scales = _scales_of(x, block).repeat_interleave(block)[: x.numel()]
            distance = (x.flatten()[:, None] / scales[:, None] - book).abs()  # (numbers, values of the book)
            index = codes.flatten().long()
            fits = index.shape == scales.shape and bool((index < len(book)).all())
            excess = distance.gather(1, index[:, None])[:, 0] - distance.min(1).values if fits else None
            seen[case] = {"excess": None if excess is None else excess.tolist()}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            excess = seen[case]["excess"]
            if excess is None:
                return f"{case}: the codes are not one index into the book per number."
            wrong = [i for i, far in enumerate(excess) if not far <= 1e-6]
            if wrong:
                return (
                    f"{case}: {len(wrong)} of {len(excess)} codes are not those of the nearest value; the first is "
                    f"that of number {wrong[0]}. What is each number divided by, and which value of the book is "
                    "nearest to the result?"
                )
        return None


_TINY = "blocks of numbers near 1e-12"


class ZerosStayZeros(Check):
    """A block of zeros has the scale 0 and decodes to zeros; all other blocks keep their precision."""

    hint = (
        "What is 0 / 0?\n"
        "Divide by `scales.clamp(min=...)` with the smallest normal number, and return the scales unclamped."
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        seen: Evidence = {}
        for case, zeros in (("the second block is zero", slice(32, 64)), ("everything is zero", slice(None))):
            x = torch.randn(96, generator=torch.Generator().manual_seed(seed)).to(pick_device())
            x[zeros] = 0
            book = drawn_book(seed, True)
            codes, scales = _encoded(encode, x, book, 32)
            back = plain(decode(codes, scales, book, 32, x.shape)).flatten()
            smallest = scales.abs().min() if len(scales) else scales.sum()
            off = ((back - x).norm() / x.norm().clamp(min=1e-30)).nan_to_num(nan=-1.0).item()
            seen[case] = {
                "scale": smallest.nan_to_num(nan=-1.0).item(),
                "zeros": bool((back[zeros] == 0).all()),
                "off": off,
            }
        x = torch.randn(96, generator=torch.Generator().manual_seed(seed)).to(pick_device()) * 1e-12
        back = plain(decode(*_encoded(encode, x, book, 32), book, 32, x.shape))
        seen[_TINY] = ((back - x).norm() / x.norm()).nan_to_num(nan=-1.0).item()
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in (case for case in expected if case != _TINY):
            got = seen[case]
            if got["scale"] != 0:
                return f"{case}: its scale should be 0; it is {'not a number' if got['scale'] < 0 else got['scale']}."
            if not got["zeros"]:
                return f"{case}: it does not decode to zeros."
            if not 0 <= got["off"] <= 0.05:
                return f"{case}: the other numbers decode to wrong values."
        if not 0 <= seen[_TINY] <= 0.2:
            return (
                f"{_TINY} decode to values off by {seen[_TINY]:.0%}. Do you divide by something "
                "larger than their scale, a "
                "floor perhaps? Only 0 needs care."
            )
        return None


class DecodesByItsBook(Check):
    """`decode` returns book[code] times the scale of the code's block: FP32, of the given shape."""

    hint = (
        "A table look-up and one multiplication.\n"
        "`book[codes.int()]`; every block has its own scale: `scales.repeat_interleave(block)`, as many as codes."
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        device, seen = pick_device(), {}
        for case, shape, block in (
            ("6 x 32 codes, blocks of 64", (6, 32), 64),
            ("5 x 9 codes, blocks of 20", (5, 9), 20),
        ):
            count = shape[0] * shape[1]
            codes = torch.randint(254, (count,), generator=generator, dtype=torch.uint8).to(device)
            scales = (10 * torch.rand(-(-count // block), generator=generator)).to(device)
            book = drawn_book(seed + count, True)
            back = plain(decode(codes, scales, book, block, torch.Size(shape)))
            seen[case] = {
                "shape": list(back.shape),
                "dtype": str(back.dtype),
                "numbers": back.cpu().double().flatten().tolist(),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["shape"] != want["shape"]:
                return f"{case}: the shape should be {tuple(want['shape'])}; it is {tuple(got['shape'])}."
            if got["dtype"] != want["dtype"]:
                return f"{case}: the numbers should be {want['dtype']}; they are {got['dtype']}."
            pairs = enumerate(zip(got["numbers"], want["numbers"], strict=True))
            wrong = [i for i, (mine, right) in pairs if not abs(mine - right) <= 1e-5 * abs(right) + 1e-9]
            if wrong:
                at = wrong[0]
                mine, right = got["numbers"][at], want["numbers"][at]
                return f"{case}: number {at} should be {right:.4g}; it is {mine:.4g}. Which value, and which scale?"
        return None


class NeedsNoTable(Check):
    """`encode` does not change its input and never holds more than 40 bytes per number."""

    hint = (
        "A table of distances from every number to all 256 values takes 1,024 bytes per number.\n"
        "The book is sorted: a search (`torch.bucketize`) needs no table. Do not divide the input in place."
    )

    @staticmethod
    def probe(seed: int, encode: Encode, decode: Decode) -> Evidence:
        x = torch.randn(int(WIDE), generator=torch.Generator().manual_seed(seed)).to(pick_device())
        given, book = x.clone(), drawn_book(seed, True)
        with MemoryMeter(device=x.device) as meter:
            encode(x, book, 256)
        return {"held": (meter.peak_bytes - x.nbytes) / WIDE, "untouched": torch.equal(x, given)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["untouched"]:
            return "The tensor that you were given has changed; work on a copy."
        if not seen["held"] <= AT_ONCE:
            held = f"{seen['held']:.0f} bytes for each number"
            return f"Besides its input, `encode` holds {held} at its peak; {AT_ONCE} are allowed."
        return None


BLOCKS = (OneScaleForEachBlock, CodesAreBytes, TakesTheNearest, ZerosStayZeros, DecodesByItsBook, NeedsNoTable)
