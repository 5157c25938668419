"""What lab and checks of tensor parallel say and draw: tables of guesses, traffic by dimension, verdicts by rank."""

from helpers.exercises.tensor_parallel.matmul_table import MatmulTable
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.exercises.tensor_parallel.pictures import (
    crossing_picture,
    heads_picture,
    mesh_picture,
    split_picture,
)
from helpers.exercises.tensor_parallel.said import by_rank, in_words, wrong_tensor
from helpers.exercises.tensor_parallel_in_practice.overlap_picture import overlap_picture
from helpers.ranks.collectives import Collective
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..mutants import run_answers, topics, verdicts


@pytest.mark.parametrize(
    ("guess", "remark"),
    [
        (("all_reduce", 64), "as you said"),
        (("all_gather", 64), "another collective"),
        (("all_reduce", 32), "bytes: 0.5 x the measured"),
    ],
)
def test_a_guess_stands_beside_what_was_measured(guess, remark, capsys):
    MatmulTable({"a": guess, "b": None}).reveal({"a": [Collective("all_reduce", 64)], "b": []})
    out = capsys.readouterr().out
    assert remark in out
    assert ("1 of 2 as you said" if remark == "as you said" else "0 of 2") in out


def test_no_guess_is_no_mistake(capsys):
    MatmulTable({"a": None}).reveal({"a": []})
    assert "You have not guessed" in capsys.readouterr().out


def test_a_guess_of_nothing_can_be_right(capsys):
    MatmulTable({"a": ("nothing", 0)}).reveal({"a": []})
    assert "1 of 1 as you said" in capsys.readouterr().out


def test_traffic_is_told_apart_by_the_dimension_of_a_mesh():
    def on_a_rank():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        with MeshTraffic(mesh) as traffic:
            dist.all_reduce(torch.ones(4), group=mesh.get_group("tensor"))
            dist.broadcast(torch.ones(2), group=mesh.get_group("data"), group_src=0)
            dist.all_reduce(torch.ones(8))
        return traffic.by_dimension()

    for sent in run_ranks(on_a_rank, 4, device="cpu", measure=False).results:
        assert sent == {"data": 8, "tensor": 2 * 16, "another group": 2 * 32}


def test_what_is_wrong_is_said_once_or_rank_by_rank():
    assert by_rank("y", [None, None]) is None
    assert by_rank("y", ["is 2", "is 2"]) == "y, on 2 ranks:\nall ranks: is 2"
    assert by_rank("y", [None, "is 2"]).splitlines()[1:] == ["rank 0: right", "rank 1: is 2"]


def test_a_wrong_tensor_is_told_from_a_missing_one():
    right = {"shape": [2], "numbers": [1.0, 2.0]}
    assert wrong_tensor(right, right, {}) is None
    assert "missing" in wrong_tensor(None, right, {})
    assert "shape" in wrong_tensor({"shape": [1, 2], "numbers": [1.0, 2.0]}, right, {})
    assert "3 times the right norm" in wrong_tensor({"shape": [2], "numbers": [3.0, 6.0]}, right, {})
    assert "NaN" in wrong_tensor({"shape": [2], "numbers": [float("nan"), 6.0]}, right, {})
    assert wrong_tensor({"shape": [2], "numbers": [3.0, 6.0]}, right, {"a mean": {"numbers": [3.0, 6.0]}}) == "a mean"


def test_collectives_in_words():
    assert in_words([]) == "nothing"
    assert in_words([["all_reduce", 2000]] * 2 + [["barrier", 0]]) == "2 x all_reduce of 2,000 B, 1 x barrier"


@pytest.mark.parametrize("owners", [[[0, 0, 1], [1, 2, 2]], [[0, 0, 0, 0]]])
def test_pictures_can_be_drawn(owners, tmp_path):
    drawn = (split_picture(), crossing_picture(), heads_picture(owners, 1 + owners[-1][-1]), mesh_picture(2, 2))
    for i, figure in enumerate((*drawn, overlap_picture(0.1, 0.2, len(owners)))):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_gradient_summed_in_place_is_refused_for_that_alone_and_ends_no_rank():
    (mutant,) = (m for m in topics()["tensor_parallel"].mutants if m.name == "sums the gradient in place")
    said = {v.check: v.diagnosis for v in verdicts(mutant.part, run_answers(mutant.source())) if not v.passed}
    assert list(said) == ["keeps_what_comes_in"]
    assert "the incoming gradient of Enter" in said["keeps_what_comes_in"]
    assert "was changed in place" in said["keeps_what_comes_in"]


@pytest.mark.parametrize(
    ("computing", "sending", "chunks", "title"),
    [
        (0.05, 0.15, 1, "1 chunk: 200 ms, waiting 75%"),
        (0.1, 0.2, 10, "10 chunks: 210 ms, waiting 52%"),
        (0.2, 0.1, 10, "10 chunks: 210 ms, waiting 5%"),
    ],
)
def test_chunks_overlap_as_the_formula_says(computing, sending, chunks, title):
    (axes,) = overlap_picture(computing, sending, chunks).axes
    assert axes.get_title() == title
