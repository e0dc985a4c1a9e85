"""The Python tool's separate process, attacked: the code ends within its limits and touches nothing outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from environments.python import Python, PythonConfig
from environments.sandbox.process import Limits, Outcome, protections, run_code
from environments.tool_class import ToolError
from renderers.tool_calls import hermes_calls
from rl.rollouts import Parsed, Problem
from tests.helpers.recipes import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="environment=python needs Linux")

needs_files = pytest.mark.skipif(
    sys.platform == "linux" and not protections()["files"], reason="this kernel has no Landlock"
)
QUICK = Limits(seconds=1.5)
# A call whose processes can be recognised from outside.
SLEEPS = "import time\ntime.sleep({seconds})"


def run(code: str, limits: Limits = QUICK) -> Outcome:
    return run_code(code, limits)


def descendants(pid: int) -> set[int]:
    """The processes below `pid`, by their parents in /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pids: set[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() and not zombie(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_ordinary_code_prints():
    assert run("print(6 * 7)") == Outcome("42\n", "ok")
    assert run("print('日本')").text == "日本\n"
    assert run("import sys; print('e', file=sys.stderr); sys.exit(0)") == Outcome("e\n", "ok")
    assert run("import sys; sys.exit(3)").ended == "raised"
    assert run("print(open('a', 'w').write('xyz')); print(open('a').read())").text == "3\nxyz\n"
    assert run("if __name__ == '__main__': print('main')").text == "main\n"


def test_an_exception_is_shown_as_python_shows_it():
    done = run("def f():\n    return 1 / 0\n\nf()")
    assert done.ended == "raised" and done.text.startswith(
        'Traceback (most recent call last):\n  File "code.py", line 4'
    )
    assert done.text.endswith("ZeroDivisionError: division by zero\n") and "child.py" not in done.text
    assert "SyntaxError" in run("print(").text
    assert "EOFError" in run("input()").text


def test_calls_share_nothing():
    run("open('left', 'w').write('x'); x = 1")
    assert run("import os; print(os.listdir('.'), 'x' in dir())").text == "[] False\n"


@pytest.mark.parametrize(
    "code",
    ["while True: pass", SLEEPS.format(seconds=60), "import signal\nsignal.signal(15, print)\nwhile True: pass",
     "while True:\n    try:\n        while True: pass\n    except BaseException: pass"],
)  # fmt: skip
def test_code_that_never_ends_is_ended(code: str):
    assert run(code, Limits(seconds=0.5)) == Outcome("", "time")


def test_ten_gigabytes_are_refused():
    assert "MemoryError" in run("x = bytearray(10 * 2**30)").text
    assert (
        run("x = []\nwhile True: x.append(bytearray(2**24))", Limits(seconds=10, memory=2**28)).ended
        == "raised"
    )


def test_endless_output_is_cut_and_ended():
    done = run("while True: print('x' * 1000)", Limits(seconds=10))
    assert done.ended == "output" and len(done.text) == 2048
    assert run("print('x' * 5000)") == Outcome("x" * 2048, "ok")
    assert run("print('あ' * 5000)").text == "あ" * 2048


def test_a_fork_bomb_ends_with_its_call():
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    others = descendants(os.getpid())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, bomb, Limits(seconds=1))
        time.sleep(0.7)
        started = descendants(os.getpid()) - others
        assert call.result() == Outcome("", "time")
    assert len(started) < 32 and gone(started)
    assert run("print('still here')").ended == "ok"


def test_a_child_that_outlives_the_call_is_ended():
    escape = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\ntime.sleep(0.5)\nprint('parent done')"
    )
    others = descendants(os.getpid())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, escape, Limits(seconds=5))
        time.sleep(0.5)
        started = descendants(os.getpid()) - others
        assert call.result() == Outcome("parent done\n", "ok")
    assert gone(started)


@needs_files
def test_it_writes_only_in_its_folder(tmp_path: Path):
    for target in (
        tmp_path / "x",
        Path("/tmp/tanka-x"),
        Path("/dev/shm/tanka-x"),
        ROOT / "x",
        Path.home() / "x",
    ):
        assert "PermissionError" in run(f"open({str(target)!r}, 'w')").text, target
        assert not target.exists()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for code in (f"import os; os.remove({str(victim)!r})", f"import os; os.chmod({str(victim)!r}, 0)"):
        assert "Error" in run(code).text
    assert victim.read_text() == "kept"


