"""What the columns of published data sets are called: by words in the name of the data set."""

import json
import re
from typing import Any

from .sound import sound_path

_WORDS = [
    "the",
    "model",
    "reads",
    "a",
    "line",
    "of",
    "the",
    "book",
    "and",
    "learns",
    "what",
    "follows",
    "while",
    "the",
    "other",
    "one",
    "waits",
    "for",
    "its",
    "turn",
    "to",
    "answer",
    "with",
    "a",
    "short",
    "sentence",
    "about",
    "memory",
    "and",
    "time",
    "so",
    "that",
    "every",
    "step",
    "takes",
    "as",
    "long",
    "as",
    "it",
    "should",
    "and",
    "no",
    "more",
    "than",
    "that",
]
TEXT_WORDS, SHORT_WORDS, CLASSES = 1500, 60, 10  # words of a row's text and of its short fields; different labels
LONG_WORDS = 700  # as many as in the longest answers of Alpaca's file, which some programs do not cut

_SHORT_ROWS = 8
_SIDE, _OBJECTS = 256, 7  # pixels of a picture's side, and what it shows

TEXT, SHORT, LABEL, NUMBER, FRACTION, IMAGE, WORDS, TAGS, ANSWERS, TRUTH, ENDINGS, TRANSLATION, LONG = (
    *("text", "short", "label", "number", "fraction"),
    *("image", "words", "tags", "answers", "truth", "endings", "translation", "long"),
)
# A picture of classes; one with the numbers of objects in its second channel; boxes; the numbers of classes; a path.
PIXELS, INSTANCES, OBJECTS, CLASS_IDS, FILE = "pixels", "instances", "objects", "class_ids", "file"
CHATS = {  # kind of column -> roles of its messages
    "ask": ("user",),
    "reply": ("assistant",),
    "turn": ("user", "assistant"),
    "talk": ("user", "assistant", "user", "assistant"),
}
SHARED = "shared"  # a chat as ShareGPT's files have it: "from" and "value" instead of "role" and "content"
_ONE_OF = "one of "  # before the JSON of the texts of which a row has one
SOUNDS = {"speech": 19, "word": 1, "song": 30}  # kind of column -> seconds; many scripts cut at 20
# Words of which one is in the name of the data set: columns with their kinds: splits.
_LAYOUTS = """
common_voice: client_id=short path=short audio=speech sentence=short locale=short: train validation test other
librispeech: file=short audio=speech text=short speaker_id=number chapter_id=number id=short
    : train train.100 train.360 train.500 validation test train.clean.100 train.clean.360 train.other.500
asr: file=short audio=speech text=short speaker_id=number chapter_id=number id=short: train validation test
superb speech_commands: file=short audio=word label=label: train validation test
minds14: path=short audio=speech transcription=short english_transcription=short intent_class=label lang_id=label: train
voxpopuli: audio_id=short audio=speech raw_text=short normalized_text=short speaker_id=short: train validation test
fleurs: id=number path=short audio=speech transcription=short raw_transcription=short lang_id=label
    : train validation test
ljspeech lj_speech: id=short audio=speech file=short text=short normalized_text=short: train
gtzan: file=short audio=song genre=label: train
audiofolder: audio=speech label=label: train validation test
trl-lib/ultrafeedback: chosen=turn rejected=turn: train test
ultrafeedback_binarized: prompt=short chosen=turn rejected=turn messages=talk
    : train test train_prefs test_prefs train_sft test_sft
hh-rlhf-helpful rlaif: prompt=ask chosen=reply rejected=reply: train test
hh-rlhf stack-exchange-paired dpo preference orpo rlhf: prompt=short chosen=text rejected=text: train test
trl-lib/deepmath: prompt=ask solution=short: train test
kto: prompt=ask completion=reply label=truth: train test
ultrachat: prompt=short messages=talk: train test train_sft test_sft train_gen test_gen
capybara oasst no_robots chat messages openhermes smoltalk conversation thoughts: messages=talk: train test
tldr completion: prompt=short completion=text: train validation test
alpaca_data: instruction=short input=short output=long text=long: train
alpaca pissa: instruction=short input=short output=text text=text: train
dolly: instruction=short context=text response=text category=short: train
gsm8k deepmath metamath: question=short answer=short: train test
squad: id=short title=short context=text question=short answers=answers: train validation
samsum dialogsum: id=short dialogue=text summary=short: train validation test
cnn_dailymail: article=text highlights=short id=short: train validation test
wmt opus_books opus100 kde4 iwslt: translation=translation: train validation test
hellaswag: ind=number ctx=short endings=endings label=label: train validation test
swag codah: sent1=short sent2=short ending0=short ending1=short ending2=short ending3=short label=label
    : train validation test
xsum billsum: document=text summary=short text=text: train validation test
sentence-transformers/stsb: sentence1=short sentence2=short score=fraction: train validation test
sentence-transformers: anchor=short positive=short negative=short: train dev test
mnli snli xnli: premise=short hypothesis=short label=label idx=number
    : train validation validation_matched validation_mismatched test
mrpc rte wnli stsb: sentence1=short sentence2=short label=label idx=number: train validation test
qqp: question1=short question2=short label=label idx=number: train validation test
qnli: question=short sentence=short label=label idx=number: train validation test
sst2 cola glue: sentence=short label=label idx=number: train validation test
imdb ag_news yelp emotion sentiment tweet rotten_tomatoes: text=text label=label: train validation test unsupervised
financial_phrasebank: sentence=short label=label: train
conll wnut ner: tokens=words ner_tags=tags pos_tags=tags chunk_tags=tags: train validation test
cifar: img=image label=label fine_label=label: train test
captions dreambooth: image=image text=short: train
fill50k controlnet: image=image conditioning_image=image text=short: train
instructpix2pix instruct-pix2pix: input_image=image edit_prompt=short edited_image=image: train
coco_dataset_script: image_id=number caption_id=number caption=short image_path=file: train validation test
cppe-5 cppe5: image_id=number image=image width=side height=side objects=objects: train test
ade20k-mini: image=image annotation=instances semantic_class_to_id=class_ids: train validation
scene_parse sidewalk segments/: image=image pixel_values=image annotation=pixels label=pixels: train validation
amazon_esci: query=short product_title=short relevance_label=label: train validation test
amazon_reviews: stars=label review_title=short review_body=text product_category=short: train validation test
mnist imagenet food101 beans flowers pets image: image=image label=label labels=label: train validation test
"""
_PLAIN = {"text": TEXT}


