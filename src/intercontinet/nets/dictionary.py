"""A dictionary of image patches: how much each patch looks like each of many atoms, summed over a coarse grid.

The features of Coates & Ng, counted in whole numbers. Float32 holds every whole number below 2^24, so that no sum
rounds, whatever its order; all else is single operations in float64, which round in one way only. Features are thus the
same to the bit on any hardware, and a certificate can stand on them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, InvalidModel, InvalidRegion, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.numbers import BRIGHTEST, EXACT, STEEPEST, cell_of, summed

FAINT = 10  # contrast, in steps of brightness, below which a patch counts as nearly empty
LIKENESSES_ON_CPU = 400_000  # at once: what its cache holds, and memory need not be asked for anew
AT_ONCE = 250  # images, which keep a GPU busy
PATCHES_AT_ONCE = 10_000
SAMPLE = 1 << 22  # likenesses of which the threshold is a quantile
ROUNDS = 8

Own = TypeVar("Own", bound="Dictionary")


class Dictionary(nn.Module, ABC):
    """What dictionaries have in common: filters, and how much each patch looks like them.

    Args:
        shape: Of one image: (channels, height, width).
        atoms: How many.
        patch: Side of a patch.
        pool: Cells along each side of the grid.
    """

    filters: Tensor

    def __init__(self, shape: Sequence[int], atoms: int, patch: int = 6, pool: int = 3) -> None:
        super().__init__()
        channels, height, width = shape
        if atoms < 1 or not 1 <= patch <= min(height, width):
            raise InvalidSetting(
                f"atoms is {atoms} and patch {patch}: at least one atom, of 1 to {min(height, width)} pixels a side"
            )
        if channels * patch**2 * BRIGHTEST**2 >= EXACT:  # the largest of all sums over a patch
            raise InvalidSetting(f"patch is {patch}: sums over {channels} x {patch} x {patch} pixels would round")
        sides = height - patch + 1, width - patch + 1
        cell = cell_of(sides, pool)
        if cell is None:
            raise InvalidSetting(
                f"pool is {pool}: {sides[0]} x {sides[1]} patches make no grid of as many cells a side"
            )
        self.shape, self.patch, self.cell = tuple(shape), patch, cell
        if 2 * BRIGHTEST * self.cell[0] * self.cell[1] >= EXACT:
            raise InvalidSetting(f"pool is {pool}: sums over {self.cell[0]} x {self.cell[1]} patches would round")
        self.features = 2 * atoms * pool**2
        self.register_buffer("filters", torch.zeros(atoms, channels, patch, patch))

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise InvalidData(f"this dictionary is for images of shape {self.shape}, not {tuple(x.shape[1:])}")
        places = math.prod(side - self.patch + 1 for side in self.shape[1:])
        few = max(1, LIKENESSES_ON_CPU // (len(self.filters) * places))
        return torch.cat([self.pooled(part) for part in torch.split(x, few if x.device.type == "cpu" else AT_ONCE)])

    @abstractmethod
    def pooled(self, x: Tensor) -> Tensor:
        """Features of a few images: what patches say, summed over cells."""

    def likenesses(self, pixels: Tensor) -> Tensor:
        """Whole-numbered pixels, [batch, channels, height, width] -> cos, [batch, atoms, rows, columns], float64.

        A matrix product and not a convolution, for which hardware may choose an algorithm that rounds.
        """
        side, d = self.patch, self.filters[0].numel()
        rows, columns = pixels.shape[-2] - side + 1, pixels.shape[-1] - side + 1
        products = self.filters.flatten(1) @ F.unfold(pixels, side)
        matches: Tensor = products.view(len(pixels), -1, rows, columns).double()

        def of_patches(values: Tensor) -> Tensor:
            return F.avg_pool2d(values.sum(1, keepdim=True), side, 1, divisor_override=1).double()

        whole = d * of_patches(pixels**2) - of_patches(pixels) ** 2 + (FAINT * d) ** 2
        contrast = divided(whole, d)
        sizes = self.filters.flatten(1).double().square().sum(1).sqrt().clamp(min=1)  # an empty filter: like nothing
        return matches.div_(contrast.sqrt()).div_(sizes[:, None, None])

    @classmethod
    @torch.no_grad()
    def with_filters(
        cls: type[Own], images: Tensor, atoms: int, patch: int, pool: int, spread: float, patches: int, seed: int
    ) -> tuple[Own, Tensor]:
        """A dictionary with filters found without labels: whitened patches, spherical k-means; and those patches."""
        if images.dim() != 4 or not len(images) or not _are_pixels(images):
            raise InvalidData("images must be [images, channels, height, width], with pixels from 0 to 1")
        if patches < atoms:
            raise InvalidSetting(f"patches is {patches}: draw no fewer than there are atoms, {atoms}")
        if not 0 < spread < float("inf"):
            raise InvalidSetting(f"spread is {spread}; it must be positive")
        layer = cls(images.shape[1:], atoms, patch, pool).to(images.device)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.round(BRIGHTEST * _patches(images.float(), patch, patches, generator))
        rows, whitening = _whitened(drawn.flatten(1).double(), spread)
        centres = _k_means(rows, atoms, generator).double()
        layer.filters.copy_(_whole(centres @ whitening).view_as(layer.filters))
        return layer, drawn

    def extra_repr(self) -> str:
        return f"{self.shape}, atoms={len(self.filters)}, patch={self.patch}, features={self.features}"


class PatchDictionary(Dictionary):
    r"""[batch, channels, height, width], pixels in [0, 1] -> [batch, 2 * atoms * pool * pool], float32 whole numbers.

    With p the pixels of a patch, rounded to 255ths, and f an atom's filter, whole numbers that add up to zero,

    .. math:: \cos = \frac{f \cdot p}{\|f\| \sqrt{|p|^2 - (\sum p)^2 / d + 10^2 d}}, \quad
              \lfloor 255 \max(\cos - \alpha, 0) \rfloor, \quad \lfloor 255 \max(-\cos - \alpha, 0) \rfloor

    are summed over the patches of each cell of a grid. All atoms' likenesses come first, then all unlikenesses; the
    cells of an atom lie next to each other.

    Args:
        shape: Of one image: (channels, height, width).
        atoms: How many.
        patch: Side of a patch.
        pool: Cells along each side of the grid.

    >>> layer = PatchDictionary((1, 8, 8), atoms=1, patch=2, pool=1)  # made with empty filters: load or fit them
    >>> layer.filters.copy_(torch.tensor([[[[1.0, -1.0], [1.0, -1.0]]]]))  # bright at the left, dark at the right
    tensor([[[[ 1., -1.], [ 1., -1.]]]])
    >>> x = torch.zeros(1, 1, 8, 8)
    >>> x[..., :4] = 1
    >>> layer(x)  # seven patches lie on the edge, and each looks like the atom: 255 / sqrt(1 + 400 / 255^2) = 254.2
    tensor([[1778.,    0.]])
    """

    alpha: Tensor

    def __init__(self, shape: Sequence[int], atoms: int, patch: int = 6, pool: int = 3) -> None:
        super().__init__(shape, atoms, patch, pool)
        self.register_buffer("alpha", torch.zeros(()))

    def pooled(self, x: Tensor) -> Tensor:
        cos = self.likenesses(torch.round(BRIGHTEST * x))
        size = cos.abs().sub_(self.alpha.double()).mul_(BRIGHTEST).clamp_(min=0).floor_()
        signed = size.copysign_(cos).float()
        both, net = summed(signed.abs(), self.cell), summed(signed, self.cell)  # in every patch one side is zero
        return torch.cat([(both + net) / 2, (both - net) / 2], 1).flatten(1)

    @classmethod
    @torch.no_grad()
    def fitted(
        cls,
        images: Tensor,
        atoms: int,
        patch: int = 6,
        pool: int = 3,
        active: float = 0.1,
        spread: float = 1.0,
        patches: int = 100_000,
        seed: int = 0,
    ) -> PatchDictionary:
        """A dictionary of what patches of these images look like, without any labels: whitened, spherical k-means.

        Args:
            images: [images, channels, height, width], pixels in [0, 1].
            atoms: How many.
            patch: Side of a patch.
            pool: Cells along each side of the grid.
            active: Share of likenesses, of either sign, that exceed the threshold.
            spread: What whitening adds to eigenvalues, where a pixel's variance is one: the larger, the less white.
            patches: How many to draw.
            seed: Fixes the patches and where k-means starts.

        >>> images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> PatchDictionary.fitted(images, atoms=5, patch=3, pool=2, patches=100)(images).shape
        torch.Size([20, 40])
        """
        if not 0 < active < 1:
            raise InvalidSetting(f"active is {active}; it is a share, above 0 and below 1")
        layer, drawn = cls.with_filters(images, atoms, patch, pool, spread, patches, seed)
        likenesses = layer.likenesses(drawn[: max(1, SAMPLE // atoms)]).abs().flatten()
        layer.alpha.copy_(likenesses.kthvalue(max(1, math.ceil((1 - active) * len(likenesses)))).values)
        return layer


class TriangleDictionary(Dictionary):
    r"""A dictionary whose threshold is each patch's own: how much nearer than usual an atom is.

    Atoms count on both sides, so that a patch has distances :math:`\lfloor 255 \sqrt{2 \mp 2 \cos} \rfloor` to them,
    whole numbers; features are :math:`\lfloor \max(m - \text{distance}, 0) \rfloor`, with m the mean over all of them,
    summed as in a :class:`PatchDictionary`, whose arguments it has.

    >>> images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> TriangleDictionary.fitted(images, atoms=5, patch=3, pool=2, patches=100)(images).shape
    torch.Size([20, 40])
    """

    def pooled(self, x: Tensor) -> Tensor:
        cos = self.likenesses(torch.round(BRIGHTEST * x))
        sides = [(2 - 2 * side).clamp_(min=0).sqrt_().mul_(BRIGHTEST).floor_() for side in (cos, -cos)]
        total, number = sides[0].sum(1, keepdim=True) + sides[1].sum(1, keepdim=True), 2 * cos.shape[1]
        nearer = [divided((total - number * side).clamp_(min=0), number).floor_().float() for side in sides]
        return torch.cat([summed(part, self.cell) for part in nearer], 1).flatten(1)

    @classmethod
    def fitted(
        cls,
        images: Tensor,
        atoms: int,
        patch: int = 6,
        pool: int = 3,
        spread: float = 1.0,
        patches: int = 100_000,
        seed: int = 0,
    ) -> TriangleDictionary:
        """As :meth:`PatchDictionary.fitted`, without a threshold to choose."""
        return cls.with_filters(images, atoms, patch, pool, spread, patches, seed)[0]


def divided(values: Tensor, by: int) -> Tensor:
    """A division that rounds once. A GPU takes the reciprocal of a Python number first, which rounds twice."""
    return values / values.new_tensor(by)


def _are_pixels(x: Tensor) -> bool:
    return bool(((x >= 0) & (x <= 1)).all())


def _patches(images: Tensor, side: int, count: int, generator: torch.Generator) -> Tensor:
    """Patches anywhere in any image, [count, channels, side, side]."""
    limits = len(images), images.shape[-2] - side + 1, images.shape[-1] - side + 1
    which, top, left = (torch.randint(n, (count, 1, 1, 1), generator=generator).to(images.device) for n in limits)
    channel, step = (torch.arange(n, device=images.device) for n in (images.shape[1], side))
    return images[which, channel[:, None, None], top + step[:, None], left + step]


def _whitened(rows: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """Patches of one contrast, whitened, [patches, d], of unit length, float32; and the map that whitens, [d, d]."""
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / (rows.square().mean(1, keepdim=True) + FAINT**2).sqrt()
    rows = rows - rows.mean(0)
    spreads = (rows.T @ rows / len(rows)).cpu()  # small; and on a GPU, eigh must not be called by two threads at first
    values, vectors = (part.to(rows.device) for part in torch.linalg.eigh(spreads))
    whitening = vectors / (values.clamp(min=0) + spread).sqrt() @ vectors.T
    return F.normalize(rows @ whitening).float(), whitening


def _k_means(rows: Tensor, atoms: int, generator: torch.Generator) -> Tensor:
    """Unit vectors, [atoms, d], round which the rows lie; a row may lie on an atom's far side, which counts as well."""

    def draw() -> Tensor:
        return rows[torch.randperm(len(rows), generator=generator)[:atoms].to(rows.device)]

    centres = draw()
    for _ in range(ROUNDS):
        sums = torch.zeros_like(centres)
        for part in torch.split(rows, PATCHES_AT_ONCE):
            near, nearest = (part @ centres.T).abs().max(1)
            side = (part * centres[nearest]).sum(1, keepdim=True).sign()
            chosen = F.one_hot(nearest, atoms).to(part.dtype) * (near > 0)[:, None]
            sums += chosen.T @ (side * part)  # a product adds up the same way every time, which index_add may not
        dead = ~sums.any(1, keepdim=True)
        centres = F.normalize(torch.where(dead, draw(), sums))
    return centres


