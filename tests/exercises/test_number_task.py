"""Numbers in words as a task: what is held out, and what a model of bytes makes of it."""

from helpers import NumberTask, byte_tokenizer

import pytest
import torch


@pytest.fixture(scope="module")
def task():
    # With it comes PEFT: eight seconds that collecting tests need not take.
    from helpers.exercises.reference.adapters_in_practice import pack

    made = NumberTask(byte_tokenizer(), torch.device("cpu"))
    made.pack = pack
    return made


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes)).eval()


def test_no_number_is_both_known_and_unseen(task):
    assert sorted(task.unseen + task.known) == list(range(100, 1000))
    assert set(task.drawn(3)) <= set(task.known)
    assert task.drawn(3) == task.drawn(3) != task.drawn(4)


def test_the_end_of_the_rows_holds_every_answer_and_gives_the_loss_of_whole_rows(task, model):
    logits, labels = task.outputs(model)
    answers = [task.example(n)[1] for n in task.unseen]
    assert [row[row != -100].tolist() for row in labels] == answers
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    with torch.no_grad():
        assert task.loss(model, task.unseen).item() == pytest.approx(loss.item(), rel=1e-4)


def test_answers_of_a_batch_are_those_of_each_alone(task, model):
    numbers = task.unseen[:3]
    assert task.answers(model, numbers) == [task.answers(model, [n])[0] for n in numbers]
