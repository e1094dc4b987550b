import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from torch.nn.functional import adaptive_avg_pool1d, interpolate

from inclad.backbones import Backbone, Weights
from inclad.data.task import DataError
from inclad.detectors.efficientad import (
    EfficientAD,
    channel_statistics,
    hard_feature_loss,
    jitter,
    quantile,
    scaled,
)
from inclad.detectors.patchcore import embed
from inclad.detectors.pdn import Autoencoder, normalised, pdn, pdn_side
from inclad.features import Extractor

SMALL = {
    "epochs": 1,
    "batch_size": 2,
    "width": 4,
    "teacher_out_channels": 8,
    "teacher_steps": 2,
    "teacher_batch_size": 3,
}
PAPER = Path(__file__).parents[2] / "params/paper/efficientad.yml"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9, 0.995, 0.999, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 1000, 1001])
def test_quantiles_are_numpys(q, count):
    values = draw(count)
    assert quantile(values, q).item() == pytest.approx(np.quantile(values.numpy(), q), abs=1e-6)


def test_quantiles_of_more_values_than_torch_takes():
    count = 17_000_000  # torch.quantile ends at 2^24
    # A shuffle that is its own formula, so that the true order is known: 7 and the count share no factor.
    values = (torch.arange(count) * 7).remainder_(count).float()
    place = 0.999 * (count - 1)
    assert quantile(values, 0.999).item() == pytest.approx(place, abs=2)
    loss = hard_feature_loss(values.view(1, 1000, 1000, 17), torch.zeros(()), 0.9999)
    squares = np.arange(count - 1700, count, dtype=float) ** 2
    assert loss.item() == pytest.approx(squares.mean(), rel=1e-4)


@pytest.mark.parametrize("q", [0.0, 0.9, 0.999])
def test_the_hard_feature_loss_and_its_gradient_equal_numpys(q):
    target, imitation = draw(2, 6, 9, 9), draw(2, 6, 9, 9, seed=1).requires_grad_()
    loss = hard_feature_loss(target, imitation, q)
    loss.backward()
    a, b = target.double().numpy(), imitation.detach().double().numpy()
    squares = (a - b) ** 2
    hard = squares >= np.quantile(squares, q)
    assert loss.item() == pytest.approx(squares[hard].mean(), rel=1e-5)
    assert np.allclose(imitation.grad.numpy(), hard * 2 * (b - a) / hard.sum(), atol=1e-6)


def test_maps_are_scaled_by_their_quantiles():
    maps, low, high = draw(5, 7, 7), torch.tensor(0.4), torch.tensor(2.0)
    assert np.allclose(scaled(maps, low, high).numpy(), 0.1 * (maps.numpy() - 0.4) / (2.0 - 0.4), atol=1e-6)
    assert scaled(low, low, high) == 0
    assert scaled(high, low, high).item() == pytest.approx(0.1)
    assert scaled(maps, low, low).isfinite().all()


def test_channel_statistics_are_numpys():
    maps = draw(5, 3, 4, 4) * torch.tensor([1.0, 5.0, 0.0]).view(3, 1, 1) + 2
    mean, std = channel_statistics([maps[:2], maps[2:]])
    assert np.allclose(mean.flatten().numpy(), maps.numpy().mean((0, 2, 3)), atol=1e-6)
    assert np.allclose(std.flatten()[:2].numpy(), maps.numpy().std((0, 2, 3))[:2], rtol=1e-5)
    assert std.flatten()[2].item() == pytest.approx(1e-3)


