"""One-line errors for folders that cannot be created and disks that cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl.errors import UserError

# Errors of the disk, not of the program, and the remedy for each.
DISK_ERRORS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the file-size limit (ulimit -f)",
    errno.EROFS: "give another {key} that can be written",
    errno.EACCES: "give another {key} that can be written",
    errno.EPERM: "give another {key} that can be written",
}


@contextmanager
def disk_errors(key: str, folder: str | Path | None = None) -> Iterator[None]:
    """Turns a full disk, a read-only folder or a file-size limit into one line; `key` is the option that chose the place.

    Does the same for any other operating-system error on a file in `folder`. Looks through causes and quoted messages,
    because libraries wrap such errors.
    """
    try:
        yield
    except Exception as error:
        code = _disk_error(error)
        file = getattr(error, "filename", None)
        if code is None and folder and isinstance(error, OSError) and _is_below(file, folder):
            raise UserError(
                f"{key}: {file} cannot be used: {error.strerror}; move it away and repeat the same command"
            ) from error
        if code is None:
            raise
        remedy = DISK_ERRORS[code].format(key=key.partition("=")[0])
        raise UserError(
            f"{key}: cannot be written{f' ({file})' if file else ''}: {os.strerror(code)}; {remedy} and repeat the"
            " same command; complete files are unchanged"
        ) from error


def _disk_error(error: BaseException | None) -> int | None:
    while error is not None:
        for code in DISK_ERRORS:
            if getattr(error, "errno", None) == code or f"{os.strerror(code)} (os error {code})" in str(
                error
            ):
                return code
        error = error.__cause__ or error.__context__
    return None


def _is_below(file: object, folder: str | Path) -> bool:
    return isinstance(file, str | Path) and Path(file).absolute().is_relative_to(
        Path(folder).expanduser().absolute()
    )


def made_folder(key: str, wanted: str | Path) -> Path:
    """The folder, created if missing. Raises UserError if that fails, before any work that would be lost."""
    path = Path(wanted).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{key}={wanted}: cannot create this folder ({error.strerror}); give another {key}"
        ) from None
    return path


def no_folder(wanted: str | Path, error: Exception) -> UserError:
    shown = str(wanted) if str(wanted).isprintable() else repr(str(wanted))
    reason = getattr(error, "strerror", None) or error
    return UserError(f"run_dir={shown}: cannot create this folder ({reason}); give another run_dir")
