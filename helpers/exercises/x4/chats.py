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
    chats.insert(3, [{"role": role, "content": content} for role, content in asked])  # and no answer at all
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


def _ids(chat: list[dict[str, str]], tokenizer: Any) -> list[int]:
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _kinds(found: Any) -> str:
    """Return in words what an answer returns: of which types its parts are."""
    names = [sorted({type(part).__name__ for part in level}) for level in _levels(found)]
    return f"a {type(found).__name__} of pairs of {' and '.join(names[0])}, which hold {' and '.join(names[1])}"


def _levels(found: Any) -> tuple[list, list]:
    lists = [part for pair in found for part in pair]
    return lists, [item for part in lists for item in part]


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
        for name, template in (("its own template", None), ("another template", OTHER_TEMPLATE)):
            chats, tokenizer, longest = small_chats(seed + 1)
            if template:
                tokenizer.chat_template = template
                longest = len(_ids(chats[-1], tokenizer)) - 1
                _begin_texts(tokenizer)
            given = copy.deepcopy(chats)
            found = labeled_chats(given, tokenizer, longest)
            pairs = [[[int(i) for i in ids], [int(i) for i in labels]] for ids, labels in found]
            seen[name] = {"pairs": pairs, "kinds": _kinds(found), "changed": given != chats}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for template, want in expected.items():
            if seen[template]["kinds"] != want["kinds"]:
                return f"labeled_chats returns {seen[template]['kinds']}; it should return {want['kinds']}."
            if seen[template]["changed"]:
                return "labeled_chats has changed `chats`. Work on a copy."
            got, asked = seen[template]["pairs"], want["pairs"]
            wrong = OnlyAnswersCount._no_chat(got, [ids for ids, _ in asked])
            if len(got) != len(asked) and wrong:
                return f"With {template}, {wrong}"
            if len(got) != len(asked):
                return (
                    f"With {template}, {len(got)} chats come back. Expected are the {len(asked)} chats of at most "
                    "`longest` tokens."
                )
            for number, (mine, right) in enumerate(zip(got, asked, strict=True)):
                wrong = OnlyAnswersCount._wrong(mine, right)
                if wrong:
                    return f"With {template}, chat {number} of those returned: {wrong}"
        return None

    @staticmethod
    def _no_chat(got: list[list[list[int]]], chats: list[list[int]]) -> str | None:
        """Say which of the pairs that come back has tokens that none of the chats has."""
        for number, (ids, _) in enumerate(got):
            if ids not in chats:
                which = f"chat {number} of those returned"
                if ids[1:] in chats:
                    return f"{which}: {ADDED}"
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
            return f"its {len(mine[0])} token ids are not the {len(right[0])} that the template gives for its turns."
        if len(mine[1]) != len(right[1]):
            return f"there are {len(mine[1])} labels for {len(right[0])} tokens."
        pairs = list(zip(mine[1], right[1], strict=True))
        if any(a not in (b, -100) for a, b in pairs if b != -100):
            return "a label differs from the token at its place. (The model itself shifts labels by one.)"
        more, less = (sum(a != b == -100 for a, b in pairs), sum(b != a == -100 for a, b in pairs))
        if more or less:
            return (
                f"{more} tokens count although the assistant did not write them. Of the "
                f"{sum(b != -100 for b in right[1])} tokens that it wrote (answers, and the ends of its turns), {less} "
                "do not count."
            )
        return None


CHATS = (OnlyAnswersCount,)
