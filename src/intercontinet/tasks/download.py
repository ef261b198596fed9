"""Downloads from the official mirrors: checked, resumed where they broke off, and whole or not there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercontinet.errors import InterContiNetError, InvalidData, WriteError
from intercontinet.tasks.archive import unpack
from intercontinet.tasks.catalogue import ImageSet, Remote, about, data_folder

if TYPE_CHECKING:
    from requests import Response

TIMEOUT = (10, 30)  # seconds to connect, seconds without a byte
RETRIES = 2  # after a connection that broke off, or a wrong checksum
_CHUNK = 1 << 16
Advance = Callable[[int], object]


class _CannotFetch(Exception):
    """A mirror does not answer, has no such file or sends another one: trying again at once would not help."""


def download(name: str, progress: bool = True) -> Path:
    """Fetch the files of a data set that are missing; the folder they are in.

    Each comes from its official mirror. It is written to a ``.part`` file, from which a later call goes on if the
    connection breaks off or the program is killed, and gets its name only once its checksum is right. Of several
    processes that want the same files, one downloads and the others wait for it.

    Args:
        name: A key of ``IMAGE_SETS``.
        progress: Whether to show a progress bar, where the standard error output is a terminal.

    Raises:
        InvalidSetting: There is no data set of that name.
        InvalidData: A file cannot be had; the message says where it belongs and where to get it.
        WriteError: The folder cannot be written to, or the disk is full.
    """
    known = about(name)
    if not known.missing():
        return known.place
    try:
        import requests
        from filelock import FileLock
        from pooch import get_logger
    except ImportError:
        raise InvalidData(_by_hand(known, "install pooch for that: pip install 'intercontinet[cli]'")) from None
    try:
        known.place.mkdir(parents=True, exist_ok=True)
        with FileLock(data_folder() / f".{known.folder}.lock"), _silent(get_logger()):
            _fetch_missing(known, progress)
    except InterContiNetError:
        raise
    except _CannotFetch as error:
        with suppress(OSError):  # as it is where something came
            known.place.rmdir()
        raise InvalidData(_by_hand(known, str(error))) from error
    except requests.RequestException as error:
        reason = "the connection broke off more than once (try again: it goes on from there)"
        raise InvalidData(_by_hand(known, reason)) from error
    except OSError as error:
        size = sum(remote.size for remote in known.remotes) / 1e6
        raise WriteError(
            f"cannot write to {known.place}: {error.strerror or error}. Make room there (the download takes "
            f"{size:.0f} MB), or set INTERCONTINET_DATA to another folder"
        ) from error
    return known.place


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _by_hand(known: ImageSet, reason: str) -> str:
    missing, packed = known.missing(), known.packed
    sources = [remote.url for remote in known.remotes if packed or remote.file.removesuffix(".gz") in missing]
    return (
        f"{', '.join(missing)} {'' if packed else '(gzipped or not) '}should be in {known.place}, and cannot be "
        f"downloaded: {reason}. Take {', '.join(sources)}{' and unpack it' if packed else ''}, or set "
        f"INTERCONTINET_DATA to the folder whose subfolder {known.folder} holds them"
    )


def _fetch_missing(known: ImageSet, progress: bool) -> None:
    missing = known.missing()  # asked again, now that no other process is at it
    for remote in known.remotes:
        if known.packed and missing:
            archive = _fetch(remote, data_folder(), progress)
            unpack(archive, known.folder, missing, known.place)
            archive.unlink()
        elif remote.file.removesuffix(".gz") in missing:
            _fetch(remote, known.place, progress)


def _fetch(remote: Remote, folder: Path, progress: bool) -> Path:
    """One file, with the right checksum, by way of pooch."""
    import pooch

    fetcher = pooch.create(
        path=folder,
        base_url="",
        registry={remote.file: f"md5:{remote.md5}"},
        urls={remote.file: remote.url},
        retry_if_failed=RETRIES,
    )
    with _bar(remote, progress) as advance:

        def resumed(url: str, target: str, _: Any) -> None:
            _resume(url, Path(target), advance)

        try:
            return Path(fetcher.fetch(remote.file, downloader=resumed))
        except ValueError as error:
            raise _CannotFetch(
                f"what {remote.url} sends is not the official file, for its MD5 checksum is not {remote.md5}"
            ) from error


def _resume(url: str, target: Path, advance: Advance) -> None:
    """Download to a ``.part`` file beside the target, from where it ends; move it to the target once it is whole."""
    import requests
    import urllib3

    part = target.with_name(url.rsplit("/", 1)[-1] + ".part")
    have = part.stat().st_size if part.exists() else 0
    with _ask(url, have) as answer:
        goes_on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        with part.open("ab" if goes_on else "wb") as file:  # a mirror may also start again from the beginning
            try:
                for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                    file.write(chunk)
                    advance(file.tell())
            except urllib3.exceptions.HTTPError as error:
                raise requests.ConnectionError(str(error)) from error
            file.flush()
            os.fsync(file.fileno())
    os.replace(part, target)


def _ask(url: str, have: int) -> Response:
    import requests

    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
    except requests.RequestException as error:
        raise _CannotFetch(f"no connection to {url}") from error
    if answer.ok:
        return answer
    answer.close()
    if answer.status_code == 416 and have:  # the part is as long as the file or longer: start again
        return _ask(url, 0)
    raise _CannotFetch(f"{url} answers {answer.status_code} {answer.reason}")


@contextmanager
def _bar(remote: Remote, progress: bool) -> Iterator[Advance]:
    """A progress bar on the standard error output, if wanted, and if rich is there to draw it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda done: None
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bars:
        row = bars.add_task(remote.file, total=remote.size)
        yield lambda done: bars.update(row, completed=done)
