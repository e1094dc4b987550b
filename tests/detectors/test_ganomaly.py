from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import interpolate

from inclad.detectors.ganomaly import (
    COLLAPSED,
    GANomaly,
    decoder,
    discriminator_loss,
    encoder,
    features,
    losses,
    network_size,
)

SMALL = {"width": 4, "latent_size": 8, "batch_size": 3}
PAPER = Path(__file__).parents[2] / "params/paper/ganomaly.yml"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_generators_losses_equal_numpys():
    real, fake = draw(3, 3, 8, 8).tanh(), draw(3, 3, 8, 8, seed=1).tanh()
    latent, relatent = draw(3, 5, 1, 1, seed=2), draw(3, 5, 1, 1, seed=3)
    of_real, of_fake = draw(3, 16, 4, 4, seed=4), draw(3, 16, 4, 4, seed=5)
    adversarial, content, code = losses(real, fake, latent, relatent, of_real, of_fake)
    assert adversarial.item() == pytest.approx(np.mean((of_real - of_fake).numpy() ** 2), rel=1e-5)
    assert content.item() == pytest.approx(np.mean(np.abs((real - fake).numpy())), rel=1e-5)
    assert code.item() == pytest.approx(np.mean((latent - relatent).numpy() ** 2), rel=1e-5)


def test_the_discriminators_loss_is_the_cross_entropy_of_both():
    real, fake = draw(6, 1, 1, 1), draw(6, 1, 1, 1, seed=1)
    of_real, of_fake = (1 / (1 + np.exp(-x.numpy().astype(float))) for x in (real, fake))
    expected = (-np.log(of_real).mean() - np.log(1 - of_fake).mean()) / 2
    assert discriminator_loss(real, fake).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("size", "side"), [(32, 32), (33, 64), (64, 64), (224, 256), (256, 256)])
def test_networks_work_at_the_next_power_of_two(size, side):
    assert network_size(size) == side
    latent = encoder(side, 2, 5)(draw(2, 3, side, side))
    assert latent.shape == (2, 5, 1, 1)
    image = decoder(side, 2, 5)(latent)
    assert image.shape == (2, 3, side, side)
    assert image.abs().max() <= 1


def test_channels_double_as_the_side_is_halved():
    shapes = [tuple(p.shape) for p in encoder(256, 64, 100).parameters() if p.ndim == 4]
    assert shapes == [
        (64, 3, 4, 4),
        (128, 64, 4, 4),
        (256, 128, 4, 4),
        (512, 256, 4, 4),
        (1024, 512, 4, 4),
        (2048, 1024, 4, 4),
        (100, 2048, 4, 4),
    ]


def test_one_step_with_the_papers_values_is_two_plain_adams(make_extractor, tasks):
    images = make_extractor(size=64).images(tasks[0].train[:2])
    options = yaml.safe_load(PAPER.read_text())["options"]["ganomaly"]
    assert GANomaly(**options).options() == GANomaly().options()
    options |= {"epochs": 1}
    detector, other = GANomaly(**options), GANomaly(**options)
    detector.networks = detector.build(images.extractor)
    other.load({key: value.clone() for key, value in detector.state().items()}, images.extractor)
    detector.fit(images)

    first, second, third, judge = other.networks.train().values()
    made = torch.optim.Adam(
        [p for network in (first, second, third) for p in network.parameters()], lr=2e-4, betas=(0.5, 0.999)
    )
    judging = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    (batch,) = images.shuffled(GANomaly().generator)  # order of a batch counts for nothing but last digits
    real = batch.pixels() * 2 - 1
    code = first(real)
    fake = second(code)
    loss = (judge[:-1](real).detach() - judge[:-1](fake)).square().mean()
    loss = loss + 50 * (real - fake).abs().mean() + (code - third(fake)).square().mean()
    loss.backward()
    made.step()
    judge.zero_grad()
    probability_real, probability_fake = judge(real).sigmoid(), judge(fake.detach()).sigmoid()
    (-(probability_real.log().mean() + (1 - probability_fake).log().mean()) / 2).backward()
    judging.step()
    for name, value in other.networks.named_parameters():
        # The first step of Adam is the sign of the gradient; where that is next to nothing it may turn.
        near = torch.isclose(detector.networks.get_parameter(name), value, atol=1e-5)
        assert near.float().mean() > 0.9, name


def test_scores_are_latent_errors_and_maps_pixel_errors(extractor, tasks):
    detector = GANomaly(epochs=1, **SMALL)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = detector.score(batch)
    first, second, third, _ = detector.networks.values()
    with torch.no_grad():
        real = batch.pixels() * 2 - 1
        code = first(real)
        fake = second(code)
        again = third(fake)
    assert torch.allclose(maps, (real - fake).square().sum(1) / 3, atol=1e-6)
    assert torch.allclose(scores, (code - again).square().sum((1, 2, 3)) / 8, atol=1e-6)


def test_maps_of_other_sizes_have_the_size_of_the_image(make_extractor, tasks):
    extractor = make_extractor(size=80)
    detector = GANomaly(epochs=1, **SMALL)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, _ = detector.score(batch)
    assert maps.shape == (8, 80, 80)
    expected = interpolate(batch.pixels(), size=(128, 128), mode="bilinear", align_corners=False) * 2 - 1
    assert torch.equal(detector.inputs(batch), expected)


def test_training_lowers_the_reconstruction_error(extractor, tasks):
    (batch,) = extractor.images(tasks[0].train)
    errors = []
    for epochs in (0, 15):
        detector = GANomaly(epochs=epochs, learning_rate=2e-3, **SMALL)
        detector.fit(extractor.images(tasks[0].train))
        errors.append(detector.score(batch)[0].mean())
    assert errors[1] < 0.8 * errors[0]


def test_a_discriminator_that_has_won_begins_anew(extractor, tasks, monkeypatch):
    detectors = []
    for threshold in (COLLAPSED, 1e9):
        monkeypatch.setattr("inclad.detectors.ganomaly.COLLAPSED", threshold)
        detector = GANomaly(epochs=1, learning_rate=1e-12, **(SMALL | {"batch_size": 6}))
        detector.fit(extractor.images(tasks[0].train))
        detectors.append(detector.networks["discriminator"][0].weight.detach())
    kept, drawn = detectors
    assert not torch.allclose(kept, drawn, atol=1e-3)
    assert drawn.std() == pytest.approx(0.02, rel=0.3)


def test_a_second_task_goes_on_from_the_weights_of_the_first(extractor, tasks):
    detector = GANomaly(epochs=1, learning_rate=1e-12, **SMALL)
    detector.fit(extractor.images(tasks[0].train))
    before = detector.networks["encoder"][0].weight.clone()
    detector.fit(extractor.images(tasks[1].train))
    assert torch.allclose(detector.networks["encoder"][0].weight, before, atol=1e-8)


def test_features_are_what_the_last_layer_sees():
    network = encoder(32, 2, 1)
    pixels = draw(2, 3, 32, 32)
    assert torch.equal(network[-1](features(network, pixels)), network(pixels))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"width": 0}, {"latent_size": 0}, {"beta1": 1.0}])
def test_options_that_make_no_network_are_refused(options):
    with pytest.raises(ValueError, match=f"^ganomaly: {next(iter(options))}: "):
        GANomaly(**options)


def test_bfloat16_learns_finite_maps(extractor, tasks):
    detector = GANomaly(epochs=1, **SMALL, mixed_precision=True)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = detector.score(batch)
    assert maps.dtype == scores.dtype == torch.float32
    assert maps.isfinite().all()
    assert scores.isfinite().all()
