"""Words around a number, and golds that are not numbers, each with similar cases and the value that a person reads."""

from __future__ import annotations

import pytest

from rewards.grading import Grader
from rewards.grading.golds import GoldError, canonical_gold

# "answer | gold", several to a line.
RIGHT = r"""
3 lakh | 300000 ## 2.5 million | 2500000 ## 1 quadrillion | 1000000000000000 ## 5 tn | 5000000000000
5K | 5000 ## 5 thousand million | 5000000000 ## \text{5 hundred thousand} | 500000
7 billionths | 7/1000000000 ## 1 third | 1/3 ## 5 twentieths | 0.25 ## 5 ninths of the cake | 5/9
3 halves | 1.5 ## 3 quarters | 3/4 ## 5 degrees below zero | -5 ## 5°C below zero | -5 ## 零下5度 | -5
負の5 | -5 ## 氷点下5.5℃ | -5.5 ## 5ダース | 60 ## 5ダース | 5 ## 5 dozen | 60 ## 5 dozens of eggs | 60
5億5千万 | 550000000 ## 5百万円 | 5000000 ## 5ビリオン | 5000000000 ## 5ビリオンドル | 5000000000 ## 18人の生徒 | 18
18個のりんご | 18 ## りんごの数は18個です | 18 ## 利益は18ドル | 18 ## 三角形の面積は18平方センチメートル | 18 ## 面積は18平方センチメートル | 18
18 (eighteen) | 18 ## 百二十 (120) | 120 ## one hundred and five (105) | 105 ## 千八百 (1800) | 1800
18 minus 3 | 15 ## The maximum value is 18 | 18 ## The minimum number of coins is 18 | 18
18 apples! | 18 ## 18 people!! | 18 ## 18個！ | 18 ## 3と3/4 | 3.75 ## 2 and 3/4 | 2.75
2 and 3/4 cups | 2.75 ## 2 and a half | 2.5 ## 2 and one half hours | 2.5 ## -3と1/2 | -3.5
3 and 1/2 | 3, 1/2 ## 1/2 and 3 | 3, 1/2 ## 60\,\frac{\text{miles}}{\text{hour}} | 60
60\frac{\mathrm{m}}{\mathrm{s}} | 60 ## 60\,\frac{\text{m}}{\text{s}^2} | 60
9.8\ \frac{\mathrm{m}}{\mathrm{s^2}} | 9.8 ## \begin{aligned} x &= 9+9 \\ &= 18 \end{aligned} | 18
\begin{align} x &= 18 \\ y &= 2 \end{align} | x=18,y=2 ## \begin{gather*} 18 \end{gather*} | 18
\begin{equation} 18 \end{equation} | 18 ## 18\ \checkmark | 18 ## ✓ 18 | 18 ## \implies 18 | 18
\Rightarrow x = 18 | 18 ## \vspace{2mm}18 | 18 ## \phantom{-}18 | 18 ## \hspace*{1em} 18 | 18
60{}^\circ | 60
\left[ \begin{matrix} 1 \\ 2 \end{matrix} \right] | \begin{bmatrix} 1 \\ 2 \end{bmatrix} ## C\$18 | 18
NZ\$18.50 | 18.5 ## S\$18 | 18 ## US\$18 million | 18000000 ## 18 CHF | 18 ## €18 | 18 ## ₦18 | 18
฿18 | 18 ## INR 18 | 18 ## 18 francs | 18 ## x \ne 2 | (-\infty,2)\cup(2,\infty)
\mathbb{R} \setminus \{-1, 2\} | (-\infty,-1)\cup(-1,2)\cup(2,\infty)
\mathbb{R} \setminus \{2,-1\} | (-\infty,-1)\cup(-1,2)\cup(2,\infty)
\mathbb{R} \backslash \{1\} | x \ne 1 ## \mathbb{R} - \{1\} | x<1 \text{ or } x>1 ## 答：18 | 18
【答え】18 | 18 ## （答）18 | 18 ## 正解: 18 | 18 ## 18（円） | 18 ## 18.5% | 18.5 ## 18 percentage points | 18
18 square meters | 18 ## 18 roots | 18 ## 18 logs | 18 ## 18 degrees | 18 ## 18 feet tall | 18
18 more apples | 18 ## 18 fewer | 18 ## 18 red balls | 18 ## 18 florps | 18 florps ## 18\text{ N} | 18
18 percent | 0.18 ## -18 dollars | -18 ## minus 18 degrees | -18 ## 18-20 | -2 ## 18 each | 18
18 dollars each | 18 ## 18個残ります | 18 ## 18人います | 18 ## 18分かかります | 18 ## 一人あたり18個 | 18 ## 毎日18ページ | 18
18円安い | 18 ## is equal to 18 | 18 ## x is equal to 18 cm | 18 ## 18 千 | 18000 ## 18 万円 | 180000
1.8万人 | 18000 ## 18万4千 | 184000 ## 18カ月 | 18 ## 18ヶ所 | 18 ## 18ぐらい | 18 ## 正の18 | 18 ## 負の18個 | -18
マイナス18度 | -18 ## −18℃ | -18 ## ー18度 | -18 ## negative 18 million | -18000000
18 millionth | 18/1000000 ## 1 eighth | 1/8 ## 3 sixteenths of an inch | 3/16 ## 3 eighths inch | 3/8
5 and 3/8 inches | 5.375 ## 5 3/8 inches | 5.375 ## 1 and 2 | 1,2 ## 18 times | 18
\$18 USD | 18 ## 18 Rs | 18 ## Rs 18 | 18 ## Rs. 18 | 18 ## £18.50 | 18.50 ## 18 bucks | 18
18 grand | 18000 ## \text{18k} | 18000 ## 18 mln dollars | 18000000 ## 18 bn yen | 18000000000
Final answer: 18 | 18 ## The final answer is 18. | 18 ## Therefore, the answer is 18 apples. | 18
The total cost is \$18 | 18 ## Total = 18 | 18 ## The number of apples is 18 | 18
Area: 18 square units | 18 ## The smallest number is 18 | 18 ## Number of ways: 18 | 18
6 pm | 6 PM ## 6 p.m. | 6 PM ## 6\text{ PM} | 6 pm ## 9:00 am | 9am ## 3:30PM | 3:30 p.m. ## Answer: -18 | -18
Answer: - 18 | -18 ## the answer is -18 | -18 ## 答えは-18 | -18 ## 約-18度 | -18 ## USD -18 | -18 ## 合計: -18 | -18
2/3≈0.67 | 2/3 ## 2/3 \approx 0.667 | 2/3 ## 2/3≈67% | 2/3 ## 1234 \approx 1200 | 1234 ## x≈0.67 | 0.67
\sqrt{2} \approx 1.41 | \sqrt{2} ## 2/3 \approx 0.67\text{ m} | 2/3 ## 66.6% ≈ 0.67 | 0.666 ## x=18 | 18
\theta = 18 | 18 ## AB = 18 | 18 ## P(X=2) = 1/2 | 1/2 ## 3\text{ cm} + 2\text{ cm} = 5 | 5
3 cm + 2 cm = 5 cm | 5 ## \binom{5}{2} = 10 | 10 ## \int_0^1 2x dx = 1 | 1 ## \sqrt{2} \cdot \sqrt{8} = 4 | 4
18 different ways | 18 ## りんごの数は18 | 18 ## 正の18 | 18 ## 1,000分の1 | 1/1000 ## 百分の1 | 1/100 ## 千分の3 | 3/1000
1万分の1 | 1/10000 ## 十分の7 | 0.7 ## 1000分の1 | 0.001 ## \$18 million | 18000000 ## $18 m$ | 18 ## $18\text{ t}$ | 18
\$5k | 5000 ## £18 bn | 18000000000 ## \$18 a week | 18 ## 18 m | 18
18食 | 18 ## 18品 | 18 ## 18玉 | 18 ## 18体 | 18 ## 18脚 | 18 ## 18便 | 18 ## 18ですね | 18 ## 18\tag{1} | 18 ## 18\notag | 18
"""

