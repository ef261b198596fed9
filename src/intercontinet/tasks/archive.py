"""Unpack the files one wants from a tar archive, and nothing else."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from intercontinet.errors import InvalidData
from intercontinet.files import write_atomically


def unpack(archive: Path, folder: str, files: Sequence[str], target: Path) -> None:
    """Write the archive's ``folder/file``, for each of ``files``, into the folder ``target``, whole or not at all.

    Nothing is written before every member of the archive has been looked at.

    Raises:
        InvalidData: A member is a link or a device, or has a path that climbs out; a file is missing; the archive is
            cut short or damaged.
        WriteError: A file could not be written.
    """
    try:
        with tarfile.open(archive) as tar:
            members = {}
            for member in tar:
                _check(archive, member)
                if member.isfile():
                    members[member.name.removeprefix("./")] = member
            for file in files:
                if f"{folder}/{file}" not in members:
                    raise InvalidData(f"{archive} lacks {folder}/{file}: it is another archive. Take a fresh copy")
            for file in files:
                content = cast(IO[bytes], tar.extractfile(members[f"{folder}/{file}"]))
                write_atomically(target / file, content.read())
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(f"{archive} is cut short or damaged: {error}. Take a fresh copy") from error


def _check(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidData(f"{archive} holds '{member.name}', a path that climbs out of its folder: do not trust it")
    if not (member.isfile() or member.isdir()):
        raise InvalidData(f"{archive} holds '{member.name}', a link or a device, not a file: do not trust it")
