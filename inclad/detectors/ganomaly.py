"""GANomaly: an image that the generator can't say again, in its own latent words, is anomalous.

Akcay et al., GANomaly: semi-supervised anomaly detection via adversarial training, ACCV 2018. The generator is
encoder, decoder, encoder: x -> z -> x_hat -> z_hat. It is trained on normal images only (equations 1 to 4) and
the score is how far z_hat is from z (equation 5). The adversarial loss is the paper's feature matching (equation
1), not the cross entropy that some releases of the code have. Differences from the released code: no epoch is
chosen on the test set and scores are not squeezed into [0, 1]; there is a map, the pixel error, though the
method was never meant to say where a defect is. The networks halve the image until it has 4 pixels a side, so
they work at powers of two: images of other sizes are resized to the next larger one, and the map back.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from inclad.detectors.detector import Detector, at_least_one
from inclad.detectors.training import pack, seeded, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images
from inclad.maps import to_image_size

COLLAPSED = 1e-5  # a discriminator of lower loss has nothing to teach any more and begins anew


class GANomaly(Detector):
    """Generator (E-D-E) and discriminator.

    `latent_size` is the length of z, `width` the channels of the first and last convolution. The generator's
    loss is `adversarial_weight` L_adv + `content_weight` L_con + `encoder_weight` L_enc; `beta1` is the first
    momentum of both Adams.
    """

    least_size = 32

    def __init__(
        self,
        *,
        epochs: int = 15,
        batch_size: int = 16,
        learning_rate: float = 2e-4,
        weight_decay: float = 0.0,
        beta1: float = 0.5,
        latent_size: int = 100,
        width: int = 64,
        adversarial_weight: float = 1.0,
        content_weight: float = 50.0,
        encoder_weight: float = 1.0,
        mixed_precision: bool = False,
        seed: int = 0,
    ):
        at_least_one("ganomaly", batch_size=batch_size, latent_size=latent_size, width=width)
        if not 0 <= beta1 < 1:
            raise ValueError(f"ganomaly: beta1: {beta1} must be at least 0 and below 1")
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.beta1 = beta1
        self.latent_size = latent_size
        self.width = width
        self.adversarial_weight = adversarial_weight
        self.content_weight = content_weight
        self.encoder_weight = encoder_weight
        self.mixed_precision = mixed_precision
        self.generator = torch.Generator().manual_seed(seed)
        self.networks: nn.ModuleDict | None = None

    def fit(self, images: Images) -> None:
        """Build the networks at the first call, then train them; both optimisers are new at every call."""
        if self.networks is None:
            with seeded(self.generator):
                self.networks = self.build(images.extractor)
        encoder, decoder, second, discriminator = self.networks.values()
        creating = self.adam([*encoder.parameters(), *decoder.parameters(), *second.parameters()])
        judging = self.adam([*discriminator.parameters()])

        def step(batch: Batch) -> Tensor:
            """The generator's update, then the discriminator's; both losses together, so that both are
            watched."""
            real = self.inputs(batch)
            latent = encoder(real)
            fake = decoder(latent)
            real_features = features(discriminator, real)
            discriminator.requires_grad_(False)  # the generator's update needs no gradients of it
            adversarial, content, code = losses(
                real, fake, latent, second(fake), real_features, features(discriminator, fake)
            )
            created = update(
                self.adversarial_weight * adversarial
                + self.content_weight * content
                + self.encoder_weight * code,
                creating,
            )
            discriminator.requires_grad_(True)
            verdicts = discriminator[-1](real_features), discriminator(fake.detach())
            judged = update(discriminator_loss(*verdicts), judging)
            if judged < COLLAPSED:
                discriminator.apply(draw)
            return created + judged

        self.networks.train()
        train_detector("ganomaly", self, images, step)
        self.networks.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Maps: squared error of the reconstruction, mean of the channels. Scores: mean squared distance of
        z_hat from z (equation 5); they are not the maxima of the maps."""
        encoder, decoder, second, _ = self.networks.values()
        real = self.inputs(batch)
        latent = encoder(real)
        fake = decoder(latent)
        maps = (real - fake).square().mean(1)
        if maps.shape[-1] != batch.size:
            maps = to_image_size(maps, batch.size, sigma=0)
        return maps, (latent - second(fake)).square().flatten(1).mean(1)

    def state(self) -> dict[str, Tensor]:
        return pack(**self.networks)

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        networks = self.build(extractor)
        unpack(state, **networks)
        self.networks = networks.eval()

    def build(self, extractor: Extractor) -> nn.ModuleDict:
        """All four networks with fresh weights."""
        side = network_size(extractor.image_size)
        networks = nn.ModuleDict(
            {
                "encoder": encoder(side, self.width, self.latent_size),
                "decoder": decoder(side, self.width, self.latent_size),
                "second_encoder": encoder(side, self.width, self.latent_size),
                # An encoder to one number, the logit of "real".
                "discriminator": encoder(side, self.width, 1),
            }
        )
        return networks.apply(draw).to(extractor.device)

    def adam(self, parameters: list[nn.Parameter]) -> torch.optim.Adam:
        return torch.optim.Adam(
            parameters, lr=self.learning_rate, betas=(self.beta1, 0.999), weight_decay=self.weight_decay
        )

    def inputs(self, batch: Batch) -> Tensor:
        """Pixels (B, 3, side, side) in [-1, 1], `side` the next power of two."""
        pixels, side = batch.pixels(), network_size(batch.size)
        if side != batch.size:
            pixels = functional.interpolate(pixels, size=(side, side), mode="bilinear", align_corners=False)
        return pixels * 2 - 1


def losses(
    real: Tensor, fake: Tensor, latent: Tensor, relatent: Tensor, real_features: Tensor, fake_features: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The generator's adversarial, content and encoder losses, scalars (equations 1 to 3).

    Squared distance of the discriminator's features of x (a fixed target) and x_hat, absolute distance of x
    and x_hat, squared distance of z and z_hat; each the mean of all values.
    """
    return (
        functional.mse_loss(fake_features, real_features.detach()),
        functional.l1_loss(fake, real),
        functional.mse_loss(relatent, latent),
    )


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Cross entropy of the logits of images and of reconstructions, the mean of both."""
    judge = functional.binary_cross_entropy_with_logits
    return (judge(real, torch.ones_like(real)) + judge(fake, torch.zeros_like(fake))) / 2


def features(discriminator: nn.Sequential, pixels: Tensor) -> Tensor:
    """What the discriminator's last layer sees, (B, C, 4, 4)."""
    return discriminator[:-1](pixels)


def network_size(image_size: int) -> int:
    """The smallest power of two that is at least `image_size`."""
    return 1 << (image_size - 1).bit_length()


def encoder(side: int, width: int, out: int) -> nn.Sequential:
    """Images (B, 3, side, side) -> (B, out, 1, 1): each convolution halves the side and doubles the channels."""
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    while side > 8:
        side //= 2
        layers += [
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
        ]
        width *= 2
    return nn.Sequential(*layers, nn.Conv2d(width, out, 4, bias=False))


def decoder(side: int, width: int, latent: int) -> nn.Sequential:
    """Latent vectors (B, latent, 1, 1) -> images (B, 3, side, side) in [-1, 1], the encoder backwards."""
    channels = width * side // 8
    layers = [nn.ConvTranspose2d(latent, channels, 4, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    while channels > width:
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(),
        ]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def draw(module: nn.Module) -> None:
    """First weights as the released code draws them: convolutions N(0, 0.02), scales N(1, 0.02), shifts 0."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1, 0.02)
        nn.init.zeros_(module.bias)