WRONG = r"""
3 lakhs | 3 ## 3 hundred thousandths | 3 ## 3 hundred thousandths | 0.003 ## 3 halves | 3
5 degrees below zero | 5 ## -5 below zero | -5 ## 5 above zero | 5 ## 零下5度 | 5 ## 5 baker's dozen | 5
5 half-dozens | 5 ## 3億萬 | 3 ## 18の半分 | 18 ## 18の2倍 | 18 ## 18を超える | 18 ## 18を下回る | 18 ## 18に満たない | 18
18ではありません | 18 ## 18は間違い | 18 ## 18が下限 | 18 ## 18余り | 18 ## 18強 | 18 ## 18前後 | 18 ## 18台後半 | 18
18番目の素数 | 18 ## 18の約数 | 18 ## 18の階乗 | 18 ## 18の絶対値 | 18 ## 18等分 | 18 ## 18枚足りない | 18 ## 18人不足 | 18
高々18 | 18 ## たかだか18 | 18 ## たった18 | 18 ## 最低18 | 18 ## 18分の1 | 18 ## 2倍の18 | 18 ## 半分の18 | 18
逆数は18 | 18 ## 誤答は18 | 18 ## 18 (nineteen) | 18 ## 18 (十九) | 18 ## one hundred and five (105) | 100
18 (a prime) | 18 ## 18 factorial | 18 ## 18 tripled | 18 ## 18 halved | 18 ## 18 or fewer | 18
18 and up | 18 ## 18 plus | 18 ## 18 minus 3 | 18 ## 18 max. | 18 ## 18 or less | 18 ## 18ish | 18
18 is incorrect | 18 ## 18 too many | 18 ## 18 short | 18 ## wouldn't be equal to 18 | 18
can't equal 18 | 18 ## different to 18 | 18 ## never equals 18 | 18 ## hardly equal to 18 | 18
Wrong: 18 | 18 ## Upper bound: 18 | 18 ## Max: 18 | 18 ## Limit: 18 | 18 ## Not answer: 18 | 18
square root of: 18 | 18 ## half of the total is 18 | 18 ## twice the answer is 18 | 18 ## 18! | 18
3と3/4 | 3 ## 2時間と1/2 | 2 ## 3と5/2 | 3 ## 60\frac{\text{foo}}{\text{bar}} | 60
60\frac{\text{half}}{\text{h}} | 60 ## \begin{aligned} x &= 18 \\ y &= 2 \end{aligned} | 18
\begin{aligned} x &= 18 \\ y &= 2 \end{aligned} | 2 ## \begin{array}{c} 18 \\ 20 \end{array} | 18
\begin{array}{cc} 1 & 8 \end{array} | 18 ## x=1 \\ y=2 | 2 ## 18 \\ 20 | 18 ## 18 \Rightarrow 20 | 18
1\phantom{0}8 | 18 ## \phantom{1}8 | 18
\left( \begin{matrix} 1 \\ 2 \end{matrix} \right) | \begin{pmatrix} 1 \\ 3 \end{pmatrix}
18 Swiss francs | 18 ## x \neq 2 | (-\infty,1)\cup(1,\infty) ## x \neq 2 | 2 ## 18 tens | 18
18 ones | 18 ## 18 score | 18 ## 2 gross | 2 ## 18 square | 18 ## 18 squared | 18 ## 18 root | 18
18 log | 18 ## 18 florps | 18 ## 18 half | 18 ## 18 double | 18 ## 18 x | 18 ## 18 A | 18
18 \text{ x} | 18 ## 18万个 | 180000 ## 18 K | 18 ## 18K | 18 ## 18M | 18 ## 18-20 | 18
from x to 18 | 18 ## x to 18 | 18 ## Limit: 18 | 18 ## Age limit: 18 | 18 ## two times 18 | 18
about half of 18 | 18 ## other answer: 18 | 18 ## \cancel{18} | 18 ## \not{18} | 18
18_{\text{max}} | 18 ## 18^{\text{th}} | 18 ## 18\text{th} | 18 ## 18 (max) | 18
18 \text{ (approx.)} | 18 ## 五18 | 18 ## 18十 | 18 ## 18時30分 | 18 ## 午後3時 | 3 ## 18対20 | 18 ## 18:20 | 18
18点以内 | 18 ## 18点を超えない | 18 ## 18個しかない | 18 ## 18とか | 18 ## 18に近い | 18 ## 18に等しくない | 18 ## 18に等しい | 18
18ちょうど | 18 ## ちょうど18 | 18 ## 18位以内 | 18 ## 18 degrees below freezing | 18 ## 18 degrees under zero | 18
the 18th | 18 ## 5 and 3 eighths | 5 ## 2 million and 3 | 3 ## 18 thousandfold | 18 ## 18-fold | 18
18 fold | 18 ## 18x | 18 ## 18 times more | 18 ## 18 times a day | 18 ## 18 k | 18 ## 18 mil | 18
18 per 100 | 18 ## 18 in 20 | 18 ## 18 out of 20 | 18 ## 18 over 20 | 18 ## 18 to 1 | 18
18 for 1 | 18 ## 18 vs 20 | 18 ## 18 without tax | 18 ## 18 excluding tax | 18 ## 18 except 2 | 18
18 before tax | 18 ## 18 if x=2 | 18 ## 18 unless | 18 ## 18? | 18 ## 18 (?) | 18 ## maybe 18 | 18
18 probably | 18 ## The maximum: 18 | 18 ## at max: 18 | 18 ## The minimum is 18 | 18
\$18m | 18 ## £18m | 18 ## €18 m | 18 ## \$18t | 18 ## \$18\text{B} | 18 ## \$18\text{m} | 18 ## US\$18m | 18
¥18m | 18 ## \$1,800\,\text{m} | 1800 ## \$1.8B | 1.8 ## 6 am | 6 PM ## 6 PM | 6 ## 9:00 am | 9 pm ## 6\text{ p.m.} | 6
18 pm | 18 ## answer - 18 | -18 ## Total – 18 | -18 ## 合計-18 | -18 ## 答え - 18 | -18 ## Result — 18 | -18
the number of apples - 18 | -18 ## Answer - -18 | 18 ## 2/3≈0.66 | 2/3 ## 2/3 \approx 0.5 | 2/3 ## 2/3 \approx 0.66 | 0.66
2/3 ≈ 66% | 2/3 ## 18 \approx 25 | 18 ## 1234 \approx 1300 | 1234 ## 2/3≈1 \times 10^1 | 2/3 ## 18 \approx 20 | 20
-x=18 | 18 ## 2x=18 | 18 ## x/2=18 | 18 ## x^2=18 | 18 ## x+y=18 | 18 ## |x|=18 | 18 ## x%=18 | 18 ## 18=2x | 18
\frac{x}{2}=18 | 18 ## \sqrt{x}=18 | 18 ## \ln x=18 | 18 ## \lfloor x \rfloor = 18 | 18 ## 2\theta=18 | 18 ## x!=18 | 18
3x+1=18 | 18 ## xy/2 = 18 | 18 ## \sin x = 1/2 | 1/2 ## 18 mistake | 18 ## 18 mistakes | 18 ## 18 error | 18
18 (mistake) | 18 ## 18 (error) | 18 ## 18 (different) | 18 ## 18 answer error | 18 ## 18 other answers | 18 ## 18 other | 18
全体の18 | 18 ## xの18 | 18 ## りんごの18 | 18 ## 百分の1 | 1 ## 1,000分の1 | 1
"""


