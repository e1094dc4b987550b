from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import interpolate

from inclad.detectors.paste import PaSTe
from inclad.detectors.stfpm import STFPM
from inclad.features import Extractor

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "params" / "paper" / "paste.yml"

each_layer = pytest.mark.parametrize("layer", [0, 1, 2])


@pytest.fixture(scope="module")
def resnet18(random_backbone) -> Extractor:
    return Extractor(random_backbone("resnet18"), 64)


def size(detector) -> int:
    return sum(p.numel() for p in detector.student.parameters())


@each_layer
def test_the_shared_part_gives_what_the_teacher_gives(resnet18, real_extractor, tasks, layer):
    for extractor in (resnet18, real_extractor):
        (batch,) = extractor.images(tasks[0].test)
        detector = PaSTe(bootstrap_layer=layer)
        detector.start(extractor)
        network = extractor.backbone.network
        maps = extractor.backbone.normalise(batch.pixels())
        if layer == 0 and extractor is resnet18:
            expected = network.maxpool(network.act1(network.bn1(network.conv1(maps))))
        elif layer == 0:
            expected = network.blocks[0](network.bn1(network.conv_stem(maps)))
        else:
            expected = batch.features((1, 2, 3))[layer - 1]
        assert torch.allclose(detector.shared(batch), expected, atol=1e-5)


@each_layer
def test_with_the_teachers_weights_the_student_is_the_teacher(real_extractor, tasks, layer):
    detector = PaSTe(bootstrap_layer=layer)
    detector.start(real_extractor)
    values = list(real_extractor.backbone.network.state_dict().values())
    own = detector.student.state_dict()
    detector.student.load_state_dict(dict(zip(own, values[-len(own) :])))
    (batch,) = real_extractor.images(tasks[0].test)
    scores = detector.score(batch)[1]
    assert len(detector.imitate(batch)) == 3 - layer
    assert scores.max() <= 1e-7 ** (3 - layer) * 100


@each_layer
def test_training_leaves_the_shared_part_as_it_is(random_backbone, tasks, layer):
    extractor = Extractor(random_backbone("resnet18"), 64)
    (batch,) = extractor.images(tasks[0].train)
    detector = PaSTe(bootstrap_layer=layer, epochs=2, batch_size=3)
    detector.start(extractor)
    weights = {key: value.clone() for key, value in extractor.backbone.state_dict().items()}
    student = [p.detach().clone() for p in detector.student.parameters()]
    shared = detector.shared(batch).clone()
    for task in tasks[:2]:
        detector.fit(extractor.images(task.train))
    assert all(torch.equal(weights[key], value) for key, value in extractor.backbone.state_dict().items())
    assert torch.equal(detector.shared(batch), shared)
    assert all(not torch.equal(a, b) for a, b in zip(student, detector.student.parameters()))
    trained = {id(p) for p in detector.student.parameters()}
    assert not trained & {id(p) for p in extractor.backbone.parameters()}


def test_the_more_is_shared_the_smaller_the_student(resnet18, real_extractor):
    for extractor in (resnet18, real_extractor):
        detectors = [STFPM(), *(PaSTe(bootstrap_layer=layer) for layer in (0, 1, 2))]
        for detector in detectors:
            detector.start(extractor)
        sizes = [size(detector) for detector in detectors]
        kept = [detector.kept_bytes() for detector in detectors]
        assert sizes == sorted(set(sizes), reverse=True)
        assert kept == sorted(set(kept), reverse=True)


@each_layer
def test_maps_are_the_product_of_plain_distances(resnet18, tasks, layer):
    detector = PaSTe(bootstrap_layer=layer, epochs=1, batch_size=3)
    detector.fit(resnet18.images(tasks[0].train))
    (batch,) = resnet18.images(tasks[0].test)
    values, student = detector.shared(batch), []
    for piece in detector.student:
        values = piece(values)
        student.append(values.detach())
    expected = 1
    for t, s in zip(batch.features((1, 2, 3)[layer:]), student, strict=True):
        cosine = (t.double() * s.double()).sum(1) / t.double().norm(dim=1) / s.double().norm(dim=1)
        expected = expected * interpolate(2 - 2 * cosine[:, None], size=(64, 64), mode="bilinear")[:, 0]
    maps, scores = detector.score(batch)
    assert (maps.double() - expected).abs().max() <= 1e-4 * expected.max()
    assert torch.equal(scores, maps.amax((1, 2)))


def test_a_step_lowers_the_plain_loss_by_its_gradient(resnet18, tasks):
    """One step of plain gradient descent with momentum and weight decay from the same start."""
    options = {"batch_size": 6, "seed": 3, "learning_rate": 0.1, "weight_decay": 0.01}
    detector, start = PaSTe(epochs=1, **options), PaSTe(epochs=0, **options)
    images = resnet18.images(tasks[0].train)
    detector.fit(images)
    start.fit(images)
    (batch,) = images
    student = start.student.train()
    values, value = start.shared(batch), 0
    for piece, t in zip(student, batch.features((1, 2, 3))):
        values = piece(values)
        cosine = (t * values).sum(1) / t.norm(dim=1) / values.norm(dim=1)
        value = value + (2 - 2 * cosine).mean()
    weights = list(student.parameters())
    for w, g, ours in zip(weights, torch.autograd.grad(value, weights), detector.student.parameters()):
        expected = w - 0.1 * (g + 0.01 * w)
        assert torch.allclose(ours, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet50_2", "tf_efficientnet_lite0"])
def test_a_step_with_the_papers_values_on_its_networks(name, random_backbone, tasks):
    extractor = Extractor(random_backbone(name), 64)
    detector = PaSTe(**yaml.safe_load(PAPER.read_text())["options"]["paste"] | {"epochs": 1})
    assert (detector.bootstrap_layer, detector.learning_rate, detector.weight_decay) == (0, 0.4, 1e-4)
    detector.fit(extractor.images(tasks[0].train[:2]))
    (batch,) = extractor.images(tasks[0].test[:2])
    maps, _ = detector.score(batch)
    assert maps.shape == (2, 64, 64)
    assert maps.isfinite().all()


def test_the_papers_values_are_the_defaults():
    assert PaSTe(**yaml.safe_load(PAPER.read_text())["options"]["paste"]).options() == PaSTe().options()


def test_a_rate_that_diverges_stops_with_what_to_lower(extractor, tasks):
    detector = PaSTe(epochs=60, batch_size=2, learning_rate=1e18)
    with pytest.raises(FloatingPointError, match=r"paste: the loss is .* in epoch \d+.*lower it"):
        detector.fit(extractor.images(tasks[0].train))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [("batch_size", 0, "0 must be at least 1"), ("bootstrap_layer", 3, "3 must be 0, 1 or 2")],
)
def test_options_out_of_range_are_refused(option, value, says):
    with pytest.raises(ValueError, match=f"^paste: {option}: {says}"):
        PaSTe(**{option: value})
