"""The separate process: `python -I child.py`. It runs as a script and imports nothing from the project.

The keeper reads the job and starts the worker, which locks itself in and runs the code. The keeper ends the worker, and all
that the worker started, when it is done, when its time is over, and when the caller is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

PROCESSES = 16  # processes and threads of one call
FILE_BYTES = 16 * 2**20  # one file
FOLDER_BYTES = 64 * 2**20  # all files, where the folder can be a file system of its own
OPEN_FILES = 128
CANNOT_START = 70
OUT_OF_TIME = 71
_UIDS_FROM = 1_900_000_000  # ids that no account has

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
import linux  # noqa: E402

del sys.path[0]


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    stopped = []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)  # the end of the worker ends the wait below
    linux.signal_on_parents_death(signal.SIGTERM)
    linux.adopt_orphans()
    held = _leave_namespaces()
    job["uid"] = _UIDS_FROM + os.getpid()
    deadline = time.monotonic() + job["seconds"]
    worker = os.fork()
    if worker == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(job, held)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
            os._exit(CANNOT_START)
    status = None
    while status is None and not stopped and (left := deadline - time.monotonic()) > 0:
        done, found = os.waitpid(worker, os.WNOHANG)
        if done:
            status = found
        elif 0 in select.select([0, woken], [], [], left)[0]:  # the caller closed its end
            break
    _end(worker)
    if status is None:
        os._exit(OUT_OF_TIME)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _leave_namespaces() -> dict[str, bool]:
    """New namespaces for the worker. Returns what was possible; a user needs a new user namespace first."""
    new = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
    uid, gid = os.getuid(), os.getgid()
    try:
        linux.unshare(new if uid == 0 else new | linux.CLONE_NEWUSER)
        if uid != 0:
            linux.map_own_user(uid, gid)
    except OSError:
        return {"processes": False, "network": False}
    return {"processes": True, "network": True}


def _end(worker: int) -> None:
    """Kills the worker and whatever it left. The end of a PID namespace's first process ends all of it."""
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    """This process's children, orphans that it adopted included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _work(job: dict[str, Any], held: dict[str, bool]) -> None:
    os.setsid()
    for number in (0, *range(3, 16)):
        with contextlib.suppress(OSError):
            os.close(number)
    os.open(os.devnull, os.O_RDONLY)  # becomes 0, the standard input
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    held |= _lock_in(job, held["processes"])
    if job["code"] is None:  # the caller asks what is possible here
        print(json.dumps(held), flush=True)
        os._exit(0)
    os._exit(_run(job["code"]))


def _lock_in(job: dict[str, Any], own_processes: bool) -> dict[str, bool]:
    """Gives up rights, each as far as the system allows. Returns which protections hold."""
    root = os.getuid() == 0
    held = {"files": False, "calls": False, "user": not root}
    _limit(job, own_processes)
    if own_processes:
        # /proc without the caller, and a folder that cannot fill the disk
        with contextlib.suppress(OSError):
            linux.make_mounts_private()
            linux.mount("proc", "/proc", "proc")
            linux.mount("tmpfs", job["folder"], "tmpfs", options=f"size={FOLDER_BYTES},mode=777")
            os.chdir(job["folder"])
    linux.signal_on_parents_death(signal.SIGKILL)
    linux.forbid_new_privileges()
    with contextlib.suppress(OSError):
        linux.confine_files(job["readable"], [job["folder"], "/dev/null"])
        held["files"] = True
    if root:
        held["user"] = _become_nobody(job["uid"], held["files"])
    else:
        linux.drop_capabilities()
    with contextlib.suppress(OSError):
        linux.refuse_calls(signals=not own_processes)
        held |= {"calls": True, "network": True}
    if not (own_processes or held["calls"] or (root and held["user"])):
        raise PermissionError("this system cannot stop the code from ending other processes of this user")
    return held


def _limit(job: dict[str, Any], own_processes: bool) -> None:
    limits = {
        resource.RLIMIT_CPU: int(job["seconds"]) + 1,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: job["memory"],
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    # The kernel counts a user's processes; those of a new namespace or a new user start at 0.
    fresh = own_processes or os.getuid() == 0
    limits[resource.RLIMIT_NPROC] = PROCESSES if fresh else PROCESSES + _processes_of_user()
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _processes_of_user() -> int:
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():  # noqa: PTH116
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


def _become_nobody(own: int, files_confined: bool) -> bool:
    """The user id `own`. It keeps the right to read all files only where Landlock limits which."""
    for uid in (own, 65534):
        with contextlib.suppress(OSError):
            os.chown(".", uid, uid)
            linux.become(uid, keep_reading=files_confined)
            return True
    return False


def _run(code: str) -> int:
    """Runs `code` as a main module; returns the exit code."""
    import linecache
    import traceback
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["code.py"]
    linecache.cache["code.py"] = (len(code), None, code.splitlines(keepends=True), "code.py")
    result = 0
    try:
        exec(compile(code, "code.py", "exec"), module.__dict__)
    except SystemExit as error:
        result = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # without this function's own
        traceback.print_exception(type(error), error, frames, limit=-4)
        result = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    return result & 0x3F


if __name__ == "__main__":
    main()
