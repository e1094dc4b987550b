"""Frozen features of images, computed once: samples in, batches of pixels and feature maps out."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from inclad.backbones import Backbone, smallest_image
from inclad.cache import Cache, content_key, device_name, file_digest, source_digest
from inclad.data.folder import existing_root, image_files, subfolders
from inclad.data.images import read_image, read_mask
from inclad.data.task import DataError, Sample


class Batch:
    """Images on their way to a detector; pixels and features are made when they are first asked for."""

    def __init__(self, samples: Sequence[Sample], extractor: "Extractor"):
        self.samples = tuple(samples)
        self.size = extractor.image_size
        self._extractor = extractor

    def __len__(self) -> int:
        return len(self.samples)

    def once(self, key: str, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives for these images, from the cache if it was there before.

        `key` is the content key of what computes, "" where it has none.
        """
        extractor = self._extractor
        if not extractor.cache or not key:
            return compute()
        key = content_key(kind="once", by=key, images=extractor.key(self.samples))
        if known := extractor.cache.get(key):
            return known["result"].to(extractor.device)
        result = compute()
        extractor.cache.put(key, {"result": result})
        return result

    def pixels(self) -> Tensor:
        """(B, 3, size, size) float32 in [0, 1]."""
        return self._extractor.pixels(self.samples)

    def features(self, stages: Sequence[int]) -> list[Tensor]:
        """Feature maps of the frozen backbone, (B, C_s, H_s, W_s) float32, one a stage."""
        return self._extractor.features(self.samples, stages)


class Images:
    """Samples that can be gone through in batches, again and again."""

    def __init__(self, samples: Sequence[Sample], extractor: "Extractor", batch_size: int = 32):
        self.samples = tuple(samples)
        self.extractor = extractor
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.samples), self.batch_size):
            yield Batch(self.samples[start : start + self.batch_size], self.extractor)

    def of(self, samples: Sequence[Sample], batch_size: int | None = None) -> "Images":
        """Other samples, through the same backbone."""
        return Images(samples, self.extractor, batch_size or self.batch_size)

    def shuffled(self, generator: torch.Generator, batch_size: int | None = None) -> "Images":
        """The same samples in a new random order."""
        order = torch.randperm(len(self.samples), generator=generator).tolist()
        return self.of([self.samples[i] for i in order], batch_size)


