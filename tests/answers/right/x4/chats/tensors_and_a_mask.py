# tensors and a mask

import torch


def labeled_chats(chats, tokenizer, longest):
    def ids_of(turns, **options):
        text = tokenizer.apply_chat_template(turns, tokenize=False, **options)
        return tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]

    pairs = []
    for chat in chats:
        ids = ids_of(chat)
        written = torch.zeros_like(ids, dtype=torch.bool)
        ends = (ids == tokenizer.eos_token_id).nonzero().flatten()
        for n in (n for n, turn in enumerate(chat) if turn["role"] == "assistant"):
            start = len(ids_of(chat[:n], add_generation_prompt=True))
            written[start : ends[ends >= start][0] + 1] = True
        if len(ids) <= longest:
            pairs.append((ids.tolist(), torch.where(written, ids, -100).tolist()))
    return pairs
