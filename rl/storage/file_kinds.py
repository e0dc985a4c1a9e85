"""Guesses what an unreadable file is: text in another encoding, or a Git LFS pointer."""

from __future__ import annotations

import codecs
import shlex
from pathlib import Path

_LFS_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # a pointer is shorter
_UTF16 = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
# Python's name and iconv's name of each encoding, tried in this order.
_JAPANESE = {"shift_jis": "SHIFT_JIS", "cp932": "CP932", "euc_jp": "EUC-JP"}


def likely_encoding(data: bytes) -> str | None:
    """iconv's name of the likely encoding of bytes that are not UTF-8 text; None: no guess, or valid UTF-8."""
    for mark, name in _UTF16.items():
        if data.startswith(mark):
            return name
    if (
        len(data) > 1 and b"\0" in data[:2]
    ):  # of a text that begins with ASCII, as JSON does, every second byte is 0
        return "UTF-16BE" if data[0] == 0 else "UTF-16LE"
    if b"\x1b$" in data:
        return "ISO-2022-JP"
    if _is_utf8(data):
        return None
    for codec, name in _JAPANESE.items():
        if _is_japanese(data, codec):
            return name
    return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_japanese(data: bytes, codec: str) -> bool:
    """Whether the bytes decode to Japanese text: a wrong codec gives mostly half-width kana."""
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return False
    kana = sum("\u3041" <= character <= "\u30ff" for character in text)
    return kana > sum("\uff61" <= character <= "\uff9f" for character in text)


def advice(path: Path | str, data: bytes) -> str | None:
    """What a text file seems to be, judged by some of its bytes, and what to type; None: no guess."""
    if data.startswith(_LFS_POINTER):
        return pointer_advice(path)
    encoding = likely_encoding(data)
    if encoding is None:
        return None
    file = Path(path)
    converted = file.with_name(f"{file.stem}.utf8{file.suffix}")
    return (
        f"{path}: is not UTF-8 text but looks like {encoding}; type"
        f" iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(converted))} and give that file"
    )


def pointer_advice(path: Path | str) -> str:
    """The message for a Git LFS pointer, with the command to type."""
    return f"{path}: is a Git LFS pointer, not the file itself; type git lfs pull in the folder it is in"


def lfs_pointer(path: Path) -> Path | None:
    """The file, or the first file directly in the folder, that is a Git LFS pointer; None: there is none."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        small = file.is_file() and file.stat().st_size < _POINTER_BYTES
        if small and file.read_bytes().startswith(_LFS_POINTER):
            return file
    return None