def pairs(table: str) -> list[tuple[str, str]]:
    cells = [cell.split(" | ") for line in table.strip().splitlines() for cell in line.split(" ## ")]
    return [(answer, gold) for answer, gold in cells]


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1) as grader:
        yield grader


@pytest.mark.parametrize(("answer", "gold"), pairs(RIGHT))
def test_a_word_that_changes_the_value_is_read(grader, answer, gold):
    assert grader.compare([(gold, answer)])[0][0] == "correct"


@pytest.mark.parametrize(("answer", "gold"), pairs(WRONG))
def test_a_word_that_may_change_the_value_is_not_dropped(grader, answer, gold):
    assert grader.compare([(gold, answer)])[0][0] in ("wrong", "unparsable")


@pytest.mark.parametrize("answer", ["18 florps", "18の倍数", "18 doubled", "18以外"])
def test_an_unknown_word_is_unparsable(grader, answer):
    """The reason must be `unparsable`: `wrong` would count it as a readable answer."""
    assert grader.compare([("18", answer)])[0][0] == "unparsable"


# -- golds -------------------------------------------------------------------------------------------------------------

ONE_NUMBER = {
    "1,234": "1234", "$18": "18", "18 dollars": "18", "-5": "-5", "− 5": "-5", "5 millions": "5000000",
    "18 thousand": "18000", "5 bn": "5000000000", "1億2000万円": "120000000", "約18": "18", "18人の生徒": "18",
    "氷点下5度": "-5", "5 below zero": "-5", "18 and a half": "18.5", "½": "0.5", "1e5": "100000", "USD 18": "18",
}  # fmt: skip

