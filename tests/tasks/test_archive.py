"""Archives: the wanted files and no others, and none at all from an archive that cannot be trusted."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from intercontinet.errors import InvalidData
from intercontinet.tasks import download, image_set
from intercontinet.tasks.archive import unpack
from tests.tasks.mirror import Mirror
from tests.tasks.samples import CIFAR_TEST, left_over, serve_cifar, tar


@pytest.mark.usefixtures("mirror")
def test_an_archive_gives_the_files_that_are_wanted_and_no_others(folder: Path) -> None:
    (x, _), (x_test, _) = image_set("cifar-100")
    assert x.shape == (4, 3, 32, 32) and x_test.shape == (2, 3, 32, 32)
    assert left_over(folder / "cifar-100-binary") == ["test.bin", "train.bin"]
    assert left_over(folder) == [".cifar-100-binary.lock", "cifar-100-binary"]


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


BAD: dict[str, tuple[dict[str, bytes | tarfile.TarInfo], str]] = {
    "climbs": ({"../evil.txt": b"boo"}, r"holds '\.\./evil\.txt', a path that climbs out"),
    "climbs inside": ({"cifar-100-binary/../../evil.txt": b"boo"}, "climbs out"),
    "absolute": ({"/tmp/evil.txt": b"boo"}, r"holds '/tmp/evil\.txt', a path that climbs out"),
    "symlink": (
        {"cifar-100-binary/train.bin": member("cifar-100-binary/train.bin", tarfile.SYMTYPE, "/etc/passwd")},
        r"holds 'cifar-100-binary/train\.bin', a link or a device",
    ),
    "hard link": ({"x": member("x", tarfile.LNKTYPE, "cifar-100-binary/test.bin")}, "holds 'x', a link or a device"),
    "device": ({"x": member("x", tarfile.CHRTYPE)}, "holds 'x', a link or a device"),
    "lacks one": ({}, r"lacks cifar-100-binary/train\.bin"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_archive_is_refused_before_anything_is_written(
    what: str, folder: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, complaint = BAD[what]
    whole = {"cifar-100-binary/train.bin": bytes(3074)} if what not in ("symlink", "lacks one") else {}
    serve_cifar(mirror, monkeypatch, {**CIFAR_TEST, **whole, **members})
    with pytest.raises(InvalidData, match=complaint):
        download("cifar-100")
    assert left_over(folder / "cifar-100-binary") == []
    assert not list(folder.rglob("evil*")) and not list(folder.parent.glob("evil*"))


@pytest.mark.parametrize("kept", [0, 5, 40, 90, -100])
def test_an_archive_cut_short_is_named(folder: Path, kept: int) -> None:
    archive = folder / "some.tar.gz"
    archive.write_bytes(tar({"cifar-100-binary/train.bin": os.urandom(3074)})[:kept])
    with pytest.raises(InvalidData, match=r"some\.tar\.gz is cut short or damaged"):
        unpack(archive, "cifar-100-binary", ["train.bin"], folder)
    assert left_over(folder) == ["some.tar.gz"]
