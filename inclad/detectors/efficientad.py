"""EfficientAD: a student fails to imitate a small teacher, or an autoencoder, where an image is anomalous.

Batzner, Heckler and Koenig, EfficientAD: accurate visual anomaly detection at millisecond-level latencies, WACV
2024. Section 3.1 for the teacher, 3.2 for the hard-feature loss, 3.3 for the autoencoder, 3.4 for the maps;
appendix A and algorithms 1 to 3.

Differences from the paper. Its teacher was distilled from a WideResNet-101 on ImageNet at twice the resolution.
Here the teacher is distilled from the chosen frozen backbone at the resolution at hand, on the images of a folder
or, where none is named, on the normal images of the first task; or it is read from a file. A teacher that has
seen one task only describes what it has not seen less well than one that knows ImageNet. It is never random. The
penalty on images from elsewhere needs such images and is left out without a folder of them. Training counts
epochs, not steps. The autoencoder's bottleneck fits the image size, see `Autoencoder`.

In a stream the teacher is that of the first task and stays as it is; student and autoencoder go on training. The
mean and standard deviation of the teacher's channels are taken anew before every task, from its training images
and those of the replay buffer: on a first task of one plain texture the channels hardly vary, and its small
deviations would blow up the targets of every part that follows. The price is that the targets move a little
from task to task. The quantiles that give both maps one scale are taken anew after every task, from held-out
images of that task and of the buffer, because the maps of changed networks have another scale.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.functional import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    rgb_to_grayscale,
)

from inclad.backbones import load_tensors
from inclad.cache import content_key, source_digest
from inclad.detectors.detector import Detector, at_least_one, image_scores
from inclad.detectors.patchcore import embed
from inclad.detectors.pdn import (
    BORDER,
    LEAST_SIZE,
    MODEL_SIZES,
    Autoencoder,
    freeze,
    memory_format,
    normalised,
    pdn,
    pdn_side,
    resized,
)
from inclad.detectors.training import pack, seeded, train, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images
from inclad.maps import to_image_size

LEAST_DEVIATION = 1e-3  # of a channel: constant images have none to divide by
LEAST_SPREAD = 1e-9  # between the two quantiles of a map, for the same reason


class EfficientAD(Detector):
    """Teacher, student and autoencoder, with the statistics that make their maps comparable.

    `model_size` is "small" or "medium", `width` the channels of the small network's first convolution.
    `teacher_images` is a folder to distil the teacher on in `teacher_steps` updates, `teacher_file` a file to
    read it from instead, `penalty_images` a folder of images that are not to be imitated. `validation_share` of
    the images are held out of training for the quantiles `low_quantile` and `high_quantile` of the maps; with
    less than two images these come from the training images. `hard_quantile` of the differences to the
    teacher are left out of the loss.
    """

    stages = (2, 3)
    least_size = LEAST_SIZE

    def __init__(
        self,
        *,
        epochs: int = 50,
        batch_size: int = 1,
        learning_rate: float = 1e-4,
        weight_decay: float = 1e-5,
        model_size: str = "small",
        teacher_out_channels: int = 384,
        width: int = 128,
        teacher_images: str = "",
        teacher_file: str = "",
        teacher_steps: int = 60_000,
        teacher_batch_size: int = 16,
        penalty_images: str = "",
        hard_quantile: float = 0.999,
        low_quantile: float = 0.9,
        high_quantile: float = 0.995,
        validation_share: float = 0.1,
        mixed_precision: bool = False,
        seed: int = 0,
    ):
        at_least_one(
            "efficientad",
            batch_size=batch_size,
            teacher_out_channels=teacher_out_channels,
            width=width,
            teacher_steps=teacher_steps,
            teacher_batch_size=teacher_batch_size,
        )
        if model_size not in MODEL_SIZES:
            raise ValueError(
                f"efficientad: model_size: {model_size!r} is unknown (known: {', '.join(MODEL_SIZES)})"
            )
        if not 0 <= low_quantile < high_quantile <= 1:
            raise ValueError(
                f"efficientad: low_quantile, high_quantile: {low_quantile}, {high_quantile}: must rise within [0, 1]"
            )
        if not 0 <= hard_quantile < 1:
            raise ValueError(f"efficientad: hard_quantile: {hard_quantile} must be at least 0 and below 1")
        if not 0 <= validation_share < 1:
            raise ValueError(
                f"efficientad: validation_share: {validation_share} must be at least 0 and below 1"
            )
        if teacher_images and teacher_file:
            raise ValueError("efficientad: teacher_images, teacher_file: name one of the two")
        for key, folder in (("teacher_images", teacher_images), ("penalty_images", penalty_images)):
            if folder and not Path(folder).is_dir():
                raise ValueError(f"efficientad: {key}: {folder} is no folder; name a folder of images")
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.model_size = model_size
        self.teacher_out_channels = teacher_out_channels
        self.width = width
        self.teacher_images = teacher_images
        self.teacher_file = teacher_file
        self.teacher_steps = teacher_steps
        self.teacher_batch_size = teacher_batch_size
        self.penalty_images = penalty_images
        self.hard_quantile = hard_quantile
        self.low_quantile = low_quantile
        self.high_quantile = high_quantile
        self.validation_share = validation_share
        self.mixed_precision = mixed_precision
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.networks: nn.ModuleDict | None = None
        self.mean = self.std = torch.empty(0)
        self.quantiles = torch.empty(0)
        if teacher_file:
            self.read_teacher(self.pdn(teacher_out_channels))

    def fit(self, images: Images) -> None:
        """At the first call make teacher, student and autoencoder; then take the teacher's statistics, train the
        other two and take the quantiles of the maps."""
        trained_on, held_out = self.split(images)
        if self.networks is None:
            teacher = self.make_teacher(images)
            with seeded(self.generator):
                self.networks = self.build(images.extractor)
            self.networks["teacher"] = teacher
        self.mean, self.std = channel_statistics(
            self.networks["teacher"](self.inputs(batch.pixels())) for batch in trained_on
        )
        self.train(trained_on)
        with torch.no_grad():
            pairs = [self.maps(self.inputs(batch.pixels())) for batch in held_out or trained_on]
        self.quantiles = torch.stack(
            [
                quantile(torch.cat(maps), q)
                for maps in zip(*pairs)
                for q in (self.low_quantile, self.high_quantile)
            ]
        )

    def train(self, images: Images) -> None:
        """Train student and autoencoder (algorithm 1); the learning rate falls to a tenth at 95 % of the steps."""
        student, autoencoder = self.networks["student"], self.networks["autoencoder"]
        optimizer = torch.optim.Adam(
            [*student.parameters(), *autoencoder.parameters()],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        steps = self.epochs * -(-len(images) // self.batch_size)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(int(0.95 * steps), 1), gamma=0.1)
        out = self.teacher_out_channels
        elsewhere = self.elsewhere(images.extractor) if self.penalty_images else None

        def step(batch: Batch) -> Tensor:
            pixels = batch.pixels()
            jittered = self.inputs(jitter(pixels, self.generator))
            both = torch.cat([self.inputs(pixels), jittered])
            target, jittered_target = self.describe(both).chunk(2)
            imitation, copy = student(both).chunk(2)
            rebuilt = autoencoder(jittered)
            loss = (
                hard_feature_loss(target, imitation[:, :out], self.hard_quantile)
                + functional.mse_loss(rebuilt, jittered_target)
                + functional.mse_loss(copy[:, out:], rebuilt)
            )
            if elsewhere:
                loss = loss + student(next(elsewhere))[:, :out].square().mean()
            value = update(loss, optimizer)
            schedule.step()
            return value

        autoencoder.train()  # its dropout is all that differs
        train_detector("efficientad", self, images, step)
        autoencoder.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Maps: half the student's map and half the autoencoder's, each scaled by its quantiles; the border
        that the PDN does not describe counts as zero, the low quantile. Scores: their maxima."""
        low_st, high_st, low_ae, high_ae = self.quantiles
        student, autoencoder = self.maps(self.inputs(batch.pixels()))
        combined = 0.5 * scaled(student, low_st, high_st) + 0.5 * scaled(autoencoder, low_ae, high_ae)
        maps = to_image_size(functional.pad(combined, (BORDER,) * 4), batch.size, sigma=0)
        return maps, image_scores(maps)

    def maps(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared difference (B, side, side) of student and teacher, and of student and autoencoder."""
        imitation, copy = self.networks["student"](inputs).chunk(2, 1)
        rebuilt = self.networks["autoencoder"](inputs)
        return (self.describe(inputs) - imitation).square().mean(1), (rebuilt - copy).square().mean(1)

    @torch.no_grad()
    def describe(self, inputs: Tensor) -> Tensor:
        """The teacher's maps (B, C, side, side), each channel with mean 0 and deviation 1 on the last task's
        training images."""
        return (self.networks["teacher"](inputs) - self.mean) / self.std

    def inputs(self, pixels: Tensor) -> Tensor:
        return normalised(pixels).contiguous(memory_format=memory_format(pixels.device))

    def split(self, images: Images) -> tuple[Images, Images]:
        """The images to train on, and those held out; none are of a single image."""
        count = len(images)
        held = min(max(round(self.validation_share * count), 1), count - 1) if self.validation_share else 0
        order = torch.randperm(count, generator=self.generator).tolist()
        chosen = [images.samples[i] for i in order]
        return images.of(chosen[held:]), images.of(chosen[:held])

    def make_teacher(self, images: Images) -> nn.Sequential:
        """The frozen teacher: read from `teacher_file`, taken from the cache, or distilled.

        Raises ValueError when there is nothing to make it from.
        """
        extractor = images.extractor
        if self.teacher_images:
            images = extractor.folder(self.teacher_images, self.teacher_batch_size)
        if not len(images) and not self.teacher_file:
            raise ValueError(
                "efficientad: no images to distil the teacher on; name teacher_images or teacher_file"
            )
        # A generator of its own: a teacher from the cache must leave the other the same.
        generator = torch.Generator().manual_seed(self.seed)
        with seeded(generator):
            teacher = self.pdn(self.teacher_out_channels).to(extractor.device)
        if self.teacher_file:
            self.read_teacher(teacher)
            return freeze(teacher)
        key = self.teacher_key(images)
        if key and (found := extractor.cache.get(key)):
            teacher.load_state_dict(found)
            return freeze(teacher)
        self.distil(teacher, images, generator)
        if key:
            extractor.cache.put(key, teacher.state_dict())
        return freeze(teacher)

    def distil(self, teacher: nn.Sequential, images: Images, generator: torch.Generator) -> list[float]:
        """Train the teacher to give the backbone's features (section 3.1); its mean loss in every epoch.

        `teacher_steps` is rounded to whole passes over the images. Each channel of the target has mean 0 and
        deviation 1, so a loss of 1 is that of a teacher that gives the mean.
        """
        freeze(teacher).requires_grad_(True)
        mean, std = channel_statistics(self.target(batch) for batch in images)
        optimizer = torch.optim.Adam(
            teacher.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )

        def step(batch: Batch) -> Tensor:
            target = (self.target(batch) - mean) / std
            return update(functional.mse_loss(teacher(self.inputs(batch.pixels())), target), optimizer)

        passes = round(self.teacher_steps * self.teacher_batch_size / len(images))
        return train(
            "efficientad teacher",
            images,
            step,
            epochs=max(passes, 1),
            batch_size=self.teacher_batch_size,
            generator=generator,
            mixed_precision=self.mixed_precision,
        )

    def target(self, batch: Batch) -> Tensor:
        """What the teacher imitates, (B, C, side, side): PatchCore's features of stages 2 and 3, pooled (or
        repeated) to C channels, at the teacher's positions."""
        embeddings = functional.adaptive_avg_pool1d(embed(batch), self.teacher_out_channels)
        side = round(embeddings.shape[1] ** 0.5)
        maps = embeddings.transpose(1, 2).unflatten(2, (side, side))
        maps = resized(maps, pdn_side(batch.size) + 2 * BORDER)
        return maps[:, :, BORDER:-BORDER, BORDER:-BORDER]

    def teacher_key(self, images: Images) -> str:
        """Content key of a teacher: images, backbone, options, code; "" without a cache."""
        if not images.extractor.cache:
            return ""
        return content_key(
            kind="teacher",
            images=images.extractor.key(images.samples),
            network=[self.model_size, self.width, self.teacher_out_channels],
            training=[self.teacher_steps, self.teacher_batch_size, self.learning_rate, self.weight_decay],
            mixed_precision=self.mixed_precision,
            seed=self.seed,
            code=source_digest(
                *(f"detectors.{name}" for name in ("efficientad", "pdn", "patchcore", "training"))
            ),
        )

    def read_teacher(self, teacher: nn.Sequential) -> None:
        """Fill a teacher from `teacher_file`; ValueError names the file when it does not fit."""
        try:
            teacher.load_state_dict(load_tensors(Path(self.teacher_file)))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"efficientad: teacher_file: {self.teacher_file}: no teacher of model_size {self.model_size!r}, "
                f"width {self.width}, {self.teacher_out_channels} channels ({' '.join(str(error).split())[:120]})"
            ) from error

    def elsewhere(self, extractor: Extractor) -> Iterator[Tensor]:
        """Batches of penalty images for ever: enlarged, three in ten of them grey."""
        images = extractor.folder(self.penalty_images, self.batch_size)
        while True:
            for batch in images.shuffled(self.generator):
                pixels = extractor.middle(batch.samples)
                grey = torch.rand(len(pixels), 1, 1, 1, generator=self.generator) < 0.3
                yield self.inputs(torch.where(grey.to(pixels.device), rgb_to_grayscale(pixels, 3), pixels))

    def pdn(self, out: int) -> nn.Sequential:
        return pdn(self.model_size, self.width, out)

    def build(self, extractor: Extractor) -> nn.ModuleDict:
        """All three networks with fresh weights."""
        networks = nn.ModuleDict(
            {
                "teacher": self.pdn(self.teacher_out_channels),
                "student": self.pdn(2 * self.teacher_out_channels),
                "autoencoder": Autoencoder(extractor.image_size, self.width, self.teacher_out_channels),
            }
        )
        freeze(networks["teacher"])
        return networks.to(extractor.device, memory_format=memory_format(extractor.device))

    def state(self) -> dict[str, Tensor]:
        statistics = {"mean": self.mean, "std": self.std, "quantiles": self.quantiles}
        return pack(**self.networks) | statistics

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        networks = self.build(extractor)
        unpack(state, **networks)
        self.mean, self.std, self.quantiles = state["mean"], state["std"], state["quantiles"]
        self.networks = networks.eval()


