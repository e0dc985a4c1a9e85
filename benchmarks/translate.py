"""Rows a second of recipes.translate beside its limit, and its memory: `python -m benchmarks.translate FOLDER`.

FOLDER holds GSM8K's train.jsonl and test.jsonl: 8,792 rows, two requests each. A scripted server on this machine answers
each request in 50 ms; 32 requests at a time could not be faster than 32 / 0.05 s = 640 requests a second. The `openai`
package alone, with the same requests and nothing around it, is the other limit.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import in_fresh_process, machine, write

SECONDS = 0.05  # of each answer
REQUESTS = 32
PORT = 8770


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.openai_server", str(PORT), str(SECONDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout and server.stdin
        url = server.stdout.readline().strip()
        try:
            figures = measure(folder, url, Path(out) / "ja") | alone(url)
        finally:
            server.stdin.close()
            server.wait(10)
    limit = REQUESTS / SECONDS
    print(f"{figures['requests_per_second']:.0f} requests a second of {limit:.0f} possible")
    print(
        f"{figures['cpu_ms_per_request']:.1f} ms of processor time a request; {figures['openai_cpu_ms']:.1f} of the package alone"
    )
    print(
        f"{figures['first_quarter_mib']:.0f} MiB after a quarter of the rows, {figures['peak_mib']:.0f} MiB at most"
    )
    write("translate", {"benchmark": "translate", "machine": machine(), "figures": figures, "limit": limit})


def measure(folder: str, url: str, out: Path) -> dict[str, float]:
    """One whole translation; memory is that of the process, read each second."""
    answers = out / "work" / "answers.jsonl"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable, "-m", "recipes.translate", "data=gsm8k", f"data.path={folder}", f"server={url}", "model=scripted",
        f"requests={REQUESTS}", f"out={out}", "sample=0",
    ]  # fmt: skip
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    memory: list[tuple[int, float]] = []
    first: list[float] = []

    def watch() -> None:
        while run.poll() is None:
            done = answers.read_bytes().count(b"\n") if answers.is_file() else 0
            if done and not first:
                first.append(time.perf_counter())
            memory.append((done, resident_mib(run.pid)))
            last[:] = [time.perf_counter()] if not memory[1:] or memory[-1][0] > memory[-2][0] else last
            time.sleep(1)

    last: list[float] = []
    watcher = threading.Thread(target=watch)
    watcher.start()
    assert run.stdout
    print(run.stdout.read())
    assert run.wait() == 0
    watcher.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    requests = answers.read_bytes().count(b"\n")
    seconds = last[0] - first[0]
    quarter = next(mib for done, mib in memory if done >= requests / 4)
    return {
        "requests": requests,
        "seconds": seconds,
        "requests_per_second": requests / seconds,
        "cpu_ms_per_request": 1000
        * (used.ru_utime - before.ru_utime + used.ru_stime - before.ru_stime)
        / requests,
        "first_quarter_mib": quarter,
        "peak_mib": max(mib for done, mib in memory if done < requests),
        "writing_peak_mib": max(mib for _, mib in memory),
    }


def alone(url: str) -> dict[str, float]:
    """The `openai` package without anything around it, in a fresh process."""
    return in_fresh_process("benchmarks.translate", "alone", url)


async def ask(url: str, count: int = 4000) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    text = "Tom has [[1:2]] red apples and [[2:30]] green apples. How many apples does Tom have now? " * 4
    messages: list[Any] = [
        {"role": "system", "content": text},
        {"role": "user", "content": f"Translate:\n\n{text}"},
    ]
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await client.chat.completions.create(model="scripted", messages=messages, max_tokens=100)

    cpu, start = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(REQUESTS)))
    figures = {
        "openai_requests_per_second": count / (time.perf_counter() - start),
        "openai_cpu_ms": 1000 * (time.process_time() - cpu) / count,
    }
    print(json.dumps(figures))


def resident_mib(pid: int) -> float:
    """Memory of a process; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        asyncio.run(ask(sys.argv[2]))
        raise SystemExit
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.translate FOLDER_WITH_GSM8K")
    main(sys.argv[1])
