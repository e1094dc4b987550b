import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate, softmax

from inclad.detectors.cfa import CFA, features, loss, mean_features, soft_minimum


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain_loss(embeddings, bank, radius, neighbors, repulsion, alpha, nu):
    """The whole table of squared distances, sorted."""
    table = (embeddings[:, None] - bank[None]).square().sum(2).sort(1).values
    attract = (table[:, :neighbors] - radius**2).clamp(min=0).mean()
    repel = (radius**2 - table[:, neighbors : neighbors + repulsion] - alpha).clamp(min=0).mean()
    return (attract + repel) / nu


# A small radius leaves only attraction, a large one only repulsion, between them both act.
@pytest.mark.parametrize("radius", [1e-5, 1.8, 2.5, 6.0])
@pytest.mark.parametrize(("neighbors", "repulsion"), [(3, 3), (1, 4), (5, 2)])
def test_the_loss_and_its_gradient_equal_the_full_table(radius, neighbors, repulsion):
    values, bank = draw(40, 7), draw(30, 6, seed=1)
    gradients, losses = [], []
    for function in (loss, plain_loss):
        layer = torch.nn.Linear(7, 6).double()
        layer.load_state_dict({"weight": draw(6, 7, seed=2).double() / 2, "bias": draw(6, seed=3).double()})
        r = torch.tensor(radius, dtype=torch.float64, requires_grad=True)
        value = function(layer(values.double()), bank.double(), r, neighbors, repulsion, 0.1, 1e-3)
        value.backward()
        losses.append(value.item())
        gradients.append([layer.weight.grad, layer.bias.grad, r.grad])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert losses[0] > 0
    for ours, plain in zip(*gradients):
        assert torch.allclose(ours, plain, rtol=1e-8, atol=1e-8)
    assert gradients[0][2] != 0


def test_the_loss_in_float32_is_that_of_float64():
    embeddings, bank, radius = draw(500, 20), draw(200, 20, seed=1), torch.tensor(1.0)
    exact = plain_loss(embeddings.double(), bank.double(), radius.double(), 3, 3, 0.1, 1e-3)
    assert loss(embeddings, bank, radius, 3, 3, 0.1, 1e-3).item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("neighbors", [1, 3])
def test_the_score_is_the_nearest_distance_times_its_share_of_the_soft_minimum(neighbors, offset):
    embeddings, bank = draw(50, 6) + offset, draw(80, 6, seed=1) + offset
    table = (embeddings.double()[:, None] - bank.double()[None]).square().sum(2).sqrt().sort(1).values
    nearest = table[:, :neighbors]
    expected = nearest[:, 0] * softmax(-nearest, 1)[:, 0]
    assert torch.allclose(soft_minimum(embeddings, bank, neighbors).double(), expected, atol=1e-5)


def test_features_are_pooled_resized_and_given_coordinates(extractor, tasks):
    (batch,) = extractor.images(tasks[0].train)
    ours = features(batch)
    assert ours.shape == (6, 256, 8 + 12 + 16 + 2)
    stages = [avg_pool2d(maps, 3, 1, 1) for maps in batch.features((1, 2, 3))]
    stages = [interpolate(maps, size=(16, 16), mode="bilinear", align_corners=False) for maps in stages]
    expected = torch.cat(stages, 1)
    for row, column in [(0, 0), (0, 15), (7, 3), (15, 15)]:
        value = ours[:, row * 16 + column]
        assert torch.allclose(value[:, :-2], expected[:, :, row, column], atol=1e-6)
        assert torch.allclose(value[:, -2], torch.tensor(row / 15 * 2 - 1))
        assert torch.allclose(value[:, -1], torch.tensor(column / 15 * 2 - 1))


def test_a_bank_from_the_mean_map_equals_the_mean_of_all_embeddings(extractor, tasks):
    images = extractor.images(tasks[0].train, 4)
    detector = CFA()
    centre = mean_features(images)
    detector.start(centre)
    (batch,) = extractor.images(tasks[0].train)
    with torch.no_grad():
        every = detector.descriptor.double()(features(batch).double()).mean(0)
    detector.descriptor.float()
    assert (detector.describe(centre).double() - every).abs().max() <= 1e-5


