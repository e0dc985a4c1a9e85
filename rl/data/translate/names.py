"""People's names that differ between a translated question and its solution: ナタリア in one, ナタリー in the other.

A name of the English source is found in katakana by its sound; a name with さん or くん by that.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence

_CAPITALISED = re.compile(r"\b[A-Z][a-zà-ÿ]{2,}(?:-[A-Z][a-z]+)?\b")
_KATAKANA = re.compile(r"[ァ-ヶー]{2,}")
_HONORIFIC = re.compile(
    r"([一-鿿々]{1,4}|[ァ-ヶー]{2,}|[ぁ-ん]{2,4}?|[A-Z][a-z]+)(?:さん|くん|君|ちゃん|先生|様|氏)(?![一-鿿])"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_PERSON = _words(
    "お母 母 お父 父 お兄 兄 お姉 姉 弟 妹 お爺 お婆 祖父 祖母 おじい おばあ じい ばあ 皆 みな みんな 赤 赤ちゃん 店 お客 客 花屋 本屋 パン屋 屋 奥 娘 息子 医者 学校 お子 子 たく か じゅう"
    " おじ おば おかあ おとう おにい おねえ 叔父 叔母 伯父 伯母 お嬢 お隣 隣 担任 王"
)
# Capitalised words that are no names, mostly because they begin a sentence.
_NO_NAME = _words(
    "the this that these those there then they them their she her his him its you your our and but for nor not now how what when"
    " where which who whose why after before because since while during each every all both some most many more much one two three"
    " four five six seven eight nine ten twelve first second third next last total half twice if in on at by from with without into"
    " over under out of to an as is are was were has have had does did can could will would should may might must let so thus hence"
    " therefore finally together altogether also only another other same different again later today tomorrow yesterday currently"
    " initially originally suppose assume given find calculate determine add subtract multiply divide monday tuesday wednesday"
    " thursday friday saturday sunday january february march april may june july august september october november december"
    " christmas halloween thanksgiving easter mrs mister miss doctor uncle aunt mom dad mother father grandma grandpa"
)
_ROMAJI = dict(zip("アイウエオ", "aiueo", strict=True)) | {
    "ン": "n",
    "ー": "",
    "ッ": "",
    "ヴ": "b",
    "ヲ": "o",
}
for _row, _consonant in zip(
    ("カキクケコ", "サシスセソ", "タチツテト", "ナニヌネノ", "ハヒフヘホ", "マミムメモ", "ラリルレロ", "ガギグゲゴ", "ザジズゼゾ", "ダヂヅデド", "バビブベボ", "パピプペポ"),
    "kstnhmrgzdbp", strict=True,
):  # fmt: skip
    _ROMAJI |= {kana: _consonant + vowel for kana, vowel in zip(_row, "aiueo", strict=True)}
_ROMAJI |= {
    "ヤ": "ya",
    "ユ": "yu",
    "ヨ": "yo",
    "ワ": "wa",
    "シ": "si",
    "チ": "ti",
    "ツ": "tu",
    "フ": "fu",
    "ジ": "ji",
}
_ROMAJI |= {
    "ァ": "a",
    "ィ": "i",
    "ゥ": "u",
    "ェ": "e",
    "ォ": "o",
    "ャ": "ya",
    "ュ": "yu",
    "ョ": "yo",
    "ヮ": "wa",
}
_LETTERS = [
    ("ge", "zie"), ("ph", "f"), ("ck", "k"), ("ch", "ti"), ("sh", "si"), ("th", "s"), ("qu", "ku"), ("x", "ks"), ("l", "r"), ("v", "b"),
    ("c", "k"), ("q", "k"), ("y", "i"), ("w", "u"), ("j", "zi"), ("ee", "i"), ("oo", "u"),
]  # fmt: skip
SIMILAR = 0.6  # from which on two spellings may be one name


def shared_names(question: str, solution: str) -> list[str]:
    """Words that look like names in both English texts: capitalised, never in lower case, not a common word."""
    found = set(_CAPITALISED.findall(question)) & set(_CAPITALISED.findall(solution))
    lower = set(re.findall(r"\b[a-z]+\b", f"{question} {solution}"))
    return sorted(name for name in found if name.lower() not in _NO_NAME and name.lower() not in lower)


def changed_names(
    question: str, solution: str, to: str, names: Sequence[str] = (), source: str = ""
) -> list[str]:
    """What the translated solution calls people whom the translated question calls otherwise, e.g. ``ナタリア: ナタリー``.

    names: names that the English source uses in both texts. source: the whole English source; both are empty if unknown.
    A name that the solution leaves out is fine.
    """
    if to != "ja":
        return _english(question, solution)
    ours, theirs = unicodedata.normalize("NFKC", question), unicodedata.normalize("NFKC", solution)
    words = set(_KATAKANA.findall(ours))
    new = set(_KATAKANA.findall(theirs)) - words
    changed = []
    for name in names:
        called = name if name in ours else _best(name, words)
        if called and called not in theirs and (other := name if name in theirs else _best(name, new)):
            changed.append(f"{called}: {other}")
    if changed or not (names or _HONORIFIC.search(ours)):
        return changed
    # A name that only the source's solution has is new in the translation too.
    known = set(_CAPITALISED.findall(source))
    for person in dict.fromkeys(_HONORIFIC.findall(theirs)):
        is_there = re.search(rf"{re.escape(person)}(?![一-鿿々ァ-ヶー])", ours)
        if person not in _NO_PERSON and not is_there and not any(_best(name, {person}) for name in known):
            changed.append(f"?: {person}")
    return changed


def _english(question: str, solution: str) -> list[str]:
    lower = set(re.findall(r"\b[a-z]+\b", f"{question} {solution}"))
    ours, theirs = (
        {n for n in _CAPITALISED.findall(text) if n.lower() not in _NO_NAME and n.lower() not in lower}
        for text in (question, solution)
    )
    return [
        f"{other}: {name}"
        for name in sorted(theirs - ours)
        for other in sorted(ours - theirs)
        if _alike(name.lower(), other.lower()) >= SIMILAR
    ]


def _best(name: str, tokens: set[str]) -> str | None:
    """The token that sounds most like the name; None if none does."""
    scored = sorted((_alike(_sound(name), _kana_sound(token)), token) for token in tokens)
    return scored[-1][1] if scored and scored[-1][0] >= SIMILAR else None


def _alike(one: str, other: str) -> float:
    """0 to 1: how similar two sounds are; the consonants alone count slightly less."""
    whole = difflib.SequenceMatcher(None, one, other).ratio()
    bare, other_bare = (re.sub("[aeiouh]", "", sound) for sound in (one, other))
    if min(len(bare), len(other_bare)) < 2:
        return whole
    return max(whole, 0.9 * difflib.SequenceMatcher(None, bare, other_bare).ratio())


def _sound(name: str) -> str:
    text = name.lower()
    for letters, sound in _LETTERS:
        text = text.replace(letters, sound)
    return re.sub(r"(.)\1", r"\1", text.rstrip("e") or text)


def _kana_sound(token: str) -> str:
    text = "".join(_ROMAJI.get(kana, kana) for kana in token)
    text = re.sub(r"(?<=[kstnhmrgzdbpf])[iu](?=[aeiouy])", "", text)  # ティ, ファ, ショ
    for letters, sound in (("v", "b"), ("j", "zi"), ("y", "i"), ("w", "u")):
        text = text.replace(letters, sound)
    return re.sub(r"(.)\1", r"\1", text)
