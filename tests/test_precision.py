"""Settings of torch that decide how products are rounded: set for a while, and put back, older and newer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet import precision
from intercontinet.precision import products

backends: Any = torch.backends
needs_newer = pytest.mark.skipif(
    not hasattr(backends, "fp32_precision"), reason="this torch has the older settings only"
)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_settings_hold_inside_and_are_put_back_even_after_an_error(precision: str) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled

    def interrupted() -> None:
        with products(precision, fast_convolutions=False):
            assert torch.get_float32_matmul_precision() == precision and not torch.backends.cudnn.enabled
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled) == before


def _generic(value: str) -> None:
    backends.fp32_precision = value


def _convolutions(value: str) -> None:
    backends.cudnn.conv.fp32_precision = value


def _gpu_matmul(value: str) -> None:
    backends.cuda.matmul.fp32_precision = value


def _cpu_matmul(value: str) -> None:
    backends.mkldnn.matmul.fp32_precision = value


def _cpu_convolutions(value: str) -> None:
    backends.mkldnn.conv.fp32_precision = value


def _older(value: str) -> None:
    torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high", "bf16": "medium"}[value])
    backends.cudnn.allow_tf32 = value != "ieee"


def _older_then_newer(value: str) -> None:
    _older("tf32")
    _generic(value)
    _gpu_matmul("ieee")


WAYS = [_generic, _convolutions, _gpu_matmul, _cpu_matmul, _cpu_convolutions, _older, _older_then_newer]
CHANGES = [(way, value) for way in WAYS for value in ("ieee", "tf32")] + [(_older, "bf16"), (_cpu_convolutions, "bf16")]


def _read(reader: Callable[[], object]) -> object:
    try:
        return reader()
    except RuntimeError:
        return "torch refuses to say"


def _settings() -> list[object]:
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    newer = [backends, cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    older = [torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32, lambda: backends.cuda.matmul.allow_tf32]
    return [setting.fp32_precision for setting in newer] + [_read(reader) for reader in older] + [cudnn.enabled]


@pytest.fixture
def as_found() -> Iterator[None]:
    """Put back what the test sets, as torch starts."""
    before = _settings()
    yield
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = True
    for setting, value in zip(precision._newer_settings(), ["none", "tf32", "tf32", *["none"] * 4], strict=True):
        setting.fp32_precision = value
    assert _settings()[8:] == before[8:], "the older settings are as they were"


@needs_newer
@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0].__name__}-{change[1]}")
@pytest.mark.parametrize("tf32", [False, True], ids=["true", "tf32"])
def test_all_settings_hold_inside_and_are_put_back(change: tuple[Callable[[str], None], str], tf32: bool) -> None:
    way, value = change
    way(value)
    before = _settings()
    with products("high" if tf32 else "highest", tf32_convolutions=tf32):
        inside = _settings()
    rounding = "tf32" if tf32 else "ieee"
    assert inside[2:8] == [rounding] * 4 + ["ieee", "ieee"]
    assert inside[8:] == ["high" if tf32 else "highest", tf32, tf32, True]
    assert _settings() == before


@needs_newer
@pytest.mark.usefixtures("as_found")
def test_what_followed_the_setting_above_it_still_follows_it() -> None:
    _generic("tf32")
    with products("highest"):
        pass
    _generic("bf16")
    assert backends.mkldnn.conv.fp32_precision == "bf16"


@needs_newer
@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0].__name__}-{change[1]}")
def test_a_certificate_is_issued_however_torch_was_set(change: tuple[Callable[[str], None], str]) -> None:
    way, value = change
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
    region = icn.Region.around(model, radius=1e-4)
    floor = icn.certify(model, region, (x, y))
    way(value)
    assert icn.certify(model, region, (x, y)).certified == floor.certified
