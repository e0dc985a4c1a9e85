"""The vocabulary around a number: what may stand before and behind it, and what changes its meaning."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # powers of ten

SHORT_UNITS = _words(
    "cm mm km kg mg ml dl cl kl cc sq cu hr hrs min mins sec secs lb lbs oz ft in yd mi mph kph kmh qt pt gal pm am"
    " usd jpy eur gbp cad aud yen won rs hz khz pa kpa kw kwh mw cal kcal mol ha ac deg rad pts pcs pc ea day yr yrs wk wks mo"
    " gb mb kb tb kj"
)
LETTER_UNITS = _words("m g L l s h t")
# Short words inside a longer unit: miles per hour, a quarter of the cake.
INNER_WORDS = _words("a an of per in the on for by at is are we he my us up so it")
# These make the number before them a part of the value, or a bound, or no number at all.
NO_UNIT = _words(
    "or and than least most not to plus minus minimum maximum half halves third thirds fourth fourths fifth fifths"
    " sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths squared"
    " cubed factorial sin cos tan log exp sqrt mod inf infinity nan undefined none if divided"
).union(SCALES)
# As regular expressions, searched in Japanese text behind a number.
NO_JAPANESE_UNIT = (
    "以上", "以下", "未満", "超", "より", "以内", "以降", "以前", "半", "または", "もしくは", "あるいは", "から", "まで", "ない",
    "ません", "ではな", "分の", r"[弱強か]\s*$", r"^\s*[乗割厘]", "[〇零一二三四五六七八九十百千万億兆]",
)  # fmt: skip

# The last word before a number: "the answer is 18", "about 18", "USD 18". Any word may stand before a colon.
INTRODUCING = _words(
    "is are was were equals equal to has have about approximately approx around roughly nearly exactly answer total"
    " result sum us usd jpy eur gbp rs"
)
# These turn an introduction into a bound, a denial or a piece of code.
NO_INTRODUCING = _words("not never no least most than over under between up if else lambda")
# A short Japanese noun may stand before a number, a longer phrase when it ends in one of these.
JAPANESE_INTRODUCING = (
    "は", ":", "約", "およそ", "おおよそ", "ほぼ", "だいたい", "計", "全部で", "残り", "答え", "合わせて", "よって", "ゆえに",
)  # fmt: skip
# As regular expressions: bounds, denials, and the kanji numerals that an Arabic number may not continue.
NO_JAPANESE_INTRODUCING = (
    "最大(?!値|公約数)", "最小(?!値|公倍数)", "最低", "最高", "上限", "下限", "少なくとも", "多くて", "高々", "ない", "以上", "以下",
    "[〇零一二三四五六七八九十百千万億兆]$",
)  # fmt: skip
