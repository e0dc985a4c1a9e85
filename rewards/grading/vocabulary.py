"""The closed vocabulary around a number: words that may come before and after it, and words that change its value.

A word that is in none of these tables makes the answer unreadable, because it may change the value.
"""

from __future__ import annotations

from fractions import Fraction


def _list(text: str) -> list[str]:
    return text.split()


def _words(text: str) -> frozenset[str]:
    return frozenset(_list(text))


# -- words that change the value -----------------------------------------------------------------------------------------

SCALES = {
    "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "quadrillion": 15, "lakh": 5, "crore": 7,
    "grand": 3, "サウザンド": 3, "ミリオン": 6, "ビリオン": 9, "トリリオン": 12,
}  # fmt: skip # powers of ten
SHORT_SCALES = {"mln": 6, "mio": 6, "bn": 9, "bln": 9, "tn": 12, "trn": 12}
JAPANESE_SCALES = {"京": 16, "兆": 12, "億": 8, "万": 4, "千": 3, "百": 2}
JAPANESE_SCALE_VARIANTS = {"萬": "万", "亿": "億", "仟": "千", "阡": "千", "佰": "百"}
DENOMINATORS = {
    "halves": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
    "eleventh": 11, "twelfth": 12, "thirteenth": 13, "fourteenth": 14, "fifteenth": 15, "sixteenth": 16,
    "seventeenth": 17, "eighteenth": 18, "nineteenth": 19, "twentieth": 20, "thirtieth": 30, "fortieth": 40,
    "fiftieth": 50, "sixtieth": 60, "seventieth": 70, "eightieth": 80, "ninetieth": 90, "hundredth": 100,
    "thousandth": 1000, "millionth": 10**6, "billionth": 10**9,
}  # fmt: skip # as in five sixths; "second" is missing because it is a unit of time
# Shares and groups have two readings: 2 dozen is 24, or 2 if dozens are asked for; 50 % is 0.5 or 50.
PERCENT = Fraction(1, 100)
SHARES = {
    r"%|per\s?\x02?cent|パーセント": PERCENT,
    r"‰|パーミル": Fraction(1, 1000),
    r"割(?=$|です)": Fraction(1, 10),
    r"dozens?|ダース": Fraction(12),
    r"quarters?": Fraction(1, 4),  # also a coin
}
NUMBER_WORDS = dict(
    zip(
        _list(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
            " seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
        ),
        [*range(20), *range(20, 100, 10)],
        strict=True,
    )
)

# -- English units -------------------------------------------------------------------------------------------------------

