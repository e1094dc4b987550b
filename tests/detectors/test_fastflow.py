from math import exp
from pathlib import Path

import pytest
import timm
import torch
import yaml
from torch.autograd.functional import jacobian

from inclad.backbones import Backbone, Weights
from inclad.detectors.fastflow import Coupling, FastFlow, Flow, anomaly_maps, loss
from inclad.detectors.profiles import with_profile
from inclad.features import Extractor

PAPER = Path(__file__).parents[2] / "params" / "paper" / "fastflow.yml"


@pytest.fixture(autouse=True)
def first_weights() -> None:
    torch.manual_seed(0)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(network: torch.nn.Module) -> torch.nn.Module:
    """The network in float64, with all its numbers far from where they start."""
    network.double()
    for i, parameter in enumerate(network.parameters()):
        parameter.data += 0.5 * draw(*parameter.shape, seed=i).double()
    return network


def random_backbone(name: str) -> Backbone:
    """A network of random weights: shapes only."""
    network = timm.create_model(name, pretrained=False, features_only=True, out_indices=(1, 2, 3))
    weights = Weights(name, "drawn", "0" * 64)
    return Backbone(network, (1, 2, 3), weights, (0.5,) * 3, (0.5,) * 3).eval()


@pytest.mark.parametrize("channels", [2, 5, 8])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_block_can_be_undone(channels, kernel):
    block, maps = shaken(Coupling(channels, kernel, 1.0)), draw(3, channels, 4, 4).double()
    z, _ = block(maps)
    assert not torch.allclose(z, maps, atol=0.1)
    assert torch.allclose(block.inverse(z), maps, atol=1e-10)


def test_a_flow_can_be_undone_up_to_its_layer_norm():
    flow, maps = shaken(Flow((6, 4, 4), [3, 1, 3, 1], 1.0)), draw(2, 6, 4, 4).double()
    z, _ = flow(maps)
    assert torch.allclose(flow.inverse(z), flow.norm(maps), atol=1e-8)


@pytest.mark.parametrize("channels", [4, 5])
@pytest.mark.parametrize("kernel", [1, 3])
def test_the_log_determinant_is_that_of_the_jacobian(channels, kernel):
    block, maps = shaken(Coupling(channels, kernel, 1.0)), draw(2, channels, 3, 3).double()
    _, logdet = block(maps)
    for image, ours in zip(maps, logdet):
        table = jacobian(lambda x: block(x[None])[0][0], image).view(image.numel(), image.numel())
        assert ours.item() == pytest.approx(torch.linalg.slogdet(table).logabsdet.item(), abs=1e-8)
        assert abs(ours.item()) > 1e-3


def test_the_log_determinants_of_the_blocks_add_up():
    flow, maps = shaken(Flow((4, 3, 3), [3, 1, 3], 1.0)), draw(1, 4, 3, 3).double()
    _, logdet = flow(maps)

    def blocks(x: torch.Tensor) -> torch.Tensor:
        for block in flow.blocks:
            x, _ = block(x)
        return x

    # The layer norm is left out: its gain is trained, but not counted.
    table = jacobian(blocks, flow.norm(maps)).view(36, 36)
    assert logdet.item() == pytest.approx(torch.linalg.slogdet(table).logabsdet.item(), abs=1e-8)


def test_a_new_block_changes_no_scale_but_the_half_it_couples():
    block, maps = Coupling(6, 3, 1.0), draw(2, 6, 4, 4)
    z, _ = block(maps)
    unsorted = z[:, block.order.argsort()]
    assert torch.allclose(unsorted[:, :3], maps[:, :3], atol=1e-5)
    assert not torch.allclose(unsorted[:, 3:], maps[:, 3:], atol=1e-3)


def test_the_log_scale_is_clamped():
    block = Coupling(4, 1, 1.0)
    log_scale, _ = block.affine(1e6 * draw(2, 2, 4, 4))
    assert log_scale.abs().max() <= 2
    assert log_scale.abs().max() > 1.99


def test_all_of_z_depends_on_all_channels_after_some_blocks():
    flow, maps = shaken(Flow((6, 1, 1), [1] * 8, 1.0)), draw(6, 1, 1).double()

    def dependent(blocks: torch.nn.ModuleList) -> float:
        def run(x: torch.Tensor) -> torch.Tensor:
            for block in blocks:
                x, _ = block(x)
            return x[0]

        return (jacobian(run, maps[None]).view(6, 6) != 0).double().mean().item()

    # One block: the kept half depends on itself, the other one on itself and on the kept half.
    assert dependent(flow.blocks[:1]) <= (3 + 3 + 9) / 36
    assert dependent(flow.blocks) == 1


def test_the_loss_is_the_negative_log_likelihood():
    latents = [draw(3, 4, 5, 5), draw(3, 6, 2, 2, seed=1)]
    logdets = [draw(3, seed=2), draw(3, seed=3)]
    plain = 0.0
    for z, logdet in zip(latents, logdets):
        for i in range(3):
            plain += (0.5 * sum(value**2 for value in z[i].flatten().tolist()) - logdet[i].item()) / 3
    assert loss(list(zip(latents, logdets))).item() == pytest.approx(plain, rel=1e-5)


