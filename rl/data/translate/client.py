"""Asks an OpenAI-compatible server, within a limit of cost; every answer goes to the journal.

The pauses and repetitions after 429, 5xx, time-outs and broken connections are those of the `openai` package.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rl.data.translate.config import Price, Server
from rl.data.translate.journal import Journal, Messages, Reply, Spent, request_key
from rl.errors import UserError, first_line

BYTES_PER_TOKEN = 3.5  # of the two languages, where a server counts no tokens


class Unusable(Exception):
    """The server answered this one request with something that is no answer; asking again may help."""


class Overspent(Exception):
    """The next request might cost more than `max_usd` leaves."""


class Client:
    """prices: by model. answered: requests that this start paid for. refusals: failed tries, by HTTP status."""

    def __init__(
        self, server: Server, prices: Mapping[str, Price], max_usd: float | None, journal: Journal
    ) -> None:
        self.url, self.model = server.require_named()
        self.answered = 0
        self.refusals: Counter[str] = Counter()
        self._server = server
        self._prices = prices
        self._max_usd = max_usd
        self._journal = journal
        self._reserved = 0.0
        self._openai: Any = None

    @property
    def spent(self) -> Spent:
        """The tokens of all answers in the journal, of every model."""
        total = Spent()
        for spent in self._journal.spent.values():
            total.answers += spent.answers
            total.prompt_tokens += spent.prompt_tokens
            total.completion_tokens += spent.completion_tokens
        return total

    @property
    def usd(self) -> float:
        """The cost of all answers in the journal."""
        return sum(
            self._price(model).usd(spent.prompt_tokens, spent.completion_tokens)
            for model, spent in self._journal.spent.items()
        )

    def _price(self, model: str) -> Price:
        return self._prices.get(model, Price())

    async def ask(self, messages: Messages, attempt: int = 1, model: str | None = None) -> Reply:
        """The answer to the messages, from the journal if this was asked before.

        Raises Unusable, Overspent, and UserError when the server cannot be used at all.
        """
        model = model or self.model
        key = request_key(model, messages, attempt)
        if (reply := self._journal.get(key)) is not None:
            return reply
        most = self._price(model).usd(
            sum(len(m["content"].encode("utf-8", "replace")) + 16 for m in messages), self._server.max_tokens
        )
        if self._max_usd is not None and self.usd + self._reserved + most > self._max_usd:
            raise Overspent
        self._reserved += most
        try:
            reply = await self._complete(messages, model)
        finally:
            self._reserved -= most
        self._journal.put(key, model, reply)
        self.answered += 1
        return reply

    async def close(self) -> None:
        if self._openai is not None:
            await self._openai.close()

    async def _complete(self, messages: Messages, model: str) -> Reply:
        import openai

        extra: dict[str, Any] = {}
        if self._server.temperature is not None:
            extra["temperature"] = self._server.temperature
        if "max_completion_tokens" not in self._server.extra:
            extra["max_tokens"] = self._server.max_tokens
        try:
            completion = await self._open().chat.completions.create(
                model=model,
                messages=messages,
                extra_body=self._server.extra or None,
                **extra,
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if self.spent.answers:
                raise Unusable(first_line(error)) from None
            raise self._failure(error, model) from None
        except openai.APIResponseValidationError as error:
            raise Unusable(first_line(error)) from None
        except openai.OpenAIError as error:
            raise self._failure(error, model) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise Unusable(f"no JSON: {first_line(error)}") from None
        except (TypeError, ValueError) as error:  # e.g. a number in server.extra that JSON does not have
            raise UserError(
                f"server={self.url}: a request cannot be sent ({first_line(error)}); check the options of server="
            ) from None
        return _reply(completion, messages)

    def _open(self) -> Any:
        """The connection, made at the first request; hundreds of requests share it."""
        if self._openai is None:
            import openai

            async def count(response: Any) -> None:
                if response.status_code >= 400:
                    self.refusals[str(response.status_code)] += 1

            self._openai = openai.AsyncOpenAI(
                base_url=self.url,
                api_key=self._server.key,
                timeout=self._server.timeout,
                max_retries=self._server.retries,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [count]}),
            )
        return self._openai

    def _failure(self, error: Exception, model: str) -> UserError:
        """The one line for a server that cannot be used: what it said, and what to type."""
        import openai

        said = " ".join(str(getattr(error, "message", error)).split())[:300]
        where = f"server={self.url}"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return UserError(
                f"{where}: refused the key in {self._server.key_env} ({said}); set that variable, or type"
                " server.key_env=NAME of another one"
            )
        if isinstance(error, openai.NotFoundError):
            return UserError(
                f"{where}: no model {model} or no such path ({said}); expected the server's address up to /v1 and one of its models"
            )
        if isinstance(error, openai.APITimeoutError):
            return UserError(
                f"{where}: no answer within {self._server.timeout:g} s after {self._server.retries + 1} tries; type a larger"
                " server.timeout or fewer requests; finished rows are kept"
            )
        if isinstance(error, openai.APIConnectionError):
            cause = first_line(error.__cause__ or error).replace(self._server.key, "...")
            return UserError(
                f"{where}: cannot be reached ({cause}); start the server and repeat the same command; finished rows are kept"
            )
        return UserError(f"{where}: {said}; repeat the same command later; finished rows are kept")


def _reply(completion: Any, messages: Messages) -> Reply:
    """The answer in a completion. Raises Unusable if there is none."""
    choices: Any = getattr(completion, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    content = getattr(message, "content", None)
    finish = str(getattr(choices[0], "finish_reason", "") or "") if message else ""
    if content is None and finish == "length":
        content = ""  # it was cut before its reasoning ended
    if not isinstance(content, str):
        raise Unusable("no choices[0].message.content in the answer")
    usage = getattr(completion, "usage", None)
    asked, answered = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
    return Reply(
        content,
        finish,
        asked if isinstance(asked, int) else estimated_tokens("".join(m["content"] for m in messages)),
        answered if isinstance(answered, int) else estimated_tokens(content),
    )


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, without a tokenizer."""
    return round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)
