"""Check of part 5: the tokens of a file of chats, and which of them count in the loss."""

import copy
import random
from typing import Any

from tokenizers.processors import TemplateProcessing

from ...core.byte_tokenizer import byte_tokenizer
from ..base import Check, Evidence

# Another form than the tokenizer's own: a header is no line, and nothing follows the end of a turn.
OTHER_TEMPLATE = (
    "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
# As in Mistral's: the chat begins with a token, contents are stripped, and only the assistant's turns have an end.
STRIPPING_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content | trim + eos_token }}"
    "{% else %}{{ '[INST] ' + m.content | trim + ' [/INST] ' }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "its own template": None,
    "a template whose headers are '[role] ' and whose turns all end with eos_token": OTHER_TEMPLATE,
    "a template that begins with bos_token, strips contents, and ends only answers with eos_token": STRIPPING_TEMPLATE,
}
SPECIAL = {256: "<end>", 257: "<begin>"}
WHOLE = "Apply the template to the whole chat, not to each turn by itself."
ADDED = "its first token was added by the tokenizer. The template already supplies all special tokens."
WORDS = ("add", "seven", "four", "to", "it", "and", "then", "twice", "assistant", "user")


def small_chats(seed: int = 0) -> tuple[list[list[dict[str, str]]], Any, int]:
    """Return what part 5 is tried on: chats as in a `messages` file, a tokenizer, and the most tokens of a chat."""
    dice, tokenizer = random.Random(seed), _tokenizer()
    chats = [_chat(dice, pairs) for pairs in (1, 3, 2, 1, 4, 2)]
    chats[0].append({"role": "user", "content": "and then?"})  # which nobody answers
    repeated = chats[1][-1]["content"]
    chats[1][0]["content"] = f"{repeated} {repeated}"  # an answer's words are in the question, too
    chats[2][-1]["content"] = f"  {chats[2][-1]['content']}\n"  # as code begins and ends
    asked = ("system", "Be brief."), ("user", "seven?")
    chats.insert(3, _turns(*asked))  # and no answer at all
    two, none = (("assistant", "seven."), ("assistant", "  twice four")), ("assistant", "")  # answers at once, words
    chats.append(_turns(*asked, *two, ("user", "and then?")))
    chats.append(_turns(asked[1], none, ("user", "four?"), ("assistant", "four.")))
    longest = sorted(chats, key=lambda chat: len(_ids(chat, tokenizer)))[-2]
    chats.append(copy.deepcopy(longest))
    chats[-1][-1]["content"] = chats[-1][-1]["content"][:-1] + "é"  # as many letters, one token more
    return chats, tokenizer, len(_ids(longest, tokenizer))


