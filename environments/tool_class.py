"""A class of tools as an environment, in the contract of TRL's `environment_factory` (1.16).

The class has a constructor without arguments, `reset(**row)`, which may return text that is appended to the question,
and optionally `get_reward() -> float`. Its other public methods, with types and a Google docstring, are the tools.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from environments.arguments import WrongArgument, check_arguments
from environments.base import Environment, EnvironmentConfig, FindCalls
from environments.deadline import Busy, Worker
from renderers.tool_calls import Call, MalformedCall
from rl.errors import Stopped, UserError, first_line, require
from rl.rollouts import Message, Parsed, Problem
from rl.schema import locate

_NOT_TOOLS = ("reset", "get_reward")
# An exception of this name, in Python or in an HTTP client, means that the tool's server cannot be reached.
_UNREACHABLE = ("ConnectionError", "ConnectError", "URLError")
_CUT = " … (cut)"


class ToolError(Exception):
    """A tool's refusal, shown to the model as it stands and counted as `tool_errors_<kind>`."""

    def __init__(self, message: str, kind: str = "raised") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class ToolConfig(EnvironmentConfig):
    """An environment whose model calls the methods of an object; a subclass says which object.

    seconds: the most that one call may take. characters: the most that one result shows to the model.
    """

    seconds: float = 30.0
    characters: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.seconds <= 86400, "environment.seconds", self.seconds, "a number of seconds above 0", 10
        )
        require(
            self.characters >= 16, "environment.characters", self.characters, "a whole number from 16", 2048
        )

    def new_tools(self) -> Any:
        """A new object with the tools, for one trajectory."""
        raise NotImplementedError

    @property
    def waits_for_calls(self) -> bool:
        """Whether a call must be given up after `seconds`. False for tools with a limit of their own."""
        return True

    @property
    def label(self) -> str:
        """What the user typed to choose the tools, for messages."""
        return f"environment={self.name}"

    def check(self) -> None:
        """Raises UserError when the class cannot be imported or made, or a tool has no schema."""
        if not callable(getattr(self.new_tools(), "reset", None)):
            raise UserError(
                f"{self.label}: it has no method reset; expected reset(self, **row) (docs/environments.md)"
            )
        if not self.tools:
            raise UserError(
                f"{self.label}: it has no public method to call; expected one or more (docs/environments.md)"
            )

    @property
    def rewards_itself(self) -> bool:
        return hasattr(self.new_tools(), "get_reward")

    @cached_property
    def tools(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """A schema for each tool, from its signature and docstring. Raises UserError when there is none."""
        from transformers.utils import get_json_schema

        schemas = []
        for name, method in tool_methods(self.new_tools()).items():
            if (unnamed := unnamed_argument(method)) is not None:
                raise UserError(
                    f"{self.label}: its tool {name} takes {unnamed}, which a call cannot pass by name; expected arguments"
                    " with a name and a type each (docs/environments.md)"
                )
            try:
                schema = get_json_schema(method)
            except Exception as error:
                raise UserError(
                    f"{self.label}: no schema for its tool {name}: {first_line(error)}; expected a type and a line"
                    " under Args: of the docstring for each argument (docs/environments.md)"
                ) from None
            # A decorated method, or a second name of one, has another name of its own.
            schema["function"]["name"] = name
            schemas.append(schema)
        return schemas

    def make(self, find_calls: FindCalls) -> Environment:
        return ToolEnvironment(self, find_calls)


@dataclass(frozen=True, kw_only=True)
class ToolClassConfig(ToolConfig):
    """path: `package.module.Class`, a class in the contract above."""

    path: str | None = None

    @property
    def label(self) -> str:
        return f"environment.path={self.path}"

    def new_tools(self) -> Any:
        if self.path is None:
            raise UserError(
                f"environment={self.name}: needs your class; type environment.path=my_env.Shop (docs/environments.md)"
            )
        made = locate(self.path, "environment.path")
        try:
            return made()
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise UserError(
                f"{self.label}: cannot be made: {type(error).__name__}: {first_line(error)}; expected a class whose"
                " constructor needs no arguments"
            ) from error


def tool_methods(tools: Any) -> dict[str, Callable[..., Any]]:
    """The methods that the model may call, by name, in alphabetical order."""
    return {
        name: getattr(tools, name)
        for name, _ in inspect.getmembers(type(tools), predicate=inspect.isfunction)
        if not name.startswith("_") and name not in _NOT_TOOLS
    }


def unnamed_argument(method: Callable[..., Any]) -> str | None:
    """The first argument that cannot be passed by name, as the signature writes it, e.g. `*items: str`; None if all can."""
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            return str(parameter)
    return None


def shortly(value: Any) -> str:
    """A user's value on one short line."""
    try:
        return " ".join(repr(value).split())[:40]
    except Exception:  # a class may raise here; Python refuses to write out a very large integer
        return f"{type(value).__name__} that cannot be shown"


def row_of(problem: Problem) -> dict[str, Any]:
    """What `reset` is given: the columns of TRL's data set."""
    prompt = [{"role": "user", "content": problem.question}]
    return {
        "prompt": prompt,
        "id": problem.id,
        "question": problem.question,
        "answer": problem.answer,
        "language": problem.language,
        "source": problem.source,
        **problem.extra,
    }


class ToolEnvironment(Environment):
    """One trajectory with an object of tools. It is over when a turn holds no call.

    Counts: tool_calls, tool_errors, and the errors by kind: tool_errors_json (a call that cannot be read), _name (no
    such tool), _arguments, _raised, _time.
    """

    def __init__(self, config: ToolConfig, find_calls: FindCalls) -> None:
        super().__init__()
        self._config = config
        self._find_calls = find_calls
        self._tools = config.new_tools()
        self._methods = tool_methods(self._tools)
        self._schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in config.tools}
        self._worker = Worker(config.seconds if config.waits_for_calls else None)

    def start(self, problem: Problem) -> str:
        row = row_of(problem)
        parameters = inspect.signature(self._tools.reset).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            known = {parameter.name for parameter in parameters}
            row = {key: value for key, value in row.items() if key in known}
        text = self._asked("reset", problem.id, **row)
        if not isinstance(text, (str, type(None))):
            raise Stopped(
                f"{self._config.label}: reset returned {type(text).__name__}; expected text or None"
            )
        self._problem = problem.id
        return text or ""

    def step(self, parsed: Parsed) -> list[Message] | None:
        return [self._answer(call) for call in self._find_calls(parsed)] or None

    def reward(self) -> float | None:
        if not hasattr(self._tools, "get_reward"):
            return None
        value = self._asked("get_reward", self._problem)
        if value is None:
            return None
        try:
            number = value.item() if hasattr(value, "item") else value  # a scalar of numpy or torch
            if isinstance(number, (int, float)):
                return float(number)
        except Exception:  # more than one element, or an integer too large for a float
            pass
        raise Stopped(
            f"{self._config.label}: get_reward returned {shortly(value)} on problem {self._problem}; expected a"
            " number"
        )

    def _asked(self, method: str, problem: str, **arguments: Any) -> Any:
        """What `reset` or `get_reward` returns. Raises Stopped when it raises or takes too long."""
        try:
            return self._run(getattr(self._tools, method), arguments)
        except Stopped:
            raise
        except BaseException as error:
            raise Stopped(
                f"{self._config.label}: {method} raised {type(error).__name__} on problem {problem}: {first_line(error)};"
                " correct the class, or start its server"
            ) from error

    def _answer(self, call: Call) -> Message:
        self.count("tool_calls")
        name = "unknown" if isinstance(call, MalformedCall) else call.name
        try:
            text = self._result_of(call)
        except ToolError as error:
            text = str(error)
            self.count("tool_errors")
            self.count(f"tool_errors_{error.kind}")
        if len(text) > self._config.characters:
            text = text[: self._config.characters - len(_CUT)] + _CUT
        return {"role": "tool", "name": name, "content": text}

    def _result_of(self, call: Call) -> str:
        if isinstance(call, MalformedCall):
            raise ToolError(f"error: {call.reason}", "json")
        if call.name not in self._methods:
            raise ToolError(f"error: no tool {call.name!r:.80}; there is {', '.join(self._methods)}", "name")
        try:
            arguments = check_arguments(call.arguments, self._schemas[call.name])
        except WrongArgument as error:
            raise ToolError(f"error: {error}", "arguments") from None
        try:
            return str(self._run(self._methods[call.name], arguments))
        except (ToolError, Stopped):
            raise
        except Busy:
            raise ToolError("error: the tool still works on an earlier call", "time") from None
        except TimeoutError:
            raise ToolError(
                f"error: the tool did not answer within {self._config.seconds:g} s", "time"
            ) from None
        except BaseException as error:  # exit() in a tool must not look like the end of the run
            if any(cls.__name__ in _UNREACHABLE for cls in type(error).__mro__):
                raise Stopped(
                    f"{self._config.label}: the tool {call.name} cannot reach its server: {first_line(error)};"
                    " start the server, then resume the run"
                ) from error
            raise ToolError(f"error: {type(error).__name__}: {first_line(error)}", "raised") from None

    def _run(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return self._worker.run(lambda: asyncio.run(function(**arguments)))
        return self._worker.run(lambda: function(**arguments))