def test_the_bank_is_that_of_the_descriptor_before_training(extractor, tasks):
    detector, untrained = CFA(epochs=2, batch_size=4, seed=5), CFA(epochs=0, seed=5)
    for each in (detector, untrained):
        each.fit(extractor.images(tasks[0].train))
    assert detector.bank.shape == (256, 36)
    assert torch.equal(detector.bank, untrained.bank)
    assert not torch.equal(detector.descriptor.weight, untrained.descriptor.weight)


def test_training_equals_a_plain_loop(extractor, tasks):
    images = extractor.images(tasks[0].train)
    detector = CFA(epochs=3, batch_size=4, learning_rate=2e-3, seed=5)
    detector.fit(images)

    generator = torch.Generator().manual_seed(5)
    layer = torch.nn.Linear(38, 36)
    for parameter in layer.parameters():  # uniform within 1 / sqrt(inputs), as torch draws a layer
        parameter.data = (torch.rand(parameter.shape, generator=generator) * 2 - 1) / 38**0.5
    (batch,) = images
    values = features(batch)
    bank = layer(values).mean(0).detach()
    radius = torch.nn.Parameter(torch.tensor(1e-5))
    optimizer = torch.optim.AdamW(
        [*layer.parameters(), radius], lr=2e-3, weight_decay=5e-4, amsgrad=True, betas=(0.9, 0.999)
    )
    for _ in range(3):
        for part in torch.randperm(6, generator=generator).split(4):  # the short last batch counts too
            optimizer.zero_grad()
            plain_loss(layer(values[part]).flatten(0, 1), bank, radius, 3, 3, 0.1, 1e-3).backward()
            optimizer.step()
    moved = (detector.descriptor.weight - layer.weight).abs().max()
    assert moved <= 1e-4
    assert torch.allclose(detector.bank, bank, atol=1e-5)


def test_the_descriptor_carries_over_to_the_next_task(extractor, tasks):
    detector = CFA(epochs=1)
    detector.fit(extractor.images(tasks[0].train))
    weight = detector.descriptor.weight.detach().clone()
    detector.epochs = 0
    detector.fit(extractor.images(tasks[1].train))
    assert torch.equal(detector.descriptor.weight, weight)
    assert torch.equal(detector.bank, detector.describe(mean_features(extractor.images(tasks[1].train))))


def test_scores_equal_the_full_table(extractor, tasks):
    detector = CFA(epochs=1, sigma=0.0)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    embeddings = detector.describe(features(batch)).double()
    table = (
        torch.cdist(embeddings, detector.bank.double().expand(len(embeddings), -1, -1))
        .sort(2)
        .values[..., :3]
    )
    expected = (table[..., 0] * softmax(-table, 2)[..., 0]).view(-1, 1, 16, 16)
    up = interpolate(expected, size=(64, 64), mode="bilinear", align_corners=False)[:, 0]
    maps, scores = detector.score(batch)
    assert (maps.double() - up).abs().max() <= 1e-5
    assert np.allclose(scores, up.flatten(1).amax(1), atol=1e-5)


def test_a_loss_that_is_not_finite_stops_with_the_rate_to_lower(extractor, tasks):
    detector = CFA(epochs=60, batch_size=2, learning_rate=1e18)
    with pytest.raises(FloatingPointError, match=r"loss is not finite in epoch \d+; lower learning_rate"):
        detector.fit(extractor.images(tasks[0].train))


@pytest.mark.parametrize("option", ["batch_size", "neighbors", "repulsion_neighbors"])
def test_options_that_leave_nothing_to_train_on_are_refused(option):
    with pytest.raises(ValueError, match=f"^cfa: {option}: 0 must be at least 1"):
        CFA(**{option: 0})
