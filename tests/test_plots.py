import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from inclad import pictures, plots
from inclad.results import png

NAN = float("nan")
LONG = ["mvtec:metal_plate", "mvtec:bottle", "mpdd:bracket_brown", "01", "pcb1", "tubes", "capsules",
        "cashew", "chewinggum", "macaroni1", "macaroni2", "pipe_fryum"]  # fmt: skip


def cells(tasks, detectors=("patchcore", "padim"), orderings=("easy_to_hard",), value=None):
    """A complete r_matrix.csv; `value(protocol, level, i, j)` gives the cells, counted from 0."""
    value = value or (lambda protocol, level, i, j: 0.9 if protocol == "continual" else 0.9 - 0.05 * (i - j))
    return pd.DataFrame(
        [
            {"dataset": "d", "ordering": o, "detector": d, "protocol": p, "level": level}
            | {"step": i + 1, "task": tasks[j], "roc_auc": value(p, level, i, j)}
            for o in orderings
            for d in detectors
            for p in ("naive", "continual")
            for level in ("image", "pixel")
            for i in range(len(tasks))
            for j in range(i + 1)
        ]
    )


def panels(fig):
    return [ax for ax in fig.axes if ax.get_title() and ax.get_images()]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def hatched(ax):
    return [
        (int(p.get_y() + 0.5), int(p.get_x() + 0.5))
        for p in ax.patches
        if isinstance(p, Rectangle) and p.get_hatch()
    ]


def picture(size=32):
    image = np.full((size, size, 3), 120, np.uint8)
    mask = np.zeros((size, size), bool)
    mask[8:14, 8:14] = True
    return image, mask, mask.astype(np.float32) * 2


# ---- matrices R


def test_r_matrices_naive_beside_continual_image_above_pixel():
    fig = plots.r_matrices(cells(LONG[:3]), "padim")
    assert [ax.get_title() for ax in panels(fig)] == [
        "image level, naive",
        "image level, continual",
        "pixel level, naive",
        "pixel level, continual",
    ]
    upper_left, upper_right, lower_left, _ = (ax.get_position() for ax in panels(fig))
    assert upper_left.y0 == upper_right.y0 > lower_left.y0 and upper_left.x0 == lower_left.x0 < upper_right.x0
    assert [label.get_text() for label in panels(fig)[0].get_yticklabels()] == LONG[:3]
    assert [label.get_text() for label in panels(fig)[2].get_xticklabels()] == LONG[:3]
    assert len(fig.axes) == 5  # one colour bar for all


def test_r_colours_are_fixed_and_low_values_marked():
    fig = plots.r_matrices(cells(["a", "b"], value=lambda *_: 0.97), "padim")
    for ax in panels(fig):
        image = ax.get_images()[0]
        assert image.get_clim() == (0.5, 1.0)
        assert tuple(image.cmap(image.norm(0.49))) == tuple(image.cmap.get_under())
        assert tuple(image.cmap(image.norm(0.5))) != tuple(image.cmap.get_under())
    assert "< 0.5" in texts(fig.axes[-1])


def test_r_cells_show_the_lower_triangle_with_two_decimals():
    def value(protocol, level, i, j):
        return {(0, 0): 0.999, (1, 0): 0.412, (1, 1): 0.876}[i, j]

    ax = panels(plots.r_matrices(cells(["a", "b"], value=value), "padim"))[0]
    assert [(t.get_position(), t.get_text()) for t in ax.texts] == [
        ((0, 0), "1.0"),
        ((0, 1), ".41"),
        ((1, 1), ".88"),
    ]


def test_the_upper_triangle_is_not_drawn():
    rows = cells(["a", "b"])
    above = rows[(rows["step"] == 2) & (rows["task"] == "b")].assign(step=1, roc_auc=0.6)
    shown = panels(plots.r_matrices(pd.concat([rows, above]), "padim"))[0].get_images()[0].get_array()
    assert np.isnan(shown.filled(NAN)[0, 1]) and np.isfinite(shown.filled(NAN)[1, 0])


def test_missing_cells_are_hatched_and_a_missing_level_left_out():
    def value(protocol, level, i, j):
        return NAN if level == "pixel" and j == 1 else 0.8

    fig = plots.r_matrices(cells(["a", "b", "c"], value=value), "padim")
    assert [hatched(ax) for ax in panels(fig)] == [[], [], [(1, 1), (2, 1)], [(1, 1), (2, 1)]]
    fig = plots.r_matrices(
        cells(["mono", "poly"], value=lambda p, level, i, j: 0.8 if level == "image" else NAN), "padim"
    )
    assert [ax.get_title() for ax in panels(fig)] == ["image level, naive", "image level, continual"]