def hard_feature_loss(target: Tensor, imitation: Tensor, q: float) -> Tensor:
    """Mean of the squared differences that reach their `q` quantile, a scalar (section 3.2).

    Over all channels, positions and images of the batch (B, C, side, side); one image a batch in the paper.
    """
    differences = (target - imitation).square()
    return differences[differences >= quantile(differences.detach(), q)].mean()


def quantile(values: Tensor, q: float) -> Tensor:
    """The `q` quantile of all values, a scalar: linear between its two neighbours, as numpy has it.

    With n values in order it lies at place q (n - 1), counted from 0. torch.quantile refuses more than 2^24
    values, which a batch of larger images has.
    """
    flat = values.flatten()
    place = q * (len(flat) - 1)
    below = int(place)
    low = flat.kthvalue(below + 1).values
    if place == below:
        return low
    return torch.lerp(low, flat.kthvalue(below + 2).values, place - below)


def scaled(maps: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Maps of which `low` becomes 0 and `high` 0.1 (section 3.4)."""
    return 0.1 * (maps - low) / (high - low).clamp(min=LEAST_SPREAD)


def jitter(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Pixels (B, 3, H, W) in [0, 1]; of each image brightness, contrast or saturation is changed by up to a
    fifth (section 3.3)."""
    kinds = torch.randint(3, (len(pixels),), generator=generator).tolist()
    factors = (0.8 + 0.4 * torch.rand(len(pixels), generator=generator)).tolist()
    change = (adjust_brightness, adjust_contrast, adjust_saturation)
    return torch.stack([change[kind](each, factor) for each, kind, factor in zip(pixels, kinds, factors)])


@torch.no_grad()
def channel_statistics(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C, 1, 1) of each channel of maps (B, C, H, W), the latter at least 1e-3."""
    count, total, squares = 0, 0.0, 0.0
    for maps in batches:
        maps = maps.double()
        count += maps[:, 0].numel()
        total = total + maps.sum((0, 2, 3))
        squares = squares + maps.square().sum((0, 2, 3))
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=LEAST_DEVIATION)
    return mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)
