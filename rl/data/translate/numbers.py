"""The numbers of a text by value, in English and Japanese: what a translation lost, and what it added.

Digits in any width, kanji numerals before a counter, fractions (3/4, 4分の3, 半分), scales (1.5 million, 150万), durations
(2.5 hours, 2時間30分) and number words (twelve, twice, 倍) are read. Everything is exact (`Fraction`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from rewards.grading.numerals import spoken_number
from rewards.grading.vocabulary import NUMBER_WORDS, SCALES
from rl.data.translate.marks import ja_scaled

Values = frozenset[Fraction]

_DIGITS = r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+"
_EN_WORD = "|".join(sorted((*NUMBER_WORDS, *SCALES, "and"), key=len, reverse=True))
_EN_NUMBER = re.compile(
    rf"(?P<mixed>\d+[ -]\d+/\d+)|(?P<fraction>\d+/\d+)(?![/\d])|(?P<time>\d{{1,2}}:\d\d)"
    rf"|(?P<digits>{_DIGITS})(?:[ -](?P<scale>hundred|thousand|million|billion|trillion)s?\b)?",
    re.IGNORECASE,
)
_EN_SPOKEN = re.compile(rf"\b(?:{_EN_WORD})(?:[ -]+(?:{_EN_WORD}))*\b", re.IGNORECASE)
# Words that say a number: value by pattern. A translation may write them in digits, and the other way round.
_EN_IMPLIED: dict[str, tuple[int | str, ...]] = {
    r"hal(?:f|ves|ved|ving)|semi\w*": ("1/2", 50), r"half (?:an )?(?:hour|minute)s?|hours? and a half": (30, "1/2"),
    r"half (?:a )?dozen": (6,), r"half (?:a )?year|years? and a half": (6,), r"half (?:a )?day": (12,),
    r"and a half": ("1/2", "1.5"), r"quarters?|fourths?": ("1/4", 25, 15, 4, 3), r"three[- ]quarters?": ("3/4", 75, 45),
    r"thirds?": ("1/3", 3), r"two[- ]thirds": ("2/3",), r"fifths?": ("1/5", 5), r"sixths?": ("1/6", 6),
    r"sevenths?": ("1/7", 7), r"eighths?": ("1/8", 8), r"ninths?": ("1/9", 9), r"tenths?": ("1/10", 10),
    r"hundredths?": ("1/100",), r"first": (1,), r"second(?:ly)?": (2,),
    r"twice|doubl\w*|both|pairs?|couples?|twins?|duo": (2,), r"triplets?|tripl\w*|thrice|trio": (3,),
    r"quadrupl\w*": (4,), r"quintupl\w*": (5,), r"dozens?": (12,), r"scores?": (20,), r"decades?": (10,),
    r"century|centuries": (100,), r"none|no|zero|nothing": (0,), r"noon|midnight|midday": (12, 0, 24),
}  # fmt: skip
# Words that explain a number of the translation, and never replace one of the source.
_EN_RELATED: dict[str, tuple[int | str, ...]] = {
    r"nickels?": (5,), r"dimes?": (10,), r"penn(?:y|ies)": (1,), r"quarters?": (25,), r"fortnights?": (2, 14), r"hal(?:f|ves)": (2,),
    r"either|two-way|round[- ]?trips?|bi\w+|other|another|remaining|each|respectively": (2,), r"feet|foot": (12,),
    r"weekly|weeks?|daily|every ?day": (7,), r"weekends?": (2,), r"weekdays?": (5,), r"years?|annual\w*|yearly": (12, 365, 52),
    r"percent\w*": (100,), r"leap": (366,),
}  # fmt: skip
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_Table = list[tuple[re.Pattern[str], tuple[int | str, ...]]]
_IMPLIED: _Table = [(re.compile(rf"\b(?:{w})\b"), values) for w, values in _EN_IMPLIED.items()]
_IMPLIED += [
    (re.compile(rf"\b(?:{month}|{month[:3]}\.)(?![a-z])"), (i,)) for i, month in enumerate(_MONTHS, start=1)
]
_RELATED: _Table = [(re.compile(rf"\b(?:{w})\b"), values) for w, values in _EN_RELATED.items()]
_PM = re.compile(r"p\.?m\b|afternoon|evening|night", re.IGNORECASE)

_KANJI = "一二三四五六七八九十百千万億"
_COUNTER = (
    "人|名|個|つ|本|枚|冊|台|匹|頭|羽|回|日|時|分|秒|年|月|週|か月|ヶ月|カ月|歳|才|円|ドル|セント|倍|杯|箱|袋|組|段|階|周|件|点|番目|種類|家族|ヶ所|か所"
    "|カ所|キロ|メートル|グラム|リットル|マイル|ポンド|インチ|フィート|パック|セット|ダース|ページ|割|切れ|輪|束|足|着|部屋|部|曲|問|歩|粒|玉|株|皿|缶|瓶|両日|等分|世代|次|年生"
)
# Words that only look like a number before a counter.
_NOT_NUMBERS = re.compile(
    "一番(?!目)|一方|一緒|一部|一般|一度に|一日中|一体|一切|一気|一層|一致|一定|一種|一見|一同|一生|一旦|唯一|統一|均一|万一|万年筆|十分(?!間|後|前|ごと|おき)"
    "|二度と|三日月|三輪車|一輪車|七面鳥|八百屋|百貨店|千葉|四季|四方|三角|四角|五角|六角|八角|三脚|第三者|一人前|九九|百科|十字|二酸化|一連|一斉|一斤"
)
_JA_NUMBER = re.compile(
    rf"(?P<below>{_DIGITS}|[{_KANJI}]+)\s*分の\s*(?P<above>{_DIGITS}|[{_KANJI}]+)"
    rf"|(?P<hours>{_DIGITS})\s*時間(?:と)?\s*(?:(?P<minutes>\d+)\s*分|(?P<half>半))"
    rf"|(?P<minute>{_DIGITS})\s*分(?:と)?\s*(?P<second>\d+)\s*秒"
    rf"|(?P<mixed>\d+)\s*と\s*(?P<part>\d+/\d+)|(?P<fraction>\d+/\d+)(?![/\d])|(?P<time>\d{{1,2}}:\d\d)"
    rf"|(?P<scaled>(?:{_DIGITS})(?:[百千万億兆]+(?:{_DIGITS})?)+)|(?P<digits>{_DIGITS})(?P<wari>\s*割)?"
    rf"|(?P<kanji>[{_KANJI}]+)(?={_COUNTER})|(?P<long>[{_KANJI}]{{2,}})"
)
_JA_IMPLIED: dict[str, tuple[int | str, ...]] = {
    "半": ("1/2", 50, 30, 6, 12, "1.5"), r"(?<![\d一-九十百千])倍|両|往復|ペア|双子|ふた[りつ]": (2,),
    "みっつ|トリプル": (3,), "よっつ": (4,), "いつつ": (5,), "ダース": (12,), "正午|真夜中|零時": (12, 0, 24),
    "ゼロ|全く|一切|なし|ない": (0,), "隔[日週月年]|一日おき": (2,), "四半": ("1/4",), "世紀": (100,), "一昨": (2,),
}  # fmt: skip
_JA_RELATED: dict[str, tuple[int | str, ...]] = {
    "半": (2,), "週": (7,), "年": (12, 365, 52), "平日": (5,), "週末|土日": (2,), "パーセント|%": (100,), "午|昼": (12,),
    "もう|残り|お互い|それぞれ|他": (2,),
}  # fmt: skip
_JA_IMPLYING: _Table = [(re.compile(words), values) for words, values in _JA_IMPLIED.items()]
_JA_RELATING: _Table = [(re.compile(words), values) for words, values in _JA_RELATED.items()]


@dataclass(frozen=True)
class Number:
    """One number as written. readings: sets of values; the number is present where all values of one set are."""

    surface: str
    readings: tuple[Values, ...]


@dataclass
class Numbers:
    """The numbers of a text.

    stated: those that a translation must keep. implied: values that words say ("twice"). related: values that words only
    explain (a week has 7 days).
    """

    stated: list[Number] = field(default_factory=list)
    implied: set[Fraction] = field(default_factory=set)
    related: set[Fraction] = field(default_factory=set)

    def add(self, surface: str, *readings: Iterable[Fraction | int]) -> None:
        sets = tuple(frozenset(map(Fraction, values)) for values in readings)
        self.stated.append(Number(surface.strip(), sets))

    def values(self) -> set[Fraction]:
        """Every value that the text could mean. 1 is always among them: "an hour" is 1時間."""
        return {
            Fraction(1),
            *self.implied,
            *(v for n in self.stated for values in n.readings for v in values),
        }


@dataclass(frozen=True)
class Difference:
    """Numbers of the source that the translation lacks, and numbers of the translation that the source lacks."""

    lost: list[str]
    new: list[str]


def compare(source: str, translation: str, source_language: str, to: str) -> Difference:
    """What the translation did to the numbers of the source, in the order of the texts."""
    ours, theirs = read(source, source_language), read(translation, to)
    return Difference(
        _absent(ours.stated, theirs.values()), _absent(theirs.stated, ours.values() | ours.related)
    )


def read(text: str, language: str) -> Numbers:
    """The numbers of a text in English or Japanese."""
    folded = unicodedata.normalize("NFKC", text).replace("−", "-").replace("⁄", "/")
    return _japanese(folded) if language == "ja" else _english(folded)


def _absent(numbers: list[Number], there: set[Fraction]) -> list[str]:
    absent = [n.surface for n in numbers if not any(values <= there for values in n.readings)]
    return list(dict.fromkeys(absent))


def _by_words(text: str, table: _Table) -> set[Fraction]:
    return {Fraction(v) for pattern, values in table if pattern.search(text) for v in values}


def _english(text: str) -> Numbers:
    found = Numbers()
    afternoon = _PM.search(text) is not None
    for match in _EN_NUMBER.finditer(text):
        if match["mixed"]:
            whole, above, below = map(int, re.split(r"[ /-]", match["mixed"]))
            _mixed(found, match[0], whole, above, below)
        elif match["fraction"]:
            _fraction(found, match[0], *map(int, match["fraction"].split("/")))
        elif match["time"]:
            _time(found, match[0], afternoon)
        else:
            value = _value(match["digits"]) * 10 ** SCALES.get((match["scale"] or "").lower(), 0)
            _plain(found, match[0], value, afternoon)
    for match in _EN_SPOKEN.finditer(text):
        words = re.sub(r"^(?:and[ -]+)+|(?:[ -]+and)+$", "", match[0], flags=re.IGNORECASE)
        _spoken_words(found, words)
    lower = text.lower()  # four times faster than patterns that ignore case
    found.implied |= _by_words(lower, _IMPLIED)
    found.related = _by_words(lower, _RELATED)
    return found


def _spoken_words(found: Numbers, words: str) -> None:
    """A run of number words; "two and three" and "one two" are several numbers."""
    for part in re.split(r"(?<!hundred)(?<!thousand)(?<!million)[ -]+and[ -]+", words, flags=re.IGNORECASE):
        value = spoken_number(part)
        if value is None:
            continue
        if value <= 1 or all(word.lower() in SCALES for word in re.split(r"[ -]+", part)):
            found.implied |= {Fraction(value)}
        else:
            units = [spoken_number(word) or 0 for word in re.split(r"[ -]+", part)]
            found.add(part, [value], [v for v in units if v])


def _japanese(text: str) -> Numbers:
    found = Numbers()
    text = _NOT_NUMBERS.sub(lambda match: "・" * len(match[0]), text)
    for match in _JA_NUMBER.finditer(text):
        if match["below"]:
            _fraction(found, match[0], *map(int, map(_ja_value, (match["above"], match["below"]))))
        elif match["hours"]:
            hours = _value(match["hours"])
            minutes = Fraction(match["minutes"] or 30)
            found.add(match[0], [hours, minutes], [hours + minutes / 60], [hours * 60 + minutes])
        elif match["minute"]:
            minutes, seconds = _value(match["minute"]), Fraction(match["second"])
            found.add(match[0], [minutes, seconds], [minutes + seconds / 60], [minutes * 60 + seconds])
        elif match["mixed"]:
            _mixed(found, match[0], int(match["mixed"]), *map(int, match["part"].split("/")))
        elif match["fraction"]:
            _fraction(found, match[0], *map(int, match["fraction"].split("/")))
        elif match["time"]:
            _time(found, match[0], "午後" in text)
        elif match["digits"] and match["wari"]:
            tenths = _value(match["digits"])
            found.add(match[0], [tenths], [tenths * 10], [tenths / 10])
        else:
            surface = match["scaled"] or match["digits"] or match["kanji"] or match["long"]
            _plain(found, surface, _ja_value(surface), "午後" in text)
    found.implied |= _by_words(text, _JA_IMPLYING)
    found.related = _by_words(text, _JA_RELATING)
    return found


def _plain(found: Numbers, surface: str, value: Fraction, afternoon: bool) -> None:
    readings = [[value]]
    if value.denominator > 1 and value * 60 % 1 == 0:
        readings.append([Fraction(int(value)), value % 1 * 60])  # 2.5 hours are 2 hours and 30 minutes
    if value.denominator > 1:
        readings += [[value * 100]] if value < 1 else []
        readings.append([Fraction(int(value)), value % 1])
    elif value > 60 and value % 60:
        readings.append([Fraction(value // 60), value % 60])
    if value.denominator == 1 and value < 24 and afternoon:
        readings.append([(value + 12) % 24])
    found.add(surface, *readings)


def _fraction(found: Numbers, surface: str, above: int, below: int) -> None:
    found.add(surface, *([[Fraction(above, below)]] if below else []), [above, below])


def _mixed(found: Numbers, surface: str, whole: int, above: int, below: int) -> None:
    part = Fraction(above, below or 1)
    found.add(surface, [whole + part], [whole, part], [whole, above, below])


def _time(found: Numbers, surface: str, afternoon: bool) -> None:
    hour, minute = map(int, surface.split(":"))
    later = [[hour + 12, minute], [hour - 12, minute]] if afternoon else []
    found.add(surface, *([h, *([m] if m else [])] for h, m in [[hour, minute], *later]))


def _value(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


def _ja_value(text: str) -> Fraction:
    if text[0].isdecimal() or text[0] == ".":
        return ja_scaled(text)
    return Fraction(spoken_number(text) or 0)