def test_no_numbers_beyond_fifteen_tasks_but_dots_below_half():
    tasks = [f"a:{i}" if i < 8 else f"b:{i}" for i in range(16)]
    fig = plots.r_matrices(
        cells(tasks, value=lambda p, level, i, j: 0.4 if (i, j) == (5, 2) else 0.9), "padim"
    )
    ax = panels(fig)[0]
    assert not ax.texts
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if line.get_marker() == "o"] == [
        (2, 5)
    ]
    rules = [line for line in ax.lines if line.get_marker() != "o"]
    assert [list(line.get_xdata()) for line in rules] == [[-0.5, 7.5, 7.5]]  # between the two data sets


def test_the_mean_over_detectors_uses_those_that_have_the_cell():
    rows = cells(["a"])
    rows.loc[rows["detector"] == "patchcore", "roc_auc"] = [0.6, NAN, 0.6, NAN]
    fig = plots.r_heatmaps_mean(rows)
    assert [texts(ax) for ax in panels(fig)] == [[".75"], [".75"], [".90"], [".90"]]


def test_a_figure_of_r_shows_one_stream():
    with pytest.raises(ValueError, match="one ordering, got easy_to_hard, random"):
        plots.r_matrices(cells(["a"], orderings=("easy_to_hard", "random")), "padim")
    with pytest.raises(ValueError, match="no cells of detector 'cfa'"):
        plots.r_matrices(cells(["a"]), "cfa")


# ---- experts, orders, curves


def test_experts_go_from_easy_to_hard_with_their_ranks():
    scores = {"x": (0.9, 0.6), "y": (0.6, 0.7), "z": (0.95, 0.9)}
    frame = pd.DataFrame(
        [
            {
                "dataset": "d",
                "task": t,
                "detector": d,
                "image_roc_auc": v,
                "pixel_roc_auc": NAN if t == "y" else v,
            }
            for t, row in scores.items()
            for d, v in zip(("patchcore", "cfa"), row)
        ]
    )
    fig = plots.experts(frame)
    image, pixel = panels(fig)
    # ranks: x 2, 1; y 1, 2; z 3, 3
    assert [label.get_text() for label in image.get_yticklabels()] == ["z", "y", "x"]  # as in a stream
    assert [label.get_text() for label in image.get_xticklabels()] == ["patchcore", "cfa", "mean"]
    assert image.get_images()[0].get_clim() == (0.5, 1.0)
    assert {"3.00", "1.50"} <= set(texts(pixel))
    assert hatched(pixel) == [(1, 0), (1, 1), (1, 2)] and hatched(image) == []


def test_orders_have_a_ribbon_a_task_and_its_name_at_both_ends():
    rows = [("easy_to_hard", "abc"), ("random", "cab")]
    frame = pd.DataFrame(
        [
            {"dataset": "d", "ordering": o, "position": i, "task": t}
            for o, tasks in rows
            for i, t in enumerate(tasks, start=1)
        ]
    )
    ax = plots.orders(frame).axes[0]
    assert sorted(texts(ax)) == ["a", "a", "b", "b", "c", "c"]
    ribbons = [line for line in ax.lines if line.get_marker() == "None"]
    assert [(line.get_ydata()[0], line.get_ydata()[-1]) for line in ribbons] == [(1, 2), (2, 3), (3, 1)]


def test_seen_average_is_the_mean_of_the_row():
    def value(protocol, level, i, j):
        return NAN if (i, j) == (2, 0) else 0.6 + 0.1 * j

    fig = plots.seen_average(cells(["a", "b", "c"], ("patchcore",), value=value), "image")
    naive, continual, _ = fig.axes[0].lines
    np.testing.assert_allclose(naive.get_ydata(), [0.6, 0.65, 0.75])
    assert (naive.get_linestyle(), continual.get_linestyle()) == ("--", "-")
    assert naive.get_color() == continual.get_color() == plots.DETECTORS["patchcore"][0]
    with pytest.raises(ValueError, match="no values at 'pixel' level"):
        plots.seen_average(cells(["a"], value=lambda p, level, i, j: NAN), "pixel")


def test_detectors_differ_by_marker_and_colour():
    assert len({colour for colour, _ in plots.DETECTORS.values()}) == len(plots.DETECTORS)
    assert len({marker for _, marker in plots.DETECTORS.values()}) == len(plots.DETECTORS)