SHORT_UNITS = _words(
    "cm mm km kg mg ml dl cl kl cc sq cu hr hrs min mins sec secs lb lbs oz ft in yd mi mph kph kmh qt pt gal"
    " usd jpy eur gbp cad aud nzd hkd sgd twd chf cny rmb inr krw brl rub mxn sek nok dkk zar thb php vnd ils yen won rs"
    " hz khz mhz ghz pa kpa hpa kw kwh mw cal kcal mol ha ac deg rad pts pcs pc ea day yr yrs wk wks mo gb mb kb tb kj ph"
    " tbsp tbs tsp bpm rpm fps psi db ev kgs kms"
)
LETTER_UNITS = _words("m g L l s h t")
TEXT_LETTER_UNITS = LETTER_UNITS | _words("N W V J K C F A B")  # units only in \text{}; otherwise variables
# Short words inside a longer unit: miles per hour, a quarter of the cake.
INNER_WORDS = _words("a an of per in the on for by at each every my our his her their its")
# Countable things and measures, before or after a number, in the singular; plurals are recognised too.
NOUNS = _words(
    # measures
    "unit second minute hour day week weekday weekend fortnight month quarter year decade century night morning evening"
    " millisecond millimeter millimetre centimeter centimetre decimeter decimetre meter metre kilometer kilometre mile"
    " yard foot feet inch acre hectare gram gramme kilogram kilo milligram ton tonne pound ounce liter litre milliliter"
    " millilitre deciliter gallon quart pint cup tablespoon teaspoon bushel barrel carat degree radian celsius fahrenheit"
    " kelvin watt kilowatt megawatt volt amp ampere ohm joule newton pascal hertz calorie kilocalorie byte bit kilobyte"
    " megabyte gigabyte terabyte pixel knot mole decibel"
    # money
    " dollar cent penny pennies nickel dime euro yen yuan won rupee peso franc buck pence ruble baht lira shekel dong"
    # mathematics
    " number integer digit value solution roots way combination permutation arrangement outcome triangle rectangle squares"
    " circle polygon side edge vertex vertices face diagonal angle point line segment cubes block row column term subset"
    " element pair set group factor divisor primes pattern case step region position zeros common answer part portion piece share"
    " percentage rate probability chance"
    # people
    " person people man men woman women boy girl child children kid adult baby babies student pupil teacher senior junior"
    " guest visitor customer passenger player runner worker employee member friend neighbor neighbour guy participant"
    " attendee patient doctor nurse resident citizen follower subscriber voter contestant candidate parent grandparent"
    " grandchild grandchildren brother sister sibling cousin son daughter nephew niece uncle aunt family families household"
    " team class crew staff sailor soldier driver rider swimmer dancer singer musician actor athlete coach fan volunteer"
    " builder painter farmer chef waiter lawyer client human female male individual classmate toddler teenager tourist"
    # animals
    " animal pet dog puppy puppies kitten cat cow calf calves bull horse pony ponies pig piglet sheep lamb goat chicken hen"
    " rooster chick duck duckling goose geese turkey bird pigeon seagull crow owl parrot penguin swan fish goldfish trout"
    " salmon shark whale dolphin crab shrimp lobster oyster starfish frog toad tadpole turtle snake lizard alligator"
    " crocodile lion tiger bear wolf wolves fox deer rabbit bunny bunnies hamster mouse mice rat squirrel monkey elephant"
    " giraffe zebra kangaroo camel bee bug ant fly flies spider worm butterfly butterflies snail beetle insect egg paw leg"
    " tail wing"
    # food and drink
    " apple orange banana pear peach plum lemon lime mango pineapple grape cherry cherries berry berries strawberry"
    " strawberries blueberry blueberries raspberry raspberries watermelon melon coconut avocado fruit vegetable carrot"
    " potato tomato onion cucumber pepper pumpkin mushroom bean pea corn lettuce cabbage nut peanut almond acorn walnut"
    " seed grain rice flour sugar salt butter cheese milk cream water juice tea coffee soda wine beer cookie cake cupcake"
    " muffin brownie pie pastry pastries donut doughnut croissant biscuit cracker pancake waffle bread loaf loaves roll"
    " bagel bun sandwich burger hamburger hotdog taco burrito pizza slice noodle soup salad meat steak bacon sausage"
    " meatball candy candies chocolate lollipop gumball gum jellybean marshmallow popsicle chip pretzel snack treat dessert"
    " sweet meal lunch dinner breakfast dish serving scoop bite ingredient recipe milkshake vitamin pill tablet"
    # things
    " item thing object product article good book notebook magazine newspaper page chapter novel comic story stories poem"
    " letter word sentence paragraph essay paper sheet card stamp sticker envelope postcard photo picture painting drawing"
    " poster pen pencil crayon marker eraser ruler folder desk chair table couch bed lamp shelf shelves box bag bottle can"
    " jar carton crate case container bucket basket tank tray pan pot plate bowl glass mug spoon fork knife knives napkin"
    " towel blanket pillow candle match light bulb battery batteries phone computer laptop television camera game toy doll"
    " ball balloon marble bead button coin token ticket prize trophy trophies gift present medal ribbon ring necklace"
    " bracelet earring bell shirt blouse sweater jacket coat dress skirt pants jeans sock shoe boot hat cap scarf scarves"
    " glove mask shell rock stone brick tile logs stick board plank pole post pipe nail screw bolt tool hammer wheel tire"
    " car truck van bus train plane bike bicycle motorcycle boat ship wagon vehicle engine machine robot widget device"
    " gadget lego puzzle instrument guitar drum flower rose tulip daisy daisies lily lilies sunflower petal plant tree bush"
    " leaf leaves branch stem seedling house home apartment building room bedroom classroom office store shop school"
    " library hospital farm field garden park road street lane floor stair wall window door roof fence seat bench spot"
    " space pool city cities town state country countries planet star bouquet bundle bunch batch pack package packet parcel"
    " stack pile heap load sack bar string rope chain thread cloth fabric quilt patch flag sign kit"
    # materials
    " food gas fuel oil coal rain snow ice sand dirt soil hay straw wood laundry material fencing yarn wool cotton paint"
    " frosting lemonade kibble beef pork fat maize wheat honey jam sleep overtime experience homework equipment"
    # more things
    " seashell pebble gem gemstone stripe stitch bone pin feather tooth teeth toe eye arm claw whisker firework firecracker"
    " magnet spool tub tin statue decoration flyer pamphlet brochure report record subject system center centre station"
    " channel suitcase pocket badge bandage basketball football baseball dice twig weed clove raisin fries cone stocking"
    " guppy guppies minnow cricket mosquito mosquitoes dragon elf elves buyer business claim pitch win strip spoke"
    " hole section tissue straws screen kernel bubble dumpling appetizer flavor flavour address cabinet offspring"
    # deeds and amounts
    " race lap round rep jump pushup situp goal run hit shot throw turn move trip ride flight visit walk hike drive tour"
    " vacation holiday lesson course test exam quiz quizzes question problem homework assignment project task chore job"
    " shift session meeting appointment show movie film episode season video song album concert performance party parties"
    " event vote ballot grade mark credit message text email call comment review order sale purchase payment bill coupon"
    " tip tax fee fine wage salary income profit revenue earning saving cost price budget allowance donation interest"
    " amount total time"
)
# Only after a number.
DESCRIPTIONS = _words(
    "each old new young big large small little tiny long tall high wide deep thick heavy fast slow early late later ago away"
    " more fewer less left remaining extra additional same full empty whole red blue green yellow white"
    " black brown pink purple gray grey gold golden silver wooden plastic metal square cubic round hot cold fresh ripe free"
    " daily weekly monthly yearly annual apiece altogether overall all both together off out clockwise counterclockwise"
    " now today apart leftover longer shorter taller older younger heavier lighter faster slower farther cheaper higher lower"
    " wider deeper bigger smaller larger increase decrease change difference discount average worth"
)
# Words that need another word after them.
INCOMPLETE = _words("square cubic sq cu different")