class Extractor:
    """A frozen backbone at one image size; features of recent images stay in memory, of many more on disk.

    `memory_gib` bounds what is kept in memory; the least recently used images go first. What is not in
    memory comes from `cache`, if there is one, and else is computed. The last digits of features depend on
    what was computed with them (batch size, threads); an entry keeps those of the first time. Raises
    ValueError when `image_size` is too small for the backbone's stages.
    """

    def __init__(
        self, backbone: Backbone, image_size: int, memory_gib: float = 4.0, cache: Cache | None = None
    ):
        least = smallest_image(backbone)
        if image_size < least:
            raise ValueError(
                f"image_size: {image_size} is too small for {backbone.weights.model} at stages "
                f"{list(backbone.stages)}; use at least {least}"
            )
        self.backbone = backbone
        self.image_size = image_size
        self.device = backbone.mean.device
        self.cache = cache
        self._made_by = {
            "kind": "features",
            "model": backbone.weights.model,
            "weights": backbone.weights.sha256,
            "stages": list(backbone.stages),
            "size": image_size,
            "device": device_name(self.device),
            "code": source_digest("backbones", "features", "data.images"),
        }
        # Pixels (size, size, 3) uint8 of samples that are to be read from here, not from their files.
        self.copies: dict[Sample, Tensor] = {}
        # Pixels and masks are a few per cent of features; training asks for pixels every epoch, a stream for
        # masks in every cell of R.
        self._recent = _Recent(int(memory_gib * 2**30))
        self._recent_pixels = _Recent(int(memory_gib * 2**30 / 8))

    def info(self) -> dict:
        """Backbone weights (model, source, sha256), image size, device and settings, for run.json."""
        weights = asdict(self.backbone.weights) | {"stages": list(self.backbone.stages)}
        return {
            "weights": weights,
            "image_size": self.image_size,
            "device": str(self.device),
            "forward": self.backbone.settings(),
        }

    def key(self, samples: Sequence[Sample]) -> str:
        """Content key of the features of samples, in their order; "" without a cache."""
        if not self.cache:
            return ""
        return content_key(images=[self._digest(sample) for sample in samples], **self._made_by)

    def images(self, samples: Sequence[Sample], batch_size: int = 32) -> Images:
        """The samples as batches for a detector."""
        return Images(samples, self, batch_size)

    def folder(self, folder: str, batch_size: int = 32) -> Images:
        """All images in a folder and the folders below it. Raises DataError when there are none."""
        root = existing_root(folder, "images", "image files, also in folders of their own")
        problems: list[str] = []
        waiting, samples = [root], []
        while waiting:
            here = waiting.pop(0)
            samples += [Sample(path) for path in image_files(here, root, problems)]
            waiting += subfolders(here, root, problems)
        if not samples:
            problems.append(f"{folder}: holds no images; name a folder of images")
        if problems:
            raise DataError(list(dict.fromkeys(problems)))
        return self.images(samples, batch_size)

    def pixels(self, samples: Sequence[Sample]) -> Tensor:
        """(B, 3, size, size) float32 in [0, 1], on the backbone's device."""
        return self._floats([self.decoded(sample) for sample in samples])

    def masks(self, samples: Sequence[Sample], threshold: int) -> np.ndarray:
        """Masks (B, size, size) bool of the samples; all False where there is none."""
        found = []
        for sample in samples:
            key = (file_digest(sample.mask) if sample.mask else "", threshold)
            held = self._recent_pixels.get(key) or (
                torch.from_numpy(read_mask(sample.mask, self.image_size, threshold)),
            )
            self._recent_pixels.keep(key, held)
            found.append(held[0].numpy())
        return np.stack(found)

    def middle(self, samples: Sequence[Sample]) -> Tensor:
        """The middle of each image at twice the resolution, shaped like its `pixels`; never cached."""
        edge = self.image_size // 2
        large = [read_image(sample.image, 2 * self.image_size) for sample in samples]
        cut = slice(edge, edge + self.image_size)
        return self._floats([torch.from_numpy(pixels[cut, cut]) for pixels in large])

    def _floats(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(images)).to(self.device).permute(0, 3, 1, 2).float() / 255

    def features(self, samples: Sequence[Sample], stages: Sequence[int]) -> list[Tensor]:
        """Feature maps (B, C_s, H_s, W_s) float32 of the stages asked for."""
        absent = [sample for sample in dict.fromkeys(samples) if sample not in self._recent]
        fresh = self._from_disk(absent)
        absent = [sample for sample in absent if sample not in fresh]
        if absent:
            maps = self.backbone(self.pixels(absent))
            for i, sample in enumerate(absent):
                fresh[sample] = tuple(m[i].clone() for m in maps)
                if self.cache:
                    self.cache.put(self._key(sample), dict(zip(self._names, fresh[sample])))
        # All are taken before any is kept: keeping a new one may push out another that is asked for.
        found = [fresh.get(sample) or self._recent[sample] for sample in samples]
        for sample, held in zip(samples, found):
            self._recent.keep(sample, held)
        places = [self.backbone.stages.index(stage) for stage in stages]
        return [torch.stack([held[place] for held in found]) for place in places]

    @property
    def _names(self) -> list[str]:
        return [f"stage{stage}" for stage in self.backbone.stages]

    def _key(self, sample: Sample) -> str:
        return content_key(image=self._digest(sample), **self._made_by)

    def _digest(self, sample: Sample) -> str:
        if sample in self.copies and not sample.image.is_file():
            return hashlib.sha256(self.copies[sample].numpy().tobytes()).hexdigest()
        return file_digest(sample.image)

    def _from_disk(self, samples: Sequence[Sample]) -> dict[Sample, tuple[Tensor, ...]]:
        found = {}
        for sample in samples if self.cache else []:
            if entry := self.cache.get(self._key(sample)):
                found[sample] = tuple(entry[name].to(self.device) for name in self._names)
        return found

    def decoded(self, sample: Sample) -> Tensor:
        """(size, size, 3) uint8, resized: decoding a large file costs more than all that follows."""
        if sample in self.copies:
            return self.copies[sample]
        held = self._recent_pixels.get(sample) or (self._decode(sample),)
        self._recent_pixels.keep(sample, held)
        return held[0]

    def _decode(self, sample: Sample) -> Tensor:
        if not self.cache:
            return torch.from_numpy(read_image(sample.image, self.image_size))
        code = source_digest("data.images")
        key = content_key(kind="pixels", image=file_digest(sample.image), size=self.image_size, code=code)
        if entry := self.cache.get(key):
            return entry["pixels"]
        pixels = torch.from_numpy(read_image(sample.image, self.image_size))
        self.cache.put(key, {"pixels": pixels})
        return pixels


def local_means(maps: Tensor) -> Tensor:
    """Feature maps (B, C, H, W) averaged over 3 x 3 neighbours, zeros around; same shape.

    Channels last, the order that embeddings need: nothing made of them is copied on the way, which is several
    times faster on a CPU.
    """
    return functional.avg_pool2d(maps.contiguous(memory_format=torch.channels_last), 3, 1, 1)


class _Recent(OrderedDict[Hashable, tuple[Tensor, ...]]):
    """Tensors of what was used last, up to `limit` bytes, and at least of one."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit, self.held = limit, 0

    def keep(self, key: Hashable, tensors: tuple[Tensor, ...]) -> None:
        """Take something in, or only say that it was used; the least recently used go."""
        if key in self:
            self.move_to_end(key)
            return
        self[key] = tensors
        self.held += _bytes(tensors)
        while self.held > self.limit and len(self) > 1:
            _, dropped = self.popitem(last=False)
            self.held -= _bytes(dropped)


def _bytes(maps: tuple[Tensor, ...]) -> int:
    return sum(m.numel() * m.element_size() for m in maps)