def test_the_map_is_the_mean_over_stages_of_the_negative_density():
    latents = [draw(2, 4, 6, 6), 3 * draw(2, 5, 6, 6, seed=1)]
    maps = anomaly_maps(latents, 6, 0)  # grids as large as the image: nothing is resized
    for i in range(2):
        for row in range(6):
            for column in range(6):
                parts = []
                for z in latents:
                    values = z[i, :, row, column].tolist()
                    parts.append(-exp(-0.5 * sum(value**2 for value in values) / len(values)))
                assert maps[i, row, column].item() == pytest.approx(sum(parts) / 2, abs=1e-6)


def test_the_map_lies_between_minus_one_and_nought_where_it_saturates():
    latents = [torch.zeros(1, 4, 4, 4), torch.full((1, 4, 2, 2), 20.0)]
    assert torch.equal(anomaly_maps(latents[:1], 8, 0), -torch.ones(1, 8, 8))
    assert torch.equal(anomaly_maps(latents[1:], 8, 0), torch.zeros(1, 8, 8))
    assert torch.allclose(anomaly_maps(latents, 8, 0), torch.full((1, 8, 8), -0.5))


@pytest.mark.parametrize(("name", "kernels"), [("resnet18", [3, 3, 3, 3]), ("wide_resnet50_2", [3, 1, 3, 1])])
def test_kernels_alternate_for_wide_backbones_only(name, kernels):
    extractor = Extractor(random_backbone(name), 64)
    detector = FastFlow(flow_steps=4, hidden_ratio=0.05)
    detector.build(extractor)
    for flow in detector.flows:
        assert [block.subnet[0].kernel_size[0] for block in flow.blocks] == kernels
    shapes = [tuple(flow.norm.normalized_shape) for flow in detector.flows]
    assert shapes == [tuple(maps.shape[1:]) for maps in extractor.backbone(torch.zeros(1, 3, 64, 64))]


def test_the_width_of_the_subnets_follows_the_hidden_ratio():
    assert [Coupling(9, 3, ratio).subnet[0].out_channels for ratio in (0.01, 0.5, 1.0)] == [1, 2, 5]


def test_one_step_with_the_values_of_the_paper(extractor, tasks):
    params = yaml.safe_load(PAPER.read_text())
    options = with_profile(params["profile"], params["options"]).get("fastflow", {})
    detector = FastFlow(**(options | {"epochs": 1}))
    assert (detector.learning_rate, detector.batch_size, detector.weight_decay) == (1e-3, 8, 0)
    assert (detector.flow_steps, detector.hidden_ratio, FastFlow().epochs) == (8, 1.0, 200)
    before = FastFlow(epochs=1, learning_rate=0.0)
    for each in (before, detector):
        each.fit(extractor.images(tasks[0].train))
    gaps = [
        (a - b).abs().max().item() for a, b in zip(before.flows.parameters(), detector.flows.parameters())
    ]
    # Adam's first step moves a weight by the learning rate, whatever its gradient.
    assert max(gaps) == pytest.approx(1e-3, rel=1e-2)


def test_training_lowers_the_loss_and_a_second_task_goes_on_from_it(extractor, tasks):
    def current(detector, task) -> float:
        (batch,) = extractor.images(task.train)
        with torch.inference_mode():
            return loss(detector.transform(batch)).item()

    losses = []
    for epochs in (1, 20):
        detector = FastFlow(epochs=epochs, batch_size=4, flow_steps=2)
        detector.fit(extractor.images(tasks[0].train))
        losses.append(current(detector, tasks[0]))
    assert losses[1] < 0.9 * losses[0]
    flows = detector.flows
    detector.fit(extractor.images(tasks[1].train))
    assert detector.flows is flows


def test_a_state_of_another_image_size_is_refused(extractor, make_extractor, tasks):
    detector = FastFlow(epochs=1, flow_steps=1)
    detector.fit(extractor.images(tasks[0].train))
    with pytest.raises(RuntimeError, match="size mismatch"):
        FastFlow(epochs=1, flow_steps=1).load(detector.state(), make_extractor(size=128))


def test_mixed_precision_trains_to_scores_in_float32(extractor, tasks):
    detector = FastFlow(epochs=2, flow_steps=2, mixed_precision=True)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, _ = detector.score(batch)
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 0}, "fastflow: epochs: 0 must be at least 1"),
        ({"batch_size": 0}, "fastflow: batch_size: 0 must be at least 1"),
        ({"flow_steps": 0}, "fastflow: flow_steps: 0 must be at least 1"),
        ({"hidden_ratio": 0.0}, "fastflow: hidden_ratio: 0.0 is not above 0"),
    ],
)
def test_options_that_make_no_flow_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        FastFlow(**options)
