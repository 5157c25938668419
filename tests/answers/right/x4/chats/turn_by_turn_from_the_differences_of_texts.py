# turn by turn, from the differences of texts


def labeled_chats(chats, tokenizer, longest):
    found = []
    for chat in chats:
        ids, labels, done = [], [], ""
        for n, turn in enumerate(chat, 1):
            text = tokenizer.apply_chat_template(chat[:n], tokenize=False)
            new = tokenizer(text[len(done) :], add_special_tokens=False).input_ids
            counted = [-100] * len(new)
            if turn["role"] == "assistant":
                prompt = tokenizer.apply_chat_template(chat[: n - 1], tokenize=False, add_generation_prompt=True)
                header = len(tokenizer(prompt[len(done) :], add_special_tokens=False).input_ids)
                end = new.index(tokenizer.eos_token_id)
                counted = [token if header <= i <= end else -100 for i, token in enumerate(new)]
            ids, labels, done = ids + new, labels + counted, text
        if len(ids) <= longest:
            found.append([ids, labels])
    return found
