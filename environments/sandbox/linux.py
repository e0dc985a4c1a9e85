"""Linux's means of isolation, by ctypes. Imported by child.py, so it imports nothing from the project.

Each function raises OSError when the kernel, or the container that this runs in, does not allow it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = (
    1,
    8,
    22,
    36,
    38,
)
_CAP_DAC_READ_SEARCH = 2
_MS_NOSUID_NODEV, _MS_REC, _MS_PRIVATE = 2 | 4, 0x4000, 0x40000

# Numbers of refused system calls on x86_64 and aarch64.
_ALWAYS_REFUSED = {
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "userfaultfd": (323, 282),
}  # fmt: skip
_SIGNALS = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _prctl(option: int, *arguments: int) -> None:
    _check(_libc.prctl(option, *(ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4])))


def _syscall(*arguments: object) -> int:
    return _check(_libc.syscall(*arguments))


def unshare(flags: int) -> None:
    """Leaves the namespaces in `flags`; a new PID namespace begins with the next child."""
    _check(_libc.unshare(flags))


def map_own_user(uid: int, gid: int) -> None:
    """Inside a new user namespace: keeps the caller's ids."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)


def mount(source: str, target: str, kind: str, flags: int = _MS_NOSUID_NODEV, options: str = "") -> None:
    """Mounts a file system of `kind` on `target`."""
    _check(
        _libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
        )
    )


def make_mounts_private() -> None:
    """Later mounts of this namespace are not seen outside."""
    mount("none", "/", "none", _MS_REC | _MS_PRIVATE)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parents_death(number: int) -> None:
    """The kernel sends this signal when the thread that started this process ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become(uid: int, keep_reading: bool) -> None:
    """From root to `uid`, without any capability but, with `keep_reading`, reading files of all users."""
    _prctl(_PR_SET_KEEPCAPS, int(keep_reading))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    drop_capabilities(1 << _CAP_DAC_READ_SEARCH if keep_reading else 0)


def drop_capabilities(kept: int = 0) -> None:
    """Leaves only the capabilities in the bit set `kept`."""
    header = struct.pack("Ii", 0x20080522, 0)
    # effective, permitted, inheritable: the lower 32 bits of each, then the upper ones
    _check(_libc.capset(header, struct.pack("IIIIII", kept, kept, 0, 0, 0, 0)))


def forbid_new_privileges() -> None:
    """No program started from here on gains privileges; the two functions below need it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def confine_files(readable: list[str], writable: list[str]) -> None:
    """Landlock: reads and runs only below `readable`, reads and writes only below `writable`; no TCP, no signals out."""
    version = _syscall(444, None, 0, 1)
    read = 0b1101  # execute, read file, read directory
    handled = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, device ioctl
        handled |= (version >= since) << bit
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _syscall(444, struct.pack("QQQ", handled, network, scoped), ctypes.c_size_t(size), 0)
    try:
        for paths, access in ((readable, read), (writable, handled)):
            for path in paths:
                if not os.path.exists(path):  # noqa: PTH110
                    continue
                beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rights = -1 if os.path.isdir(path) else 0b111 | 1 << 14  # noqa: PTH112  # a file's: no directory rights
                _syscall(445, rules, 1, struct.pack("=Qi", access & handled & rights, beneath), 0)
                os.close(beneath)
        _syscall(446, rules, 0)
    finally:
        os.close(rules)


def refuse_calls(signals: bool) -> None:
    """Seccomp: sockets, tracing, mounts and namespaces are refused; with `signals`, every signal too."""
    if platform.machine() not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, "no table of system calls for this processor")
    column, architecture = _ARCHITECTURES[platform.machine()]
    numbers = [pair[column] for pair in (_ALWAYS_REFUSED | (_SIGNALS if signals else {})).values()]
    refuse, allow, kill = 0x00050000 | errno.EPERM, 0x7FFF0000, 0x80000000
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, kill), (0x20, 0, 0, 0)]
    tests = [(0x15, number) for number in numbers]
    if column == 0:
        tests.append((0x35, 0x40000000))  # the x32 calls: numbers from here up
    for left, (test, number) in zip(range(len(tests), 0, -1), tests, strict=True):
        program.append((test, left, 0, number))
    program += [(0x06, 0, 0, allow), (0x06, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(pointer)
    _check(
        _libc.prctl(
            _PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(buffer), ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
    )