def test_jitter_changes_one_of_three_by_up_to_a_fifth():
    pixels = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.2
    changed = jitter(pixels, torch.Generator().manual_seed(0))
    again = jitter(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(changed, again)
    assert 0 <= changed.min() < changed.max() <= 1
    seen = set()
    grey = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    for before, after in zip(pixels, changed):
        luminance = (before * grey).sum(0)
        bases = {"brightness": 0 * before, "contrast": luminance.mean(), "saturation": luminance}
        for kind, base in bases.items():
            factor = ((after - base) * (before - base)).sum() / (before - base).square().sum()
            if torch.allclose(after, base + factor * (before - base), atol=1e-3):
                assert 0.79 <= factor <= 1.21
                seen.add(kind)
    assert seen == {"brightness", "contrast", "saturation"}


@pytest.mark.parametrize(("size", "side"), [(64, 8), (65, 9), (100, 17), (128, 24), (224, 48), (256, 56)])
def test_all_networks_give_maps_of_one_side(size, side):
    pixels = draw(1, 3, size, size)
    assert pdn_side(size) == side
    for network in (pdn("small", 4, 6), pdn("medium", 2, 6), Autoencoder(size, 8, 6)):
        assert network(pixels).shape == (1, 6, side, side)


def test_the_papers_networks_have_the_papers_layers():
    def shapes(network):
        return [tuple(p.shape) for p in network.parameters() if p.ndim == 4]

    small = [(128, 3, 4, 4), (256, 128, 4, 4), (256, 256, 3, 3), (384, 256, 4, 4)]
    assert shapes(pdn("small", 128, 384)) == small
    medium = [
        (256, 3, 4, 4),
        (512, 256, 4, 4),
        (512, 512, 1, 1),
        (512, 512, 3, 3),
        (384, 512, 4, 4),
        (384, 384, 1, 1),
    ]
    assert shapes(pdn("medium", 128, 384)) == medium
    autoencoder = Autoencoder(256, 128, 384)
    assert shapes(autoencoder.encode)[-1] == (64, 64, 8, 8)
    assert autoencoder.sizes == [3, 8, 15, 32, 63, 127]


def test_a_position_of_the_teacher_sees_33_pixels_around_its_place():
    network = pdn("small", 4, 5).double()
    pixels = draw(1, 3, 64, 64).double().requires_grad_()
    network(pixels)[0, :, 3, 5].sum().backward()
    rows, columns = pixels.grad[0].abs().sum(0).nonzero().T
    assert (rows.min(), rows.max()) == (12, 44)
    assert (columns.min(), columns.max()) == (20, 52)


def test_targets_are_pooled_features_at_the_teachers_positions(extractor, tasks):
    (batch,) = extractor.images(tasks[0].train)
    detector = EfficientAD(**SMALL)
    target = detector.target(batch)
    assert target.shape == (6, 8, 8, 8)
    pooled = adaptive_avg_pool1d(embed(batch), 8).transpose(1, 2).reshape(6, 8, 8, 8)
    expected = interpolate(pooled, size=(16, 16), mode="bilinear", align_corners=False)[:, :, 4:12, 4:12]
    assert torch.allclose(target, expected)


@pytest.mark.parametrize("model", ["resnet18", "wide_resnet50_2"])
def test_the_papers_backbones_can_be_distilled(model, tasks):
    network = timm.create_model(model, pretrained=False, features_only=True, out_indices=(1, 2, 3))
    backbone = Backbone(network, (1, 2, 3), Weights(model, "drawn", "0" * 64), (0.5,) * 3, (0.5,) * 3).eval()
    (batch,) = Extractor(backbone, 64).images(tasks[0].train[:2])
    target = EfficientAD().target(batch)
    assert target.shape == (2, 384, 8, 8)
    assert target.isfinite().all()


def test_distillation_lowers_the_teachers_loss(extractor, tasks):
    images = extractor.images(tasks[0].train)
    detector = EfficientAD(**(SMALL | {"teacher_steps": 60, "learning_rate": 5e-3}))
    teacher = detector.pdn(8)
    losses = detector.distil(teacher, images, torch.Generator().manual_seed(0))
    assert len(losses) == 30
    assert losses[-1] < 0.6 * losses[0]
    mean, std = channel_statistics(detector.target(batch) for batch in images)
    (batch,) = images
    with torch.no_grad():
        error = teacher(normalised(batch.pixels())) - (detector.target(batch) - mean) / std
    assert error.square().mean() < 0.6


def test_nothing_to_make_a_teacher_of_is_refused(extractor, tmp_path):
    with pytest.raises(ValueError, match="efficientad: no images to distil the teacher on"):
        EfficientAD(**SMALL).fit(extractor.images([]))
    with pytest.raises(ValueError, match="efficientad: teacher_steps: 0 must be at least 1"):
        EfficientAD(teacher_steps=0)
    with pytest.raises(DataError, match="holds no images"):
        EfficientAD(**SMALL, teacher_images=str(tmp_path)).make_teacher(extractor.images([]))


def same(first, second) -> bool:
    first, second = first.state_dict(), second.state_dict()
    return all(torch.equal(first[key], second[key]) for key in first)


def test_the_same_content_has_the_same_cached_teacher(
    make_extractor, make_task, cache, tmp_path, monkeypatch
):
    task = make_task()
    images = make_extractor(cache=cache).images(task.train)
    fresh = EfficientAD(**SMALL).make_teacher(make_extractor().images(task.train))
    first = EfficientAD(**SMALL).make_teacher(images)
    assert same(first, fresh)

    def distil(*_):
        raise AssertionError("distilled again")

    monkeypatch.setattr(EfficientAD, "distil", distil)
    moved = tmp_path / "moved"
    shutil.copytree(task.train[0].image.parent, moved)
    copies = [type(sample)(moved / sample.image.name) for sample in task.train]
    other = make_extractor(cache=cache)
    assert same(EfficientAD(**SMALL).make_teacher(other.images(copies)), first)
    for changed in ({"seed": 1}, {"width": 5}, {"teacher_steps": 4}):
        with pytest.raises(AssertionError, match="distilled again"):
            EfficientAD(**(SMALL | changed)).make_teacher(images)
    with pytest.raises(AssertionError, match="distilled again"):
        EfficientAD(**SMALL).make_teacher(images.of(task.train[:3]))


def test_a_cached_teacher_trains_the_same_students(make_extractor, tasks, cache):
    states = []
    for each in (None, cache, cache):
        detector = EfficientAD(**SMALL)
        detector.fit(make_extractor(cache=each).images(tasks[0].train))
        states.append(detector.state())
    for state in states[1:]:
        assert all(torch.equal(states[0][key], state[key]) for key in state)


def test_a_teacher_from_a_folder_does_not_depend_on_the_task(extractor, tasks):
    folder = str(tasks[2].train[0].image.parent)
    first, second = (
        EfficientAD(**SMALL, teacher_images=folder).make_teacher(extractor.images(task.train))
        for task in tasks[:2]
    )
    assert same(first, second)


def test_a_teacher_is_read_from_a_file(extractor, tasks, tmp_path):
    path = str(tmp_path / "teacher.safetensors")
    network = pdn("small", 4, 8)
    save_file(network.state_dict(), path)
    detector = EfficientAD(**SMALL, teacher_file=path)
    detector.fit(extractor.images(tasks[0].train))
    assert same(detector.networks["teacher"], network)
    with pytest.raises(
        ValueError, match=f"teacher_file: {path}: no teacher of model_size 'small', width 5"
    ) as e:
        EfficientAD(**(SMALL | {"width": 5}), teacher_file=path)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match=r"teacher_file: .*nowhere"):
        EfficientAD(**SMALL, teacher_file=str(tmp_path / "nowhere.safetensors"))


