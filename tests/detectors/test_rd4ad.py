from math import sqrt
from pathlib import Path

import pytest
import timm
import torch
import yaml

from inclad.backbones import Backbone, Weights
from inclad.detectors.profiles import with_profile
from inclad.detectors.rd4ad import RD4AD, Decoder, OneClassBottleneck, anomaly_maps, loss
from inclad.features import Extractor

PAPER = Path(__file__).parents[2] / "params" / "paper" / "rd4ad.yml"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two_sides(*grids: tuple[int, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Teacher's and rebuilt maps of three images, (channels, side) a stage."""
    return tuple(
        [draw(3, channels, side, side, seed=seed + i) for i, (channels, side) in enumerate(grids)]
        for seed in (0, 10)
    )


def cosine(first: list[float], second: list[float]) -> float:
    dot, a, b = (
        sum(x * y for x, y in zip(left, right))
        for left, right in ((first, second), (first, first), (second, second))
    )
    return dot / sqrt(a * b)


def random_backbone(name: str) -> Backbone:
    """A network of random weights: shapes only."""
    network = timm.create_model(name, pretrained=False, features_only=True, out_indices=(1, 2, 3))
    weights = Weights(name, "drawn", "0" * 64)
    return Backbone(network, (1, 2, 3), weights, (0.5,) * 3, (0.5,) * 3).eval()


def test_the_loss_is_the_cosine_of_whole_maps():
    teacher, rebuilt = two_sides((4, 4), (5, 2))
    plain = 0.0
    for t, r in zip(teacher, rebuilt):
        plain += sum(1 - cosine(t[i].flatten().tolist(), r[i].flatten().tolist()) for i in range(3)) / 3
    assert loss(teacher, rebuilt).item() == pytest.approx(plain, rel=1e-5)


def test_the_map_is_the_cosine_position_by_position():
    teacher, rebuilt = two_sides((4, 8), (5, 8))
    maps = anomaly_maps(teacher, rebuilt, 8, 0)  # grids as large as the image: nothing is resized
    for i in range(3):
        for row in range(8):
            for column in range(8):
                plain = sum(
                    1 - cosine(t[i, :, row, column].tolist(), r[i, :, row, column].tolist())
                    for t, r in zip(teacher, rebuilt)
                )
                assert maps[i, row, column].item() == pytest.approx(plain, abs=1e-5)


def test_stages_of_any_grid_add_up_at_the_size_of_the_image():
    teacher, rebuilt = two_sides((4, 8), (5, 4), (6, 2))
    parts = [anomaly_maps([t], [r], 32, 0) for t, r in zip(teacher, rebuilt)]
    assert torch.allclose(anomaly_maps(teacher, rebuilt, 32, 0), sum(parts), atol=1e-6)
    assert not torch.allclose(anomaly_maps(teacher, rebuilt, 32, 4), sum(parts), atol=1e-2)


def test_what_is_rebuilt_exactly_is_normal_whatever_its_length():
    teacher, _ = two_sides((4, 8), (5, 4))
    scaled = [3 * maps for maps in teacher]
    assert loss(teacher, scaled).item() == pytest.approx(0, abs=1e-6)
    assert anomaly_maps(teacher, scaled, 16, 0).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("resnet18", [2, 2, 2, 2]), ("wide_resnet50_2", [3, 3, 4, 6]), ("resnet34", [2, 2, 2, 2])],
)
def test_the_decoder_mirrors_the_teacher(name, blocks):
    with torch.device("meta"), torch.inference_mode():
        backbone = random_backbone(name)
        detector = RD4AD()
        detector.build(backbone)
        teacher = backbone(torch.zeros(1, 3, 96, 96))
        embedding = detector.bottleneck(teacher)
        rebuilt = detector.rebuild(teacher)
    assert [maps.shape for maps in rebuilt] == [maps.shape for maps in teacher]
    assert embedding.shape == (1, 2 * teacher[2].shape[1], 3, 3)
    assert [len(detector.bottleneck.embed), *map(len, detector.decoder.stages)] == blocks