# -- words before a number -----------------------------------------------------------------------------------------------

# The last word before a number: "the answer is 18", "about 18", "USD 18". Before a colon, any known word is allowed.
INTRODUCING = _words(
    "is are was were equals equal has have about approximately approx around roughly nearly exactly answer total"
    " result sum us usd jpy eur gbp rs chf cny rmb inr hkd sgd cad aud nzd krw brl rub mxn sek nok dkk zar thb php vnd ils"
)
# A dash after one of these, or after a noun, may be a separator: "Total - 18".
TITLES = _words("answer total result sum")
# The other words of an introduction, in addition to nouns and letters.
INTRODUCTION = INTRODUCING | _words(
    "the a an there to of for in on at per each every this that these those it he she they we you i so then thus hence"
    " therefore and by with from be been final correct required desired length width height depth area volume perimeter"
    " circumference radius diameter surface measure measurement distance speed velocity acceleration weight mass age"
    " duration temperature change population median mode mean average range variance difference quotient remainder ratio"
    " fraction slope intercept expected gcd lcm coefficient exponent constant count quantity your our their his her my its"
    " needed needs gets got costs pays paid earns earned makes made takes took spends spent saves saved remaining left"
    " altogether overall combined"
)
# Allowed only before a noun: "the maximum value is 18" is a quantity, "maximum: 18" is a bound.
SUPERLATIVES = _words("maximum minimum max min least greatest largest smallest highest lowest most fewest")
# Short words of prose, not products of variables.
PROSE = _words(
    "a an of per in the on for by at is are we he my us up so it or and than not to if mod max min inf nan log exp sin cos tan am pm AM PM"
)

# -- Japanese ------------------------------------------------------------------------------------------------------------

