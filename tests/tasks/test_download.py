"""Downloads: checked, resumed, whole or not there; and errors that say what belongs where."""

from __future__ import annotations

import errno
import gzip
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from intercontinet.errors import InvalidData, InvalidSetting, WriteError
from intercontinet.tasks import IMAGE_SETS, download, image_set
from tests.tasks.mirror import Mirror
from tests.tasks.samples import left_over, tiny_idx_files

IMAGES = "train-images-idx3-ubyte.gz"


def only(mirror: Mirror, name: str = IMAGES) -> bytes:
    """Forget what was asked; the file that the test is about."""
    mirror.asked.clear()
    return mirror.files[f"/{name}"]


def test_a_missing_data_set_is_downloaded_and_read(
    folder: Path, mirror: Mirror, capfd: pytest.CaptureFixture[str]
) -> None:
    (x, y), (x_test, _) = image_set("mnist")
    assert x.shape == (20, 1, 28, 28) and len(x_test) == 10 and y.tolist() == [*range(10), *range(10)]
    assert left_over(folder / "mnist") == sorted(f"{name}.gz" for name in tiny_idx_files())
    assert capfd.readouterr() == ("", ""), "pooch keeps its log to itself, and a file is no terminal"


def test_only_what_is_missing_is_asked_for(folder: Path, mirror: Mirror) -> None:
    assert download("mnist") == folder / "mnist"
    content = gzip.decompress(only(mirror))
    (folder / "mnist" / IMAGES).unlink()
    (folder / "mnist" / IMAGES.removesuffix(".gz")).write_bytes(content)
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    download("mnist")
    assert [path for path, _ in mirror.asked] == ["/t10k-labels-idx1-ubyte.gz"]


def test_a_download_goes_on_where_it_broke_off_before(folder: Path, mirror: Mirror) -> None:
    content = only(mirror)
    (folder / "mnist").mkdir()
    (folder / "mnist" / f"{IMAGES}.part").write_bytes(content[:1000])
    download("mnist")
    assert mirror.asked[0] == (f"/{IMAGES}", 1000)
    assert (folder / "mnist" / IMAGES).read_bytes() == content


def test_a_connection_that_breaks_off_is_taken_up_again_at_once(folder: Path, mirror: Mirror) -> None:
    content = only(mirror)
    mirror.cut = len(content) // 2 + 1
    download("mnist")
    assert mirror.asked[:2] == [(f"/{IMAGES}", 0), (f"/{IMAGES}", mirror.cut)]
    assert (folder / "mnist" / IMAGES).read_bytes() == content


def test_a_connection_that_keeps_breaking_off_leaves_a_part_to_go_on_from(folder: Path, mirror: Mirror) -> None:
    content = only(mirror)
    mirror.cut = 100
    with pytest.raises(InvalidData, match=r"broke off more than once \(try again: it goes on from there\)"):
        download("mnist")
    assert left_over(folder / "mnist") == [f"{IMAGES}.part"]
    assert (folder / "mnist" / f"{IMAGES}.part").read_bytes() == content[:300]
    mirror.cut = None
    download("mnist")
    assert (f"/{IMAGES}", 300) in mirror.asked and (folder / "mnist" / IMAGES).read_bytes() == content


@pytest.mark.parametrize(
    ("part", "ranges"),
    [(b"something else", True), (b"something else", False), (bytes(100_000), True)],
    ids=["other bytes", "a mirror that cannot go on", "longer than the file"],
)
def test_a_part_that_does_not_fit_is_thrown_away(folder: Path, mirror: Mirror, part: bytes, ranges: bool) -> None:
    content = only(mirror)
    mirror.ranges = ranges
    (folder / "mnist").mkdir()
    (folder / "mnist" / f"{IMAGES}.part").write_bytes(part)
    download("mnist")
    assert mirror.asked[0] == (f"/{IMAGES}", len(part))
    assert (folder / "mnist" / IMAGES).read_bytes() == content


def test_a_wrong_checksum_leaves_nothing_behind(folder: Path, mirror: Mirror) -> None:
    mirror.files[f"/{IMAGES}"] = b"<html>Please log in</html>"
    with pytest.raises(InvalidData, match=rf"what http\S*/{IMAGES} sends is not the official file, for its MD5"):
        download("mnist")
    assert not (folder / "mnist").exists()


@pytest.mark.usefixtures("folder")
def test_the_error_says_what_belongs_where_and_where_to_get_it(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.patience = 1
    with pytest.raises(InvalidData) as error:
        image_set("mnist")
    text = str(error.value)
    assert text.startswith("train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (gzipped or not) ")
    assert f"should be in {IMAGE_SETS['mnist'].place}" in text and "404 Not Found" in text
    assert text.count("http://127.0.0.1") == 1 + 3 and "the folder whose subfolder mnist holds them" in text
    away = replace(IMAGE_SETS["cifar-100"].remotes[0], url="http://127.0.0.1:1/cifar-100-binary.tar.gz")
    monkeypatch.setitem(IMAGE_SETS, "cifar-100", replace(IMAGE_SETS["cifar-100"], remotes=(away,)))
    with pytest.raises(
        InvalidData,
        match=r"^train\.bin, test\.bin should be in .*cifar-100-binary, and cannot be downloaded: no connection to "
        r"(http://127\.0\.0\.1:1/cifar-100-binary\.tar\.gz)\. Take \1 and unpack it, or set INTERCONTINET_DATA",
    ):
        download("cifar-100")


@pytest.mark.usefixtures("folder")
def test_without_pooch_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InvalidData, match=r"should be in .*mnist.* pip install 'intercontinet\[cli\]'\. Take https://"):
        download("mnist")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidSetting, match=r"'minst' \(did you mean 'mnist'\?\): choose one of mnist, fashion"):
        download("minst")


@pytest.mark.parametrize("name", ["mnist", "cifar-100"])
def test_a_full_disk_leaves_nothing_half_written(
    folder: Path, mirror: Mirror, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match=rf"cannot write to {IMAGE_SETS[name].place}: No space left.*Make room"):
            download(name)
    assert left_over(IMAGE_SETS[name].place) == ([f"{IMAGES}.part"] if name == "mnist" else [])
    image_set(name)


def test_a_disk_that_fills_up_while_unpacking_leaves_the_archive(
    folder: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise WriteError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("intercontinet.tasks.archive.write_atomically", full)
        with pytest.raises(WriteError, match=r"train\.bin: No space left"):
            download("cifar-100")
    mirror.asked.clear()
    download("cifar-100")
    assert not mirror.asked and not (folder / "cifar-100-binary.tar.gz").exists()


@pytest.mark.usefixtures("mirror")
def test_a_folder_that_cannot_be_made_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("INTERCONTINET_DATA", str(folder / "file"))
    with pytest.raises(WriteError, match=r"cannot write to .*file/mnist: Not a directory.*set INTERCONTINET_DATA"):
        download("mnist")


def test_of_two_at_once_one_downloads_and_the_other_waits(folder: Path, mirror: Mirror) -> None:
    threads = [threading.Thread(target=download, args=("cifar-100",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mirror.asked) == 1 and not IMAGE_SETS["cifar-100"].missing()


@pytest.mark.usefixtures("folder", "mirror")
def test_a_terminal_shows_a_bar_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    download("cifar-100", progress=False)
    assert capfd.readouterr() == ("", "")
    download("mnist")
    out, err = capfd.readouterr()
    assert not out and all(f"{name}.gz" in err for name in tiny_idx_files())