def test_the_blocks_are_as_wide_as_the_teachers():
    with torch.device("meta"):
        detector = RD4AD()
        detector.build(random_backbone("wide_resnet50_2"))
        last = next(random_backbone("wide_resnet50_2.tv_in1k").network.layer3.children())
    # The blocks after the first are the teacher's own: 1 x 1, 3 x 3, 1 x 1.
    ours = [p.shape for p in detector.decoder.stages[0][1].body.parameters() if p.dim() == 4]
    theirs = [last.conv1.weight.shape, last.conv2.weight.shape, last.conv3.weight.shape]
    assert [shape[-1] for shape in ours] == [shape[-1] for shape in theirs] == [1, 3, 1]
    assert ours[1] == theirs[1] == (512, 512, 3, 3)


def test_a_grid_of_odd_side_is_rebuilt():
    teacher = [draw(2, 8, 18, 18), draw(2, 12, 9, 9), draw(2, 16, 5, 5)]
    bottleneck, decoder = OneClassBottleneck((8, 12, 16), 2, False), Decoder((8, 12, 16), (2, 2, 2), False)
    rebuilt = decoder(bottleneck(teacher), [maps.shape[-2:] for maps in teacher])
    assert [maps.shape for maps in rebuilt] == [maps.shape for maps in teacher]


def test_one_step_with_the_values_of_the_paper(extractor, tasks):
    params = yaml.safe_load(PAPER.read_text())
    detector = RD4AD(**(with_profile(params["profile"], params["options"]).get("rd4ad", {}) | {"epochs": 1}))
    assert (detector.learning_rate, detector.batch_size, detector.sigma) == (5e-3, 16, 0)
    assert RD4AD().epochs == 200
    before, after = RD4AD(epochs=1, learning_rate=0.0), detector
    for each in (before, after):
        each.fit(extractor.images(tasks[0].train))
    gaps = [
        (a - b).abs().max().item() for a, b in zip(before.decoder.parameters(), after.decoder.parameters())
    ]
    # Adam's first step moves a weight by the learning rate, whatever its gradient.
    assert max(gaps) == pytest.approx(5e-3, rel=1e-2)


def test_training_lowers_the_loss_and_a_second_task_goes_on_from_it(extractor, tasks):
    def current(detector, task) -> float:
        (batch,) = extractor.images(task.train)
        teacher = batch.features((1, 2, 3))
        with torch.inference_mode():
            return loss(teacher, detector.rebuild(teacher)).item()

    losses = []
    for epochs in (1, 30):
        detector = RD4AD(epochs=epochs, batch_size=4)
        detector.fit(extractor.images(tasks[0].train))
        losses.append(current(detector, tasks[0]))
    assert losses[1] < 0.5 * losses[0]
    networks = detector.bottleneck, detector.decoder
    detector.fit(extractor.images(tasks[1].train))
    assert (detector.bottleneck, detector.decoder) == networks


def test_the_state_holds_no_weights_of_the_teacher(extractor, tasks):
    detector = RD4AD(epochs=1)
    detector.fit(extractor.images(tasks[0].train))
    assert {key.split(".")[0] for key in detector.state()} == {"bottleneck", "decoder"}


def test_it_trains_on_the_teachers_of_the_paper(tasks):
    extractor = Extractor(random_backbone("resnet18"), 64)
    detector = RD4AD(epochs=1)
    detector.fit(extractor.images(tasks[0].train[:2]))
    (batch,) = extractor.images(tasks[0].test[:2])
    maps, scores = detector.score(batch)
    assert maps.shape == (2, 64, 64)
    assert maps.isfinite().all()
    assert torch.equal(scores, maps.amax((1, 2)))


def test_mixed_precision_trains_to_scores_in_float32(extractor, tasks):
    detector = RD4AD(epochs=2, mixed_precision=True)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, _ = detector.score(batch)
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()


@pytest.mark.parametrize("option", ["epochs", "batch_size"])
def test_a_count_of_nothing_is_refused(option):
    with pytest.raises(ValueError, match=f"rd4ad: {option}: 0 must be at least 1"):
        RD4AD(**{option: 0})