@needs_files
def test_it_reads_neither_the_parents_environment_nor_its_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TANKA_SECRET", "s3cret")
    assert "s3cret" not in run("import os; print(dict(os.environ))").text
    for path in (f"/proc/{os.getpid()}/environ", "/proc/1/environ", str(ROOT / "README.md"), "/etc/passwd"):
        done = run(f"print(open({path!r}, 'rb').read())")
        assert done.ended == "raised" and "Error" in done.text, path
    everyone = "import os\nfor pid in range(1, 70000):\n    try: print(open(f'/proc/{pid}/environ').read())\n    except OSError: pass"
    assert "s3cret" not in run(everyone, Limits(seconds=5, characters=10**6)).text


@pytest.mark.parametrize(
    "code", ["os.kill(-1, 9)", "os.kill(os.getppid(), 9)", "os.killpg(0, 9)", "os.kill(OURS, 9)"]
)
def test_it_ends_nothing_but_itself(code: str):
    bystander = subprocess.Popen([sys.executable, "-c", SLEEPS.format(seconds=60)])
    try:
        run(f"import os\n{code.replace('OURS', str(os.getpid()))}")
        run("print('the next call works')")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_network_is_denied():
    if not protections()["network"]:
        pytest.skip("this system cannot deny the network")
    code = "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run(code.format(port=server.getsockname()[1]))
    assert done.ended == "raised" and "Error" in done.text


def test_a_killed_caller_leaves_no_process():
    caller = subprocess.Popen(
        [sys.executable, "-c", "import sys; from environments.sandbox.process import *; print('up', flush=True)\n"
         f"run_code({SLEEPS.format(seconds=60)!r}, Limits(seconds=60))"],
        cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert caller.stdout is not None and caller.stdout.readline() == b"up\n"
    while len(started := descendants(caller.pid)) < 2:
        time.sleep(0.02)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert gone(started)


def test_without_namespaces_the_other_layers_hold():
    """As in a container that allows no new namespaces."""
    attacks = {
        "os.kill(-1, 9)": "raised", "os.kill(os.getppid(), 9)": "raised", "import socket; socket.socket()": "raised",
        "print(1)": "ok",
    }  # fmt: skip
    script = (
        "import json, sys\nsys.path.insert(0, 'environments/sandbox')\nimport linux\n"
        "linux.forbid_new_privileges(); linux.refuse_calls(signals=False)\n"
        "from environments.sandbox.process import *\nassert not protections()['processes']\n"
        f"for attack in {list(attacks)!r}: print(run_code('import os\\n' + attack, Limits(seconds=5)).ended)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == list(attacks.values()), done.stderr


# --- as a tool --------------------------------------------------------------------------------------------------


def test_the_tool_says_what_happened():
    tool = Python(Limits(seconds=0.5, characters=200))
    assert tool.python("print(3)") == "3\n" and tool.python("x = 3") == "(nothing printed)"
    for code, kind, words in (
        ("1/0", "raised", "ZeroDivisionError"),
        ("while True: pass", "time", "error: stopped after 0.5 s"),
        ("print('before', flush=True)\nwhile True: pass", "time", "before\n\nerror: stopped after 0.5 s"),
        ("while True: print('x' * 99)", "raised", "xx\nerror: stopped, because it printed without end"),
    ):
        with pytest.raises(ToolError) as caught:
            tool.python(code)
        assert caught.value.kind == kind and words in str(caught.value)
        assert len(str(caught.value)) <= 200


def test_the_published_limits_are_the_defaults():
    config = PythonConfig(name="python")
    assert (config.seconds, config.memory_gib, config.characters) == (10.0, 1.0, 2048)
    assert config.new_tools()._limits == Limits(10.0, 2**30, 2048)
    config.check()


@pytest.mark.slow
def test_128_calls_at_once_on_two_cores_stay_within_their_limits():
    environments = [
        PythonConfig(name="python").make(lambda parsed: hermes_calls(parsed.text)) for _ in range(128)
    ]
    for environment in environments:
        environment.start(Problem("p", "?", "1", "en", "test"))
    turns = [
        Parsed(
            "",
            f'<tool_call>{{"name": "python", "arguments": {{"code": "print(sum(range({n})))"}}}}',
            "",
            "stop",
        )
        for n in range(128)
    ]
    with ThreadPoolExecutor(128) as pool:
        shown = list(pool.map(lambda pair: pair[0].step(pair[1]), zip(environments, turns, strict=True)))
    assert [messages[0]["content"] for messages in shown] == [f"{sum(range(n))}\n" for n in range(128)]
