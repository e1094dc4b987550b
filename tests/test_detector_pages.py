"""The helpers of the pages on single detectors, and the form that those pages share."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from inclad import detector_pages as pages
from inclad import detector_pictures as pictures
from inclad.detectors import patchcore
from inclad.detectors.cfa import CFA
from inclad.detectors.ganomaly import GANomaly
from inclad.detectors.padim import PaDiM
from inclad.detectors.patchcore import PatchCore

PROJECT = Path(__file__).resolve().parents[1]
FAMILIES = (
    "memory",
    "gaussian",
    "hypersphere",
    "teacher_student",
    "distillation",
    "flow",
    "reconstruction",
)
TASKS = ["a", "b", "c"]


@pytest.fixture
def stream(tmp_path):
    """A results folder of a stream of three parts: image R, costs, parameters."""
    R = {"naive": [[0.9], [0.5, 0.8], [0.4, 0.6, 0.7]], "continual": [[0.9], [0.9, 0.8], [0.7, 0.8, 0.7]]}
    key = {"dataset": "mini", "ordering": "given", "detector": "patchcore"}
    cells, costs = [], []
    for protocol, rows in R.items():
        for i, row in enumerate(rows):
            costs.append(
                key
                | {"protocol": protocol, "step": i + 1, "task": TASKS[i], "train_s": 1.0 + i}
                | {"score_s": 0.5 * (i + 1), "kept_bytes": 1024 * (i + 1)}
            )
            for level, shift in (("image", 0.0), ("pixel", -0.1)):
                place = key | {"protocol": protocol, "level": level, "step": i + 1}
                cells += [place | {"task": TASKS[j], "roc_auc": v + shift} for j, v in enumerate(row)]
    pd.DataFrame(cells).to_csv(tmp_path / "r_matrix.csv", index=False)
    pd.DataFrame(costs).to_csv(tmp_path / "costs.csv", index=False)
    parameters = {"dataset": "mini", "profile": "mini", "options": {"cfa": {"epochs": 5}}, "backbone": "net"}
    parameters |= {"image_size": 64, "seed": 3, "max_train": 0, "max_test": 0}
    (tmp_path / "run.json").write_text(json.dumps({"parameters": parameters}))
    return tmp_path


def test_the_table_of_a_stream_is_its_diagonal_and_its_last_row(stream):
    table = pages.kept_parts(stream, "patchcore").set_index("part")
    assert list(table["naive, learned"]) == pytest.approx([0.9, 0.8, 0.7])
    assert list(table["naive, end"]) == pytest.approx([0.4, 0.6, 0.7])
    assert list(table["continual, end"]) == pytest.approx([0.7, 0.8, 0.7])


def test_the_sentence_of_a_stream_has_bwt_and_the_part_that_lost_most(stream):
    text = pages.kept_sentence(stream, "patchcore").data
    naive, continual = ((-0.4 - 0.5 - 0.2) / 3, (0.0 - 0.2 + 0.0) / 3)
    assert f"naive **{naive:+.2f}**" in text and f"continual **{continual:+.2f}**" in text
    assert "lost most on *a*: 0.90 when learned, 0.70 at the end" in text


def test_a_stream_that_lost_nothing_names_no_part(stream):
    cells = pd.read_csv(stream / "r_matrix.csv").assign(roc_auc=0.8)
    cells.to_csv(stream / "r_matrix.csv", index=False)
    assert "lost less than a hundredth on every part" in pages.kept_sentence(stream, "patchcore").data


def test_a_detector_that_the_stream_lacks_is_named(stream):
    with pytest.raises(ValueError, match=r"no detector 'padim' \(there are: patchcore\)"):
        pages.kept_parts(stream, "padim")


def test_costs_are_those_of_the_first_and_the_last_step(stream):
    table = pages.stream_costs(stream, "patchcore")
    assert list(table["kept (KiB)"]) == [1, 3, 1, 3]
    assert list(table["learning (s)"]) == [1, 3, 1, 3]
    assert list(table["scoring (s a part)"]) == [0.5, 0.5, 0.5, 0.5]


def test_a_page_says_how_its_numbers_were_made(stream):
    assert "profile **mini** (`epochs` 5)" in pages.made_with(stream, "cfa").data
    text = pages.made_with(stream, "patchcore").data
    assert "every option as in the paper" in text and "64 pixels" in text and "seed 3" in text


def test_a_stream_without_run_json_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no whole run.json: make it with `inclad run stream`"):
        pages.made_with(tmp_path, "cfa")


def test_source_shows_exactly_the_lines_of_a_function():
    text = pages.source(patchcore.patch_distances).data
    file, first, last = re.match(r"`(\S+)`, lines (\d+) to (\d+)\n", text).groups()
    lines = (PROJECT / file).read_text().splitlines()[int(first) - 1 : int(last)]
    assert "\n".join(lines) in text
    assert lines[0].startswith("def patch_distances") and lines[-1].strip().startswith("return")
    decorated = pages.source(GANomaly.score).data
    assert decorated.startswith("`inclad/detectors/ganomaly.py`, lines") and "def score(" in decorated


def test_kept_tensors_add_up_to_the_bytes_kept():
    model = PatchCore()
    model.bank = torch.zeros(7, 5)
    table = pages.kept_tensors(model)
    assert table.to_dict("records") == [{"tensor": "bank", "shape": "7 x 5", "bytes": 140}]
    assert table["bytes"].sum() == model.kept_bytes()


class Pictures:
    """Stands in for an extractor and its batches: features are the pixels themselves, averaged."""

    def __init__(self, images):
        self.images = np.asarray(images, dtype=np.float32)
        self.size, self.samples = self.images.shape[1], tuple(range(len(self.images)))
        self.extractor = SimpleNamespace(device="cpu")

    def __len__(self):
        return len(self.images)

    def __iter__(self):
        yield self

    def features(self, stages):
        maps = torch.from_numpy(self.images).permute(0, 3, 1, 2)
        return [torch.nn.functional.avg_pool2d(maps, 2**stage) for stage in stages]


class Shown:
    """Stands in for a part: three noisy normal images, and one of them with a bright square."""

    def __init__(self):
        rng = np.random.default_rng(0)
        normal = rng.integers(80, 120, (3, 32, 32, 3)).astype(np.uint8)
        self.image, self.mask = normal[0].copy(), np.zeros((32, 32), bool)
        self.image[8:16, 16:24], self.mask[8:16, 16:24] = 255, True
        self.train, self.defective = Pictures(normal), Pictures([self.image])
        self.sound = Pictures(normal[:1])
        self.task = SimpleNamespace(name="thing", train=(0, 1, 2), test=(), mask_threshold=1)
        self.extractor = SimpleNamespace(decoded=lambda k: torch.from_numpy(normal[k]))
        self.normal = normal


def test_positions_on_a_defect_have_their_middle_there_and_a_small_defect_has_one():
    mask, expected = np.zeros((32, 32), bool), np.zeros((8, 8), bool)
    assert not pictures.on_defect(mask, 64).any()
    mask[8:16, 16:24] = expected[2:4, 4:6] = True
    assert (pictures.on_defect(mask, 64).reshape(8, 8) == expected).all()
    mask[:] = False
    mask[1, 30] = True
    assert np.flatnonzero(pictures.on_defect(mask, 64)).tolist() == [7]


def test_matches_are_found_in_the_training_images():
    part = Shown()
    model = PatchCore(coreset_ratio=1.0)
    model.fit(part.train)
    memory = pictures.look_up_patches(part, model)
    defect, sound = memory.matches
    assert part.mask[defect.place] and not part.mask[sound.place]
    assert defect.distance == pytest.approx(memory.distances[2:4, 4:6].max())
    assert defect.distance > sound.distance
    assert (memory.kept == 3).all()  # all patches of three images
    # The image is a training image with a square: far from it a patch finds itself.
    far = pictures.middle(int(memory.distances.argmin()), 8, 32)
    assert memory.distances.min() == 0
    assert (pictures.crop(part.image, far, 2) == pictures.crop(part.normal[0], far, 2)).all()
    assert any((pictures.crop(n, pictures.middle(p, 8, 32)) == sound.neighbour).all()
               for n in part.normal for p in range(64))  # fmt: skip


def test_a_crop_goes_on_over_the_border():
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, 2)
    assert pictures.crop(image, (0, 0), 1)[..., 0].tolist() == [[0, 0], [0, 0]]
    assert pictures.crop(image, (2, 2), 2)[..., 0].tolist() == image[..., 0].tolist()


def test_the_memory_figure_marks_both_patches_and_names_their_distances():
    part = Shown()
    model = PatchCore(coreset_ratio=0.5)
    model.fit(part.train)
    memory = pictures.look_up_patches(part, model)
    fig = pictures.memory_figure(part, memory)
    assert isinstance(fig, Figure) and fig.get_size_inches()[0] <= 7
    titles = [ax.get_title() for ax in fig.axes]
    for match in memory.matches:
        assert f"its nearest, at {match.distance:.1f}" in titles
    marked = [tuple(line.get_xydata()[0]) for line in fig.axes[0].lines]
    assert marked == [match.place[::-1] for match in memory.matches]


def test_the_pair_is_the_one_of_largest_distance_in_two_dimensions():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6))
    covariance, offset = np.cov(points.T) + 0.01 * np.eye(6), rng.normal(size=6)

    def square(i, j):
        inverse = np.linalg.inv(covariance[np.ix_([i, j], [i, j])])
        return offset[[i, j]] @ inverse @ offset[[i, j]]

    best = max(((i, j) for i in range(6) for j in range(i)), key=lambda pair: square(*pair))
    assert set(pictures.farthest_pair(offset, covariance)) == set(best)


def test_clouds_hold_the_gaussian_that_was_fitted():
    part = Shown()
    model = PaDiM(channels=4)
    model.fit(part.train)
    found = pictures.look_at_clouds(part, model)
    defect, sound = found.clouds
    assert part.mask[defect.place] and not part.mask[sound.place]
    assert defect.distance == pytest.approx(found.distances.max())
    for cloud in found.clouds:
        assert cloud.points.shape == (3, 2)
        assert cloud.mean == pytest.approx(cloud.points.mean(0), abs=1e-2)
        expected = np.cov(cloud.points.T) + 0.01 * np.eye(2)
        assert cloud.covariance == pytest.approx(expected, rel=1e-2, abs=1e-2)
        offset = cloud.ellipse(2.0) - cloud.mean
        squares = (offset @ np.linalg.inv(cloud.covariance) * offset).sum(1)
        assert squares == pytest.approx(np.full(100, 4.0))
    fig = pictures.gaussian_figure(part, found)
    assert fig.get_size_inches()[0] <= 7
    assert f"defective location, distance {defect.distance:.0f}" in [ax.get_title() for ax in fig.axes]


def test_distances_are_told_apart_by_the_mask_and_counted_in_median_sound_ones():
    part = Shown()
    masks = np.stack([np.zeros((32, 32), bool), part.mask])
    part.extractor.masks = lambda samples, threshold: masks
    model = CFA(epochs=0)
    model.fit(part.train)
    part.extractor.images = lambda samples: Pictures([part.normal[1], part.image])
    found = pictures.measure_distances(part, model)
    assert len(found.defect) == 16 and len(found.sound) == 2 * 256 - 16
    assert np.median(found.sound) == pytest.approx(1)
    assert found.defect.mean() > found.sound.mean()
    assert found.grid[4:8, 8:12].flatten() == pytest.approx(found.defect, rel=1e-4)
    fig = pictures.hypersphere_figure(part, found, found)
    assert fig.get_size_inches()[0] <= 7 and len(fig.axes) == 6


# the families that train


def test_means_of_a_stream_are_over_its_diagonal_and_its_last_row(stream):
    table = pages.kept_levels(stream, ["patchcore"]).set_index("level")
    assert list(table.index) == ["image", "pixel"]
    assert table.loc["image", "naive, learned"] == pytest.approx((0.9 + 0.8 + 0.7) / 3)
    assert table.loc["image", "naive, end"] == pytest.approx((0.4 + 0.6 + 0.7) / 3)
    assert table.loc["pixel", "continual, end"] == pytest.approx((0.7 + 0.8 + 0.7) / 3 - 0.1)


def test_last_costs_are_those_after_the_last_part_of_every_detector(stream):
    table = pages.last_costs(stream, ["patchcore", "patchcore"])
    assert list(table["detector"]) == ["patchcore"] * 4
    assert list(table["protocol"]) == ["naive", "continual"] * 2
    assert list(table["kept (KiB)"]) == [3] * 4


def test_settings_and_losses_of_several_detectors_are_named_one_by_one(stream):
    text = pages.made_with_each(stream, ["patchcore", "cfa"]).data
    assert "(patchcore: every option as in the paper; cfa: `epochs` 5), backbone net" in text
    lines = pages.kept_sentences(stream, ["patchcore", "patchcore"]).data.splitlines()
    assert len(lines) == 2 and lines[0].startswith("- patchcore. Backward transfer")


def test_a_network_is_one_row_and_so_is_a_tensor_outside_of_one():
    model = PatchCore()
    model.state = lambda: {"a.x": torch.zeros(2, 3), "a.y": torch.zeros(4), "bank": torch.zeros(5)}
    table = pages.kept_networks({"it": model})
    assert list(table["what"]) == ["a", "bank"]
    assert list(table["numbers"]) == [10, 5]
    assert list(table["KiB"] * 1024) == [40, 20]


def test_maps_of_a_pair_share_a_scale_and_the_title_says_it():
    image, mask = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), bool)
    first = [(mask, [("one", image), ("map", np.full((4, 4), v))]) for v in (1.0, 3.0)]
    second = [(mask, [("two", image), ("map", np.full((2, 2), v))]) for v in (0.5, 0.25)]
    fig = pictures.rows_figure([first, second])
    assert fig.get_size_inches()[0] <= 7
    assert [ax.get_title() for ax in fig.axes[1::2]] == ["map, 0 to 3", "map", "map, 0 to 0.5", "map"]
    assert [ax.images[0].get_clim() for ax in fig.axes[1::2]] == [(0, 3), (0, 3), (0, 0.5), (0, 0.5)]


class WithTest(Shown):
    """A part with a test set of its own: a sound image, and one whose defect is a square."""

    def __init__(self):
        super().__init__()
        sound, defective = (type("Sample", (), {"label": k, "mask": k or None})() for k in (0, 1))
        masks = {sound: np.zeros_like(self.mask), defective: self.mask}
        self.task.test = (sound, defective)

        def images(_, samples):
            batch = Pictures([{sound: self.normal[0], defective: self.image}[s] for s in samples])
            batch.samples = tuple(samples)
            return batch

        read = {"images": images, "masks": lambda _, samples, __: np.stack([masks[s] for s in samples])}
        self.extractor = type("E", (), read)()


def test_energies_part_sound_images_from_positions_on_defects():
    part = WithTest()

    class Flow:
        stages = (2,)

        def transform(self, batch):
            return [(maps, None) for maps in batch.features(self.stages)]

    ((sound, defective),) = pictures.energies(part, Flow())
    pooled = part.normal[0].astype(float).reshape(8, 4, 8, 4, 3).mean((1, 3))
    assert sound == pytest.approx((pooled**2).mean(2).flatten(), rel=1e-5)
    assert defective == pytest.approx([255.0**2] * 4)
    assert isinstance(
        pictures.flow_figure([(part.mask, [("x", part.image)])] * 2, [(sound, defective)]), Figure
    )


def test_shares_of_the_error_and_spread_of_the_scores():
    part = WithTest()

    class Bright:
        def score(self, batch):
            maps = torch.from_numpy((batch.images[..., 0] > 200).astype(np.float32)) + 1
            return maps, maps.mean((1, 2))

    area, error = pictures.error_shares(part, Bright())
    assert area == pytest.approx(64 / 1024)
    assert error == pytest.approx(128 / (1024 + 64))
    assert pictures.score_spread(part, Bright()) == pytest.approx((1, 0, 1 + 64 / 1024))


# the pages themselves


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_short_and_says_everything_in_the_same_order(family):
    notebook = nbformat.read(PROJECT / "notebooks" / f"{family}.ipynb", as_version=4)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(prose.split()) <= 1700
    assert all(sum(map(bool, cell.source.splitlines())) <= 10 for cell in code)
    assert not any(cell.outputs for cell in code)
    headings = re.findall(r"^## (.*)$", prose, re.M)
    assert [heading.partition(":")[0] for heading in headings] == [
        "The idea in a picture",
        "The equations, and where they are in the code",
        "What the continual form keeps, and what it forgets",
        "What it costs",
        "What can go wrong",
        "Where this differs from the paper",
        "Exercise",
    ]
    assert sum("plots.show(" in cell.source for cell in code) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_formula_has_its_function_and_the_fold_says_which(family):
    notebook = nbformat.read(PROJECT / "notebooks" / f"{family}.ipynb", as_version=4)
    imports = "\n".join(c.source for c in notebook.cells if c.source.startswith("import os"))
    names: dict = {}
    exec(imports.partition("\nos.chdir")[0], names)
    shown = 0
    for cell in notebook.cells:
        if found := re.fullmatch(r"pages\.source\((\S+)\)", cell.source):
            function = eval(found[1], names)
            file = f"{function.__module__.replace('.', '/')}.py"
            assert (PROJECT / file).is_file()
            assert cell.metadata["mystnb"]["code_prompt_show"] == f"Show {found[1]} in {file}"
            shown += 1
    formulas = sum(
        c.source.splitlines().count("$$") // 2 for c in notebook.cells if c.cell_type == "markdown"
    )
    assert shown >= formulas >= 3