def test_maps_and_scores_equal_a_plain_pass(extractor, tasks):
    detector = EfficientAD(**(SMALL | {"epochs": 2, "learning_rate": 1e-3}))
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = detector.score(batch)
    pixels = normalised(batch.pixels())
    teacher, student, autoencoder = detector.networks.values()
    with torch.no_grad():
        target = ((teacher(pixels) - detector.mean) / detector.std).numpy()
        both, rebuilt = student(pixels).numpy(), autoencoder(pixels).numpy()
    qa_st, qb_st, qa_ae, qb_ae = detector.quantiles.tolist()
    map_st = ((target - both[:, :8]) ** 2).mean(1)
    map_ae = ((rebuilt - both[:, 8:]) ** 2).mean(1)
    combined = 0.05 * (map_st - qa_st) / (qb_st - qa_st) + 0.05 * (map_ae - qa_ae) / (qb_ae - qa_ae)
    padded = torch.from_numpy(np.pad(combined, ((0, 0), (4, 4), (4, 4))))[:, None]
    expected = interpolate(padded, size=(64, 64), mode="bilinear", align_corners=False)[:, 0]
    assert torch.allclose(maps, expected, atol=1e-4)
    assert torch.equal(scores, maps.amax((1, 2)))


def test_the_quantiles_are_those_of_the_held_out_images(extractor, tasks):
    detector, again = (EfficientAD(**SMALL, validation_share=0.4) for _ in range(2))
    images = extractor.images(tasks[0].train)
    trained_on, held_out = again.split(images)
    assert len(held_out) == 2
    assert sorted(str(s.image) for s in trained_on.samples + held_out.samples) == sorted(
        str(s.image) for s in images.samples
    )
    detector.fit(images)
    (batch,) = held_out
    with torch.no_grad():
        maps = detector.maps(detector.inputs(batch.pixels()))
    expected = [np.quantile(each.numpy(), q) for each in maps for q in (0.9, 0.995)]
    assert np.allclose(detector.quantiles.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("count", "share", "held"), [(1, 0.1, 0), (2, 0.1, 1), (6, 0.1, 1), (6, 0.5, 3), (6, 0, 0), (2, 0.9, 1)]
)
def test_tiny_tasks_are_split_too(extractor, tasks, count, share, held):
    trained_on, held_out = EfficientAD(**SMALL, validation_share=share).split(
        extractor.images(tasks[0].train[:count])
    )
    assert (len(trained_on), len(held_out)) == (count - held, held)