NO_NUMBER = [
    "18-20", "18–20", "18〜20", "18 to 20", "18から20", "3-2", "10-15 minutes", "1994-95", "18-20%", "$18-$20", "-5--3",
    "18-20 million", "2024-05-01", "2024/05/01", "05/01", "5/1/24", "2024年5月1日", "10:30", "3時間30分", "3:2", "1.2.3",
    "18th", "3rd", "第3回", "18以上", "18以下", "18未満", "18の倍数", "18の半分", "03-1234-5678", "555-1234", "(03) 1234-5678",
    "1,2", "1, 2", "18 or 20", "18+", "18±2", "5 dozen", "2ダース", "5割", "4 quarters", "5ft 6in", "18 florps",
    "6 PM", "9am", "6 p.m.", "$18m", "£18m", "€18 m", "$18t", "Answer - 18", "Total – 18", "合計-18", "答え -18", "18÷20", "1÷2",
]  # fmt: skip

EXPRESSIONS = [
    "\\frac{1}{2}",
    "2\\sqrt{3}",
    "x^2+1",
    "3/4",
    "50%",
    "50 percent",
    "17-12\\sqrt{2}",
    "10-x",
    "3-2i",
    "3-2=1",
    "5k",
]


@pytest.mark.parametrize(("field", "gold"), ONE_NUMBER.items())
def test_a_gold_that_is_one_number_is_that_number(field, gold):
    assert canonical_gold(field, "plain") == canonical_gold(f"#### {field}", "marker") == gold