def layout_of(name: str) -> tuple[dict[str, str], list[str]]:
    """Return the columns (name -> kind) and the splits of the data set called `name`, with its configuration's name."""
    for line in _LAYOUTS.strip().replace("\n    :", ":").splitlines():
        words, columns, splits = line.split(":")
        if any(word in name.lower() for word in words.split()):
            return dict(column.split("=") for column in columns.split()), splits.split()
    return _PLAIN, ["train", "validation", "test"]


def languages_of(name: str) -> tuple[str, str]:
    """Return the two languages that the name of a data set ends with, as in "wmt16 ro-en"."""
    found = re.search(r"\b([a-z]{2,3})-([a-z]{2,3})$", name)
    return (found[1], found[2]) if found else ("de", "en")


def one_of(texts: list[str]) -> str:
    """Return the kind of a column that holds one of these texts; one text alone may also be absent."""
    return _ONE_OF + json.dumps(texts if len(texts) > 1 else [*texts, "other"])


def is_one_of(kind: str) -> bool:
    """Say whether a kind comes from `one_of`."""
    return kind.startswith(_ONE_OF)


def value(kind: str, row: int, languages: tuple[str, str] = ("de", "en")) -> Any:
    """Return what stands in a column of this kind, in this row; a translation is in two languages."""
    if kind in CHATS:
        roles = CHATS[kind]
        return [{"role": role, "content": _text(TEXT_WORDS // len(roles), row + i)} for i, role in enumerate(roles)]
    if is_one_of(kind):
        texts = json.loads(kind.removeprefix(_ONE_OF))
        return texts[row % len(texts)]
    if kind == SHARED:
        return [{"from": ("human", "gpt")[i % 2], "value": _text(TEXT_WORDS // 4, row + i)} for i in range(4)]
    if kind in SOUNDS:
        return {"bytes": None, "path": sound_path(SOUNDS[kind], row)}
    makers = {
        TEXT: lambda: _text(TEXT_WORDS, row),
        SHORT: lambda: _text(SHORT_WORDS, row),
        LONG: lambda: _text(LONG_WORDS, row),
        LABEL: lambda: row % 2,
        NUMBER: lambda: row,
        FRACTION: lambda: row % 5 / 4,
        IMAGE: lambda: _image(row),
        PIXELS: lambda: _image(row).convert("L").point(lambda level: level % CLASSES),
        INSTANCES: lambda: _image(row).point(lambda level: 1 + level % (CLASSES - 1)),
        OBJECTS: lambda: {
            **{"id": [*range(_OBJECTS)], "area": [50 * 40] * _OBJECTS, "category": [i % 2 for i in range(_OBJECTS)]},
            "bbox": [[10.0 + 20 * i, 10.0, 50.0, 40.0] for i in range(_OBJECTS)],
        },
        CLASS_IDS: lambda: {f"class {number}": number for number in range(CLASSES)},
        FILE: lambda: f"/made-up/{row:06d}.jpg",
        "side": lambda: _SIDE,
        WORDS: lambda: _text(SHORT_WORDS, row).split(),
        TAGS: lambda: [(row + i) % 9 for i in range(SHORT_WORDS)],
        ANSWERS: lambda: {"text": [_text(3, row)], "answer_start": [0]},
        TRUTH: lambda: row % 2 == 0,
        ENDINGS: lambda: [_text(SHORT_WORDS, row + i) for i in range(4)],
        TRANSLATION: lambda: {language: _text(SHORT_WORDS, row) for language in languages},
    }
    return makers[kind]()


def _text(words: int, row: int) -> str:
    """Return a text; one of eight is short, for programs that leave out rows which are too long."""
    if row % _SHORT_ROWS == _SHORT_ROWS - 1:
        words = min(words, SHORT_WORDS)
    return " ".join(_WORDS[(row * 7 + i * (1 + row % 5)) % len(_WORDS)] for i in range(words))


def _image(row: int) -> Any:
    from PIL import Image

    return Image.new("RGB", (_SIDE, _SIDE), (row % 256, 3 * row % 256, 7 * row % 256))
