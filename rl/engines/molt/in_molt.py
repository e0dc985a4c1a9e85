"""Runs in Molt's own Python: which packages it has, whether its parser accepts a command line, what Ray offers.

Started as a script, with a request on stdin: {"arguments": [...], "address": "auto" | "local" | ... | null}. Prints one
line of JSON after MARK. Imports nothing of this project, and starts neither Ray nor training.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import json
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

MARK = "tanka-molt: "
CONNECT_SECONDS = 10.0
PACKAGES = {"molt": "molt-rl", "ray": "ray", "vllm": "vllm", "nemo_automodel": "nemo-automodel"}


def main() -> None:
    """Answers the request on stdin."""
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]  # not our modules
    request = json.load(sys.stdin)
    answer: dict[str, Any] = {"packages": {name: version(name) for name in PACKAGES}}
    if answer["packages"]["molt"] and answer["packages"]["ray"]:
        answer |= parse(request["arguments"])
        if request.get("address"):
            answer |= resources(request["address"])
    print(MARK + json.dumps(answer), flush=True)


def version(module: str) -> str | None:
    """The version of the package that holds a module, "unknown" for a checkout without one; None: not installed."""
    if not module or importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(PACKAGES.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Reached(BaseException):
    """The parser and the validation are through: training would start now."""


class Stop:
    """An import hook: importing the first module that training needs ends the check."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "molt.trainer.placement":
            raise Reached


def parse(arguments: list[str]) -> dict[str, Any]:
    """Molt's own verdict on the arguments: {"accepted": bool, "words": its message, "missing": a package it needs}."""
    errors = io.StringIO()
    make = argparse.ArgumentParser.__init__
    # Molt's parser would take rollout.batch_siz for rollout.batch_size, and let it replace our value.
    argparse.ArgumentParser.__init__ = functools.partialmethod(make, allow_abbrev=False)  # type: ignore[assignment, method-assign]
    sys.argv = ["train_rl_ray", *arguments]
    sys.meta_path.insert(0, Stop())  # type: ignore[arg-type]
    accepted, words, missing = False, "", ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            runpy.run_module("molt.cli.train_rl_ray", run_name="__main__")
    except Reached:
        accepted = True
    except SystemExit:
        words = errors.getvalue().strip().rpartition("error: ")[2]
    except ImportError as error:
        if any(frame.name == "train" for frame in traceback.extract_tb(error.__traceback__)):
            accepted = True
        else:
            missing = error.name or str(error)
    except Exception as error:  # ValueError, AssertionError, NotImplementedError, RuntimeError
        package = (getattr(error.__cause__, "name", None) or "").partition(".")[0]
        if isinstance(error.__cause__, ImportError) and version(package) is None:
            missing = package  # a flag that can be checked only where training is installed
        else:
            words = str(error) or type(error).__name__
    finally:
        sys.meta_path.pop(0)
        argparse.ArgumentParser.__init__ = make  # type: ignore[method-assign]
    return {"accepted": accepted, "words": " ".join(words.split()), "missing": missing}


def resources(address: str) -> dict[str, Any]:
    """GPUs: {"gpus": of the running cluster at `address`, or of this machine for `local`, "cluster": why it is not reached}."""
    if address == "local":
        import torch

        return {"gpus": torch.cuda.device_count(), "cluster": ""}
    if silent := unreachable(address):
        return {"gpus": 0, "cluster": silent}
    import ray

    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # ConnectionError, ValueError and more
        return {"gpus": 0, "cluster": " ".join(str(error).split()) or type(error).__name__}
    gpus = int(ray.cluster_resources().get("GPU", 0))
    ray.shutdown()
    return {"gpus": gpus, "cluster": ""}


def unreachable(address: str) -> str:
    """Why nothing answers at HOST:PORT, which Ray would wait for without an end; "" if something does, or for a word."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return f"{address}: {getattr(error, 'strerror', None) or error}"
    return ""


if __name__ == "__main__":
    main()
