from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import interpolate

from inclad.detectors.stfpm import STFPM, anomaly_maps, loss, pass_on, squared_distances
from inclad.features import Extractor

ROOT = Path(__file__).parents[2]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pyramids(dtype=torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Maps of two images at three stages, of a teacher and of a student."""
    shapes = [(2, 5, 8, 8), (2, 7, 4, 4), (2, 9, 2, 2)]
    return tuple([draw(*shape, seed=seed + i).to(dtype) for i, shape in enumerate(shapes)] for seed in (0, 9))


def plain_distance(t: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """(B, H, W) float64, one position after the other."""
    result = torch.empty(len(t), *t.shape[2:], dtype=torch.float64)
    for b, row, column in torch.cartesian_prod(*map(torch.arange, result.shape)):
        x, y = t[b, :, row, column].double(), s[b, :, row, column].double()
        result[b, row, column] = ((x / x.norm() - y / y.norm()) ** 2).sum()
    return result


def plain_maps(teacher, student, size: int) -> torch.Tensor:
    product = 1
    for t, s in zip(teacher, student):
        coarse = plain_distance(t, s)[:, None]
        product = product * interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    return product


def test_distances_equal_a_loop_over_positions():
    for t, s in zip(*pyramids()):
        assert (squared_distances(t, s).double() - plain_distance(t, s)).abs().max() <= 1e-6


def test_the_loss_is_the_mean_over_positions_summed_over_stages():
    teacher, student = pyramids()
    expected = sum(plain_distance(t, s).mean() for t, s in zip(teacher, student))
    assert loss(teacher, student).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_map_is_the_product_over_stages_at_image_size():
    teacher, student = pyramids()
    maps = anomaly_maps(teacher, student, 32)
    expected = plain_maps(teacher, student, 32)
    assert maps.shape == (2, 32, 32)
    assert (maps.double() / expected - 1).abs().max() <= 1e-4


def test_the_length_of_features_does_not_matter():
    teacher, student = pyramids()
    scaled = [7 * s for s in student]
    assert loss(teacher, scaled).item() == pytest.approx(loss(teacher, student).item(), rel=1e-5)
    assert torch.allclose(anomaly_maps(teacher, scaled, 16), anomaly_maps(teacher, student, 16), rtol=1e-4)


def test_a_student_that_is_right_scores_zero_and_one_opposite_scores_most():
    teacher, _ = pyramids()
    assert loss(teacher, teacher) == 0
    assert anomaly_maps(teacher, teacher, 16).max() == 0
    opposite = anomaly_maps(teacher, [-t for t in teacher], 16)
    assert torch.allclose(opposite, torch.tensor(64.0))


def test_features_of_zero_are_finite():
    teacher, student = pyramids()
    student = [torch.zeros_like(s, requires_grad=True) for s in student]
    value = loss(teacher, student)
    value.backward()
    assert value.item() == pytest.approx(3)
    assert anomaly_maps(teacher, student, 16).isfinite().all()


def test_training_equals_a_plain_loop(extractor, tasks):
    images = extractor.images(tasks[0].train)
    options = {"batch_size": 4, "learning_rate": 0.05, "weight_decay": 0.01}
    detector = STFPM(epochs=3, seed=5, **options)
    detector.fit(images)
    start = STFPM(epochs=0, seed=5, **options)
    start.fit(images)
    # The order of images: one number for the first weights, one for what `train` seeds, then the shuffles.
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        torch.randint(2**31, (), generator=generator)

    (batch,) = images
    teacher, pixels = batch.features((1, 2, 3)), batch.pixels() - 0.5
    student = start.student.train()
    weights = list(student.parameters())
    velocity = [torch.zeros_like(w) for w in weights]
    for _ in range(3):
        for part in torch.randperm(6, generator=generator).split(4):
            maps = pixels[part]
            value = 0
            for i, piece in enumerate(student):
                maps = piece(maps)
                if i > 0:
                    t, s = teacher[i - 1][part], maps
                    t = t / t.square().sum(1, keepdim=True).sqrt()
                    s = s / s.square().sum(1, keepdim=True).sqrt()
                    value = value + ((t - s) ** 2).sum(1).mean()
            gradients = torch.autograd.grad(value, weights)
            for w, v, g in zip(weights, velocity, gradients):
                v.mul_(0.9).add_(g + 0.01 * w.detach())
                w.data -= 0.05 * v
    for ours, plain in zip(detector.student.parameters(), weights):
        assert (ours - plain).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet50_2", "tf_efficientnet_lite0", "mobilenetv2_100"])
def test_a_step_with_the_papers_values_on_its_networks(name, random_backbone, tasks):
    extractor = Extractor(random_backbone(name), 64)
    path = ROOT / "params" / "paper" / "stfpm.yml"
    detector = STFPM(**yaml.safe_load(path.read_text())["options"]["stfpm"] | {"epochs": 1})
    assert (detector.learning_rate, detector.momentum, detector.weight_decay) == (0.4, 0.9, 1e-4)
    frozen = {key: value.clone() for key, value in extractor.backbone.state_dict().items()}
    detector.start(extractor)
    before = [p.detach().clone() for p in detector.student.parameters()]
    detector.fit(extractor.images(tasks[0].train[:2]))
    assert all(not torch.equal(a, b) for a, b in zip(before, detector.student.parameters()))
    assert all(torch.equal(frozen[key], value) for key, value in extractor.backbone.state_dict().items())
    (batch,) = extractor.images(tasks[0].test[:2])
    for ours, theirs in zip(detector.imitate(batch), batch.features((1, 2, 3))):
        assert ours.shape == theirs.shape
    maps, scores = detector.score(batch)
    assert maps.isfinite().all()
    assert torch.equal(scores, maps.amax((1, 2)))


def test_the_papers_values_are_the_defaults():
    path = ROOT / "params" / "paper" / "stfpm.yml"
    assert STFPM(**yaml.safe_load(path.read_text())["options"]["stfpm"]).options() == STFPM().options()


def test_a_student_with_the_teachers_weights_is_the_teacher(real_extractor, tasks):
    detector = STFPM(epochs=0)
    detector.start(real_extractor)
    frozen = iter(real_extractor.backbone.network.state_dict().values())
    detector.student.load_state_dict({key: next(frozen) for key in detector.student.state_dict()})
    (batch,) = real_extractor.images(tasks[0].test)
    assert detector.score(batch)[1].max() <= 1e-12


def test_the_students_start_is_random_and_not_the_teachers(real_extractor):
    first, second = STFPM(seed=1), STFPM(seed=2)
    for detector in (first, second):
        detector.start(real_extractor)
    teacher = next(real_extractor.backbone.network.parameters())
    one, two = (next(detector.student.parameters()) for detector in (first, second))
    assert one.shape == teacher.shape
    assert not torch.equal(one, two)
    assert not torch.equal(one, teacher)


def test_training_brings_the_student_closer(real_extractor, tasks):
    images = real_extractor.images(tasks[0].train)
    losses = []
    for epochs in (1, 8):
        detector = STFPM(epochs=epochs, batch_size=3)
        detector.fit(images)
        (batch,) = images
        with torch.no_grad():
            losses.append(loss(batch.features((1, 2, 3)), detector.imitate(batch)).item())
    assert losses[1] < 0.7 * losses[0]


def test_teacher_features_are_computed_once(extractor, tasks):
    STFPM(epochs=4, batch_size=6).fit(extractor.images(tasks[0].train))
    assert extractor.backbone.calls == 1


def test_a_rate_that_diverges_stops_with_what_to_lower(extractor, tasks):
    detector = STFPM(epochs=60, batch_size=2, learning_rate=1e18)
    with pytest.raises(FloatingPointError, match=r"stfpm: the loss is .* in epoch \d+.*lower it") as error:
        detector.fit(extractor.images(tasks[0].train))
    assert "\n" not in str(error.value)


def test_the_student_trains_in_bfloat16_too(extractor, tasks):
    detector = STFPM(epochs=1, mixed_precision=True)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, _ = detector.score(batch)
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()


def test_pieces_pass_on_what_they_give():
    doubled = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())
    first, second = pass_on(doubled, torch.tensor([2.0]))
    assert first == 2
    assert second == torch.tensor(2.0).tanh()


def test_options_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(ValueError, match=r"^stfpm: batch_size: 0 must be at least 1"):
        STFPM(batch_size=0)