def _whole(filters: Tensor) -> Tensor:
    """[atoms, d] -> whole numbers in [-127, 127] whose rows add up to zero, in nearly the same proportions.

    What rounding left over is taken back where it had given most, so that no entry leaves the range.
    """
    filters = filters - filters.mean(1, keepdim=True)
    largest = filters.abs().amax(1, keepdim=True)
    scaled = filters / largest.clamp(min=torch.finfo(filters.dtype).tiny) * STEEPEST
    whole = scaled.round()
    excess = whole.sum(1, keepdim=True)
    given = (whole - scaled) * excess.sign()
    place = given.argsort(dim=1, descending=True, stable=True).argsort(1)
    return torch.where(place < excess.abs(), whole - excess.sign(), whole)


@rule(PatchDictionary, TriangleDictionary)
def patch_dictionary(
    layer: Dictionary, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic
) -> Interval:
    """The very features that a float32 evaluation finds, provided that all its sums are of whole numbers."""
    if not x.is_point or not _are_pixels(x.lower):
        raise InvalidData(
            "a dictionary needs pixels from 0 to 1, known exactly: pass a tensor of such, not an interval"
        )
    for name, box in parameters.items():
        if not box.is_point:
            raise InvalidRegion(f"the region lets '{name}' roam: a dictionary is frozen, so give it zero width")
    own = {**dict(layer.named_buffers()), **{name: box.lower.float() for name, box in parameters.items()}}
    filters = own["filters"]
    whole = (filters == filters.round()) & (filters.abs() <= STEEPEST)
    if not bool(whole.all() and (filters.double().sum((1, 2, 3)) == 0).all()) or not bool(
        own.get("alpha", filters.new_zeros(())) >= 0
    ):
        raise InvalidModel(
            f"a dictionary's filters must be whole numbers up to {STEEPEST} that add up to zero, and alpha must not be "
            f"negative: fit them with {type(layer).__name__}.fitted"
        )
    features: Tensor = functional_call(layer, own, (x.lower.float(),))
    return Interval.point(features.to(x.lower.dtype), nonnegative=True)