@pytest.mark.parametrize("field", NO_NUMBER)
def test_a_gold_that_is_not_one_number_is_text_or_rejected(grader, field):
    assert canonical_gold(field, "plain") == field
    assert grader.compare([(field, field)])[0][0] == "correct"
    with pytest.raises(GoldError) as error:
        canonical_gold(f"#### {field}", "marker")
    assert error.value.reason == "unreadable_gold"


# Behind a marker, a note in brackets is dropped only if it is a unit, a noun or a translator's label.
NOTES = {
    "18 (円)": "18", "18 (dollars)": "18", "18 [units]": "18", "18（訳注：円）": "18", "18 (note: dollars)": "18",
    "18（訳注）": "18", "18 (eighteen)": "18", "18 (十八)": "18", "18 million (dollars)": "18000000", "18万 (円)": "180000",
    "3/4 (cup)": "3/4", "-18 (degrees)": "-18",
}  # fmt: skip

UNREADABLE_NOTES = [
    "18 (about) thousand", "18 (approx) million", "18 (million)", "18 (万円)", "18(千円)", "18 (thousand dollars)",
    "18 (以上)", "18 (or more)", "18 (個) 以上", "18 (negative)", "18（約）〜20", "18 (円) 〜 20", "18 (units), 20 (units)",
    "18 (cm) / 2", "18 (cm) - 5", "18 (+ tax) * 3", "18 (a) (b) 20", "18 [注] 20", "18 (十九)", "18 (note: 20)",
    "18 (注: 百)", "18 (note: million)", "18（訳注）百万", "18（訳注）〜20", "18 (割り切れる) 万", "18 (nineteen)", "18 (%) of 20",
    "18 (dozen)", "18 (以上) 円", "18 (円) 以下", "18 [or 20]", "18 (thousands)", "18 (hundred)", "18 (below zero)",
]  # fmt: skip


@pytest.mark.parametrize(("field", "gold"), NOTES.items())
def test_a_note_that_changes_nothing_is_dropped(field, gold):
    assert canonical_gold(f"#### {field}", "marker") == gold


@pytest.mark.parametrize("field", UNREADABLE_NOTES)
def test_a_note_that_may_change_the_number_rejects_the_row(field):
    with pytest.raises(GoldError, match="unreadable_gold"):
        canonical_gold(f"#### {field}", "marker")


@pytest.mark.parametrize("field", EXPRESSIONS)
def test_an_expression_stays_as_it_is_written(field):
    assert canonical_gold(field, "plain") == field


@pytest.mark.parametrize("field", ["3 x 4", "3x4", "8.5 X 11"])
def test_dimensions_are_rejected(field):
    for written, layout in ((field, "plain"), (f"#### {field}", "marker")):
        with pytest.raises(GoldError, match="unreadable_gold"):
            canonical_gold(written, layout)


def test_a_tilde_between_numbers_is_a_range_in_plain_text(grader):
    gold = canonical_gold("5~100", "plain")
    assert [grader.compare([(gold, answer)])[0][0] for answer in ("5100", "5〜100")] == ["wrong", "correct"]


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("18-20", "-2", False),
        ("18-20", "18〜20", True),
        ("18-20", "18 to 20", True),
        ("18-20", "18から20", True),
        ("18-20", "18-21", False),
        ("10-15 minutes", "-5", False),
        ("10-15 minutes", "10–15", True),
        ("2024-05-01", "2018", False),
        ("2024/05/01", "404.8", False),
        ("05/01", "5", False),
        ("1994-95", "1899", False),
        ("18-20%", "-2%", False),
        ("18-20, 30-40", "-2, -10", False),
        ("18-20, 30-40", "30-40, 18-20", True),
        ("1/2-3/4", "-1/4", False),
        ("03-1234-5678", "-6909", False),
        ("3:2", "1.5", False),
        ("18の倍数", "18", False),
        ("18以上", "18", False),
        ("18th", "18", False),
        ("5-\\frac{1}{2}", "4.5", True),
        ("10-x", "-x+10", True),
    ],
)
def test_a_range_or_a_date_is_compared_as_text(grader, gold, answer, right):
    assert (grader.compare([(canonical_gold(gold, "plain"), answer)])[0][0] == "correct") == right
