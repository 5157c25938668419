# places in the text


def labeled_chats(chats, tokenizer, longest):
    found = []
    for turns in chats:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids, labels, done = [], [], 0
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start = len(tokenizer.apply_chat_template(turns[:i], tokenize=False, add_generation_prompt=True))
                end = text.index(tokenizer.eos_token, start) + len(tokenizer.eos_token)
                before = tokenizer.encode(text[done:start], add_special_tokens=False)
                answer = tokenizer.encode(text[start:end], add_special_tokens=False)
                ids += before + answer
                labels += [-100] * len(before) + answer
                done = end
        rest = tokenizer.encode(text[done:], add_special_tokens=False)
        if len(ids) + len(rest) <= longest:
            found.append((ids + rest, labels + [-100] * len(rest)))
    return found