def test_costs_show_seconds_and_mebibytes():
    frame = pd.DataFrame(
        {
            "dataset": "d",
            "ordering": "o",
            "detector": "cfa",
            "protocol": "naive",
            "step": [1, 2],
            "task": ["a", "b"],
        }
        | {"train_s": [1.0, 2.0], "score_s": [0.5, 40.0], "kept_bytes": [0, 3 * 2**20]}
    )
    train, score, kept = plots.costs(frame).axes
    assert list(kept.lines[0].get_ydata()) == [0, 3]
    assert [ax.get_yscale() for ax in (train, score, kept)] == ["linear", "log", "linear"]


# ---- images


def test_anomaly_maps_share_one_scale():
    image, mask, scores = picture()
    fig = pictures.anomaly_maps(
        [image] * 7, [mask, *[None] * 6], [scores * k for k in range(1, 8)], list("abcdefg")
    )
    maps = [ax.get_images()[1] for ax in fig.axes if len(ax.get_images()) == 2]
    assert len(maps) == 7 and {m.get_clim() for m in maps} == {(0.0, 14.0)}
    assert fig.axes[-1].get_ylabel() == "anomaly score, one scale for all"
    fig = pictures.anomaly_maps([image], [mask], [scores], ["a"], vmin=-1, vmax=5, threshold=1)
    assert fig.axes[1].get_images()[1].get_clim() == (-1, 5)
    assert len(fig.axes[1].collections) == 3  # the outline, black and white, and the threshold


def test_forgetting_frame_fills_r_up_to_the_step():
    image, mask, scores = picture()
    R = np.full((3, 3), 0.8)
    fig = pictures.forgetting_frame(image, mask, scores, scores, R, R, 2, ["a", "b", "c"], 3.0, shown="a")
    by_title = {ax.get_title(): ax for ax in fig.axes}
    assert by_title["map, naive"].get_images()[1].get_clim() == (0.0, 3.0)
    for protocol in ("naive", "continual"):
        shown = np.isfinite(by_title[f"R, {protocol}"].get_images()[0].get_array().filled(NAN))
        assert shown.tolist() == [[True, False, False], [True, True, False], [False, False, False]]
        assert not hatched(by_title[f"R, {protocol}"])  # to come is not missing
    assert any("after task 2 of 3: b" in text.get_text() for text in fig.texts)


def test_contact_sheet_has_a_row_a_task():
    image, mask, _ = picture()
    fig = pictures.contact_sheet(
        [("one", [(image, None, "good"), (image, mask, "hole")]), ("two", [(image, None, "good")])]
    )
    assert [ax.get_title() for ax in fig.axes] == ["good", "hole", "good"]
    assert [text.get_text() for text in fig.texts] == ["one", "two"]


@pytest.mark.parametrize("count", [2, 12])
def test_figures_keep_to_size_and_no_name_is_cut(count):
    tasks = LONG[:count]
    image, mask, scores = picture(224)
    R = np.full((count, count), 0.8)
    experts = pd.DataFrame(
        [
            {"dataset": "d", "task": t, "detector": d, "image_roc_auc": 0.9, "pixel_roc_auc": 0.9}
            for t in tasks
            for d in plots.DETECTORS
        ]
    )
    orders = pd.DataFrame(
        [
            {"dataset": "d", "ordering": o, "position": i, "task": t}
            for o in ("easy_to_hard", "hard_to_easy", "random")
            for i, t in enumerate(tasks, start=1)
        ]
    )
    figures = {
        "r": plots.r_matrices(cells(tasks), "padim"),
        "experts": plots.experts(experts),
        "orders": plots.orders(orders),
        "maps": pictures.anomaly_maps([image] * count, [mask] * count, [scores] * count, tasks),
        "frame": pictures.forgetting_frame(
            image, mask, scores, scores, R, R, count, tasks, 2.0, shown=tasks[0]
        ),
        "sheet": pictures.contact_sheet([(t, [(image, None, "good")] * 6) for t in tasks]),
    }
    for name, fig in figures.items():
        assert fig.get_size_inches()[0] <= 7.0 + 1e-9, name
        assert len(png(fig)) <= 200_000, name
        canvas = fig.bbox
        labels = [
            label for ax in fig.axes if ax.axison for label in (*ax.get_xticklabels(), *ax.get_yticklabels())
        ]
        for text in [*labels, *(ax.title for ax in fig.axes), *fig.texts]:
            if not text.get_text():
                continue
            box = text.get_window_extent()
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= canvas.x1 + 2 and box.y1 <= canvas.y1 + 2
            assert inside, (name, text.get_text())


def test_the_same_table_gives_the_same_bytes_whatever_the_callers_style():
    import matplotlib

    first = png(plots.r_matrices(cells(["a", "b"]), "padim"))
    with matplotlib.rc_context({"font.size": 20, "figure.facecolor": "black"}):
        assert png(plots.r_matrices(cells(["a", "b"]), "padim")) == first