def test_the_teacher_is_that_of_the_first_task_all_else_goes_on(extractor, tasks):
    detector = EfficientAD(**SMALL)
    detector.fit(extractor.images(tasks[0].train))
    first = {key: value.clone() for key, value in detector.state().items()}
    detector.fit(extractor.images(tasks[1].train))
    kept = {key for key, value in detector.state().items() if torch.equal(first[key], value)}
    assert kept == {key for key in first if key.startswith("teacher.")}


def test_penalty_images_keep_the_student_from_imitating_elsewhere(extractor, tasks):
    folder = str(tasks[2].train[0].image.parent)
    images = extractor.images(tasks[0].train)
    outputs = []
    for options in ({}, {"penalty_images": folder}):
        detector = EfficientAD(**(SMALL | {"epochs": 20, "learning_rate": 1e-2}), **options)
        detector.fit(images)
        pixels = detector.inputs(extractor.middle(tasks[2].train))
        with torch.no_grad():
            outputs.append(detector.networks["student"](pixels)[:, :8].square().mean())
    assert outputs[1] < 0.7 * outputs[0]


def test_one_step_with_the_papers_values_is_a_plain_adam(make_extractor, tasks):
    options = yaml.safe_load(PAPER.read_text())["options"]["efficientad"]
    assert EfficientAD(**options).options() == EfficientAD().options()
    images = make_extractor(size=64).images(tasks[0].train[:1])
    options |= {"epochs": 1, "teacher_steps": 1, "teacher_batch_size": 1}
    detector = EfficientAD(**options)
    detector.fit(images)  # makes the networks
    other = EfficientAD(**options)
    other.load({key: value.clone() for key, value in detector.state().items()}, images.extractor)
    # Without dropout, which draws what no second program can know.
    for each in (detector, other):
        each.networks["autoencoder"].decode.apply(lambda m: setattr(m, "p", 0.0))
    detector.generator = torch.Generator().manual_seed(9)
    detector.train(images)

    teacher, student, autoencoder = other.networks.values()
    generator = torch.Generator().manual_seed(9)
    torch.randint(2**31, (), generator=generator)  # the seed of the training
    torch.randperm(1, generator=generator)
    (batch,) = images
    plain = normalised(batch.pixels())
    jittered = normalised(jitter(batch.pixels(), generator))
    optimizer = torch.optim.Adam(
        [*student.parameters(), *autoencoder.parameters()], lr=1e-4, weight_decay=1e-5
    )
    with torch.no_grad():
        target, jittered_target = ((teacher(x) - other.mean) / other.std for x in (plain, jittered))
    squares = (target - student(plain)[:, :384]) ** 2
    hard = squares[squares >= np.quantile(squares.detach().numpy(), 0.999)].mean()
    rebuilt = autoencoder(jittered)
    loss = hard + ((rebuilt - jittered_target) ** 2).mean()
    (loss + ((rebuilt - student(jittered)[:, 384:]) ** 2).mean()).backward()
    optimizer.step()
    for name, value in other.networks.named_parameters():
        near = torch.isclose(detector.networks.get_parameter(name), value, atol=2e-6)
        assert near.float().mean() > 0.98, name


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"width": 0},
        {"model_size": "large"},
        {"low_quantile": 0.999},
        {"hard_quantile": 1.0},
        {"validation_share": 1.0},
        {"teacher_images": "nowhere/at/all"},
        {"penalty_images": "nowhere/at/all"},
        {"teacher_images": "tests", "teacher_file": "a.safetensors"},
    ],
)
def test_options_that_make_no_detector_are_refused(options):
    with pytest.raises(ValueError, match=f"^efficientad: {next(iter(options))}.*: ") as error:
        EfficientAD(**options)
    assert "\n" not in str(error.value)


def test_the_medium_network_learns_too(extractor, tasks):
    detector = EfficientAD(**SMALL, model_size="medium")
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    assert detector.score(batch)[0].isfinite().all()


def test_bfloat16_learns_finite_maps(extractor, tasks):
    detector = EfficientAD(**SMALL, mixed_precision=True)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, _ = detector.score(batch)
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()
    assert {value.dtype for value in detector.state().values()} == {torch.float32}
