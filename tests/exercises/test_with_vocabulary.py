"""A model of the catalog with another vocabulary."""

from helpers import with_vocabulary
from helpers.planner.catalog import find_model


def test_only_the_vocabulary_is_another(tmp_path):
    before, after = find_model("llama-3.1-8b").config, find_model(with_vocabulary("llama-3.1-8b", 128, tmp_path)).config
    assert (before.vocab_size, after.vocab_size) == (128_256, 128)
    differ = {key for key, value in before.to_dict().items() if after.to_dict().get(key) != value}
    assert differ == {"vocab_size", "bos_token_id", "eos_token_id"}