def _tokenizer() -> Any:
    """Return the tokenizer of bytes with tokens of its own for the end of a turn and the beginning of a text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<end>", "bos_token": "<begin>"})
    tokenizer.chat_template = tokenizer.chat_template.replace("'\x02'", "eos_token")
    return tokenizer


def _begin_texts(tokenizer: Any) -> None:
    """Let the tokenizer put its first token before each text unless it is told not to, as that of Llama does."""
    name, token = tokenizer.bos_token, tokenizer.bos_token_id
    begin = TemplateProcessing(single=f"{name} $A", special_tokens=[(name, token)])
    tokenizer.backend_tokenizer.post_processor = begin


def _chat(dice: random.Random, pairs: int) -> list[dict[str, str]]:
    system = [{"role": "system", "content": "Be brief."}] if dice.random() < 0.5 else []
    roles = [role for _ in range(pairs) for role in ("user", "assistant")]
    return system + [{"role": role, "content": " ".join(dice.choices(WORDS, k=dice.randint(1, 6)))} for role in roles]


def _turns(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def _ids(chat: list[dict[str, str]], tokenizer: Any) -> list[int]:
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _numbers(found: Any) -> list[list[list[int]]]:
    """Return the pairs of an answer; none where they are not of the kinds that `_kinds` then reports."""
    try:
        return [[[int(i) for i in part] for part in pair] for pair in found]
    except (TypeError, ValueError):
        return []


def _kinds(found: Any) -> str:
    """Return in words what an answer returns: of which types its parts are."""
    if not isinstance(found, list | tuple):
        return f"a {type(found).__name__}"
    if not found:
        return f"an empty {type(found).__name__}"
    odd = [pair for pair in found if not isinstance(pair, list | tuple) or len(pair) != 2]
    if odd:
        return f"a {type(found).__name__} of {type(odd[0]).__name__}s that are not pairs"
    names = [sorted({type(part).__name__ for part in level}) for level in _levels(found)]
    return f"a {type(found).__name__} of pairs of {' and '.join(names[0])}, which hold {' and '.join(names[1])}"


def _levels(found: Any) -> tuple[list, list]:
    lists = [part for pair in found for part in pair]
    return lists, [item for part in lists if hasattr(part, "__iter__") for item in part]


class OnlyAnswersCount(Check):
    """The labels are the assistant's tokens up to the end of each turn; chats that are too long are left out."""

    points = 1
    hint = (
        "The text of apply_chat_template(turns[:i], add_generation_prompt=True, tokenize=False) ends where turn i "
        "begins.\n"
        "The answer ends with the first tokenizer.eos_token_id after this point, and this token counts as well."
    )

    @staticmethod
    def probe(seed: int, labeled_chats: Any) -> Evidence:
        seen = {}
        for name, template in TEMPLATES.items():
            chats, tokenizer, longest = small_chats(seed + 1)
            if template:
                tokenizer.chat_template = template
                longest = len(_ids(chats[-1], tokenizer)) - 1
                _begin_texts(tokenizer)
            given = copy.deepcopy(chats)
            try:
                found = labeled_chats(given, tokenizer, longest)
            except Exception as error:
                if not template:
                    raise
                seen[name] = {"error": type(error).__name__, "text": " ".join(str(error).split())[:200]}
                continue
            seen[name] = {"pairs": _numbers(found), "kinds": _kinds(found), "changed": given != chats}
            seen[name]["longest"] = longest
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for template, want in expected.items():
            if "error" in seen[template]:
                return f"With {template}, labeled_chats raised {seen[template]['error']}: {seen[template]['text']}"
            if seen[template]["kinds"] != want["kinds"]:
                return f"labeled_chats returns {seen[template]['kinds']}; it should return {want['kinds']}."
            if seen[template]["changed"]:
                return "labeled_chats has changed `chats`. Work on a copy."
            got, asked = seen[template]["pairs"], want["pairs"]
            wrong = OnlyAnswersCount._no_chat(got, [ids for ids, _ in asked])
            if len(got) != len(asked) and wrong:
                return f"With {template}, {wrong}"
            if len(got) != len(asked):
                return f"With {template}, {OnlyAnswersCount._wrong_choice(got, asked, want['longest'])}"
            for number, (mine, right) in enumerate(zip(got, asked, strict=True)):
                wrong = OnlyAnswersCount._wrong(mine, right)
                if wrong:
                    return f"With {template}, chat {number} of those returned: {wrong}"
        return None

    @staticmethod
    def _wrong_choice(got: list[list[list[int]]], asked: list[list[list[int]]], longest: int) -> str:
        """Say which chats do not come back, or that too many do."""
        diagnosis = f"{len(got)} chats come back; {len(asked)} should: those of at most `longest` tokens."
        missing = next((pair for pair in asked if pair[0] not in [ids for ids, _ in got]), None)
        if missing:
            ids, labels = missing
            diagnosis += f" A chat of {len(ids)} tokens is missing, {sum(i != -100 for i in labels)} of them the "
            diagnosis += f"assistant's; `longest` is {longest}."
        return diagnosis

    @staticmethod
    def _no_chat(got: list[list[list[int]]], chats: list[list[int]]) -> str | None:
        """Say which of the pairs that come back has tokens that none of the chats has."""
        for number, (ids, _) in enumerate(got):
            if ids not in chats:
                which = f"chat {number} of those returned"
                if ids[1:] in chats:
                    return f"{which}: {ADDED}"
                begun = next((chat for chat in chats if ids.count(chat[0]) > chat.count(chat[0]) == 1), None)
                if begun:
                    return f"{which}: the token that begins a chat occurs {ids.count(begun[0])} times. {WHOLE}"
                return (
                    f"{which}: its {len(ids)} token ids match none of the chats. Use the template's text for all "
                    "turns, without additions or omissions."
                )
        return None

    @staticmethod
    def _wrong(mine: list[list[int]], right: list[list[int]]) -> str | None:
        if mine[0][1:] == right[0]:
            return ADDED
        if mine[0] != right[0]:
            if mine[0].count(right[0][0]) > right[0].count(right[0][0]) == 1:
                return f"the token that begins a chat occurs {mine[0].count(right[0][0])} times. {WHOLE}"
            return f"its {len(mine[0])} token ids are not the {len(right[0])} that the template gives for its turns."
        if len(mine[1]) != len(right[1]):
            return f"there are {len(mine[1])} labels for {len(right[0])} tokens."
        pairs = list(zip(mine[1], right[1], strict=True))
        if any(a not in (b, -100) for a, b in pairs if b != -100):
            return "a label differs from the token at its position. (The model itself shifts labels by one.)"
        odd = [a for (a, b), token in zip(pairs, right[0], strict=True) if b == -100 and a not in (b, token)]
        if odd:
            return f"a token that does not count has label {odd[0]}. It should be -100, which cross-entropy ignores."
        more = [place for place, (a, b) in enumerate(pairs) if a != b == -100]
        less = [place for place, (a, b) in enumerate(pairs) if b != a == -100]
        if more or less:
            where, of_it = _around(right[0], min(more + less)), sum(b != -100 for b in right[1])
            found = []
            if more:
                count = "1 token counts" if len(more) == 1 else f"{len(more)} tokens count"
                found.append(f"{count} although the assistant did not write {'it' if len(more) == 1 else 'them'}.")
            if less:
                missing = f"{len(less)} {'does' if len(less) == 1 else 'do'} not count"
                found.append(f"Of the {of_it} tokens that it wrote (answers, and the ends of its turns), {missing}.")
            if not more:
                found[0] = found[0].replace("it wrote", "the assistant wrote")
            return f"{' '.join(found)} The first wrong label is at {where}."
        return None


def _around(ids: list[int], place: int) -> str:
    """Return a token of a chat as text, and what is in front of it."""
    before, token = (
        "".join(chr(i) if i < 128 else SPECIAL.get(i, "?") for i in part)
        for part in (ids[max(0, place - 12) : place], ids[place : place + 1])
    )
    return f"token {place}, {token!r}, after {before!r}" if before else f"token {place}, {token!r}"


CHATS = (OnlyAnswersCount,)
