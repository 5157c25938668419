"""Block scales and four-bit numbers."""

from helpers import floor_power_of_two, quantize_blockwise, to_e2m1

import torch


def test_e2m1_takes_the_nearest_number_and_of_two_the_even_one():
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert to_e2m1(halfway).tolist() == even
    assert to_e2m1(-halfway).tolist() == [-x for x in even]
    assert to_e2m1(torch.tensor([0.26, 0.74, 2.6, 100.0, -torch.inf])).tolist() == [0.5, 0.5, 3.0, 6.0, -6.0]
    assert to_e2m1(torch.tensor(torch.nan)).isnan()


def test_floor_power_of_two_is_exact_beside_powers_of_two():
    powers = 2.0 ** torch.arange(-120, 120)
    above, below = (torch.nextafter(powers, torch.tensor(end)) for end in (torch.inf, 0.0))
    assert torch.equal(floor_power_of_two(powers), powers)
    assert torch.equal(floor_power_of_two(above), powers)
    assert torch.equal(floor_power_of_two(below), powers / 2)


def test_blocks_lie_along_rows_and_zeros_stay_zeros():
    x = torch.tensor([[1.0, 2.0, 8.0, 16.0], [0.0, 0.0, 3.0, -4.0]])
    rounded = quantize_blockwise(x, 2, lambda amax: amax, torch.round)  # 0.5 goes to 0, 0.75 to 1
    assert rounded.tolist() == [[0.0, 2.0, 0.0, 16.0], [0.0, 0.0, 4.0, -4.0]]