COUNTERS = _words(
    "食 品 玉 体 脚 便 個 こ コ ヶ ケ つ 人 名 匹 本 枚 冊 台 歳 才 回 度 点 倍 杯 番 番目 位 階 軒 件 組 対 膳 着 皿 切れ 袋 箱 束 缶 瓶 株 輪 粒 滴 羽 頭 足 問"
    " 題 文字 字 行 列 段 周 歩 校 社 席 室 曲 話 章 巻 部 票 発 隻 機 棟 戸 世帯 家族 種類 種 通り とおり パターン セット パック ケース"
    " 年 年間 か月 ヶ月 カ月 ケ月 ヵ月 箇月 か月間 ヶ月間 カ月間 週 週間 日 日間 時 時間 分 分間 秒 秒間 カ所 か所 ヶ所 箇所 カ国 か国 ヶ国 ページ 頁 項 桁 けた"
    " 円 銭 ドル セント ユーロ ポンド ペンス ウォン 元 ペソ ルピー フラン ミリ センチ キロ ミリメートル センチメートル メートル キロメートル マイル フィート フット"
    " インチ ヤード ミリグラム グラム キログラム トン オンス ミリリットル デシリットル リットル ガロン パイント クォート カップ 平方 立方 エーカー ヘクタール"
    " アール カロリー キロカロリー ワット キロワット ボルト アンペア ジュール バイト ビット メガバイト ギガバイト 毎時 毎分 毎秒 人分 点満点 ポイント マス"
    " ボトル 本分 個分 日分 人前 箱分 ブロック グループ チーム クラス 両 坪 畳 里 ラウンド ゴール レベル"
)
JAPANESE_NOUNS = _words(
    "りんご リンゴ みかん ミカン バナナ オレンジ レモン いちご イチゴ ぶどう 桃 梨 柿 卵 たまご 玉子 パン ケーキ クッキー ドーナツ ピザ キャンディ キャンディー あめ 飴"
    " チョコレート お菓子 おにぎり 牛乳 ジュース 水 米 砂糖 塩 野菜 果物 花 木 葉 本 ノート 鉛筆 えんぴつ ペン 消しゴム 紙 折り紙 カード シール 切手 写真 おもちゃ"
    " ボール ビー玉 コイン 硬貨 お金 切符 チケット 箱 袋 びん 缶 皿 コップ いす 椅子 机 車 自転車 バス 電車 人 男子 女子 男性 女性 大人 子ども 子供 生徒 学生 児童"
    " 先生 客 友達 選手 犬 猫 牛 馬 豚 羊 鶏 鳥 魚 金魚 ニワトリ うさぎ ウサギ 動物 三角形 四角形 正方形 長方形 円 点 線分"
    " 一辺 1辺 辺 縦 たて 横 よこ 高さ 長さ 幅 深さ 半径 直径 円周 周 周り 周囲 面積 底面積 表面積 体積 容積 角 角度 距離 道のり 速さ 速度 時速 分速 秒速 毎時 毎分 毎秒"
    " 時間 時刻 所要時間 日数 年数 年齢 重さ 体重 身長 温度 気温 値段 価格 定価 代金 料金 費用 金額 利益 売上 売り上げ 収入 給料 おつり お釣り 貯金 個数 人数 枚数 本数 冊数 回数 台数 点数"
    " 得点 数 番号 合計 合計金額 総数 総計 総額 計 和 差 積 商 余り あまり 残り 平均 平均点 平均値 中央値 最頻値 最大値 最小値 最大公約数 最小公倍数 確率 割合 係数 傾き 切片 解 値"
    " 答え 答 解答 回答 正解 結果 全体 全部"
)
# After a number and its counter.
JAPANESE_ENDINGS = _words(
    "です ですね でした である だ になります となります になる となる くらい ぐらい ほど 程度 ずつ あたり 当たり につき ごと 間 目 引き 増し 増 満点 分 残り 多い 少ない 長い 短い 高い 低い 重い 軽い 速い 遅い 大きい 小さい 安い"
    " 年上 年下 ある あります いる います かかる かかります 必要 残る 残ります 余る 余ります"
)
# Before a number, in addition to nouns.
JAPANESE_INTRODUCTION = _words(
    "は が の も で 約 およそ おおよそ ほぼ だいたい 全部で 全体で 合わせて あわせて よって ゆえに したがって だから つまり すなわち 合計で 計で それぞれ 最終的に 正の 一人あたり 一人当たり"
    " ひとりあたり 一個あたり 一つあたり 一日あたり 一時間あたり 毎日 毎週 毎月 毎年"
)
