"""Everything that can be chosen for one translation or repair, checked before anything is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rl.data.config import DataConfig
from rl.data.translate.config import Judge, Language, Limits, Price, Prompts, Server
from rl.errors import UserError, require


@dataclass(frozen=True, kw_only=True)
class Choices:
    """See conf/translate.yaml."""

    data: DataConfig
    to: Language
    out: str
    plan: bool
    splits: list[Literal["train", "test"]]
    requests: int
    attempts: int
    max_usd: float | None
    server: Server
    price: Price
    judge: Judge
    checks: Limits
    prompts: Prompts
    sample: int
    repair: str | None
    license: str | None
    push: bool
    repo_id: str | None
    private: bool
    dry_run: bool

    def __post_init__(self) -> None:
        require(1 <= self.requests <= 1000, "requests", self.requests, "an integer from 1 to 1000", 32)
        require(1 <= self.attempts <= 100, "attempts", self.attempts, "an integer from 1 to 100", 3)
        require(self.sample >= 0, "sample", self.sample, "an integer of 0 or more", 20)
        splits = self.splits
        once = bool(splits) and len(splits) == len(set(splits))
        require(once, "splits", splits, "train, test or both", "[train,test]")
        require(bool(self.out.strip()), "out", self.out, "a folder", "gsm8k_ja")
        require(self.repair != "", "repair", "", "a file or a folder, or null", "ja.jsonl")
        if self.data.generator:
            raise UserError(
                f"data={self.data.name}: generates its problems; expected a data set of rows; e.g. data=gsm8k"
            )
        if self.repair is None and self.data.language == self.to:
            other = "en" if self.to == "ja" else "ja"
            raise UserError(
                f"to={self.to}: data={self.data.name} is in that language already; type to={other}, or another data"
            )
        if self.repair is not None and self.data.language not in (self.to, "both"):
            raise UserError(
                f"to={self.to}: data={self.data.name} holds rows in another language; to repair a translated set, type its"
                f" data= (e.g. data=gsm8k_ja), or data=jsonl"
            )
        if self.max_usd is not None:
            self._require_prices(self.max_usd)

    def _require_prices(self, max_usd: float) -> None:
        require(max_usd > 0, "max_usd", max_usd, "US dollars above 0, or null", 5)
        if not self.price.known or (self.judge.model and not self.judge.price.known):
            name = "judge.price" if self.price.known else "price"
            raise UserError(
                f"max_usd={max_usd:g}: needs the price of a million tokens; e.g. {name}.input=0.1 {name}.output=0.5"
            )

    @property
    def source_language(self) -> Language:
        """The language that rows are translated from, where the data set does not say it for each row."""
        return "ja" if self.to == "en" else "en"

    @property
    def prices(self) -> dict[str, Price]:
        """The price of each model that is asked."""
        judged = {self.judge.model: self.judge.price} if self.judge.model else {}
        return {**judged, str(self.server.model): self.price}

    def job(self) -> dict[str, Any]:
        """The choices that the answers on disk depend on; everything else may change when the command is repeated."""
        return {
            "data": self.data.name,
            "to": self.to,
            "repair": self.repair is not None,
            "model": self.server.model,
            "prompts": {
                k: v for k, v in asdict(self.prompts).items() if k not in ("yes_no", "back_translation")
            },
            "max_tokens": self.server.max_tokens,
            "temperature": self.server.temperature,
            "extra": self.server.extra,
        }
