import base64
import io
import json

import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from ipywidgets import Widget
from matplotlib.figure import Figure
from PIL import Image

from inclad import display, pictures
from inclad.results import png

NAN = float("nan")


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def small(colour):
    fig = Figure(figsize=(2, 1), facecolor=colour)
    return fig


def test_show_gives_png_with_alt_and_then_the_caption(shell):
    with capture_output() as captured:
        display.show(small("white"), alt="An empty figure.", caption="**Nothing**: conclude nothing.")
    figure, caption = captured.outputs
    assert figure.metadata == {"image/png": {"alt": "An empty figure."}}
    assert base64.b64decode(figure.data["image/png"]) == png(small("white"))
    assert caption.data["text/markdown"] == "**Nothing**: conclude nothing."
    with pytest.raises(ValueError, match="alt text"):
        display.show(small("white"), alt=" ", caption="c")


def test_slider_links_its_handle_to_frames_and_adds_a_still(shell):
    colours = ["red", "green", "blue"]
    with capture_output() as captured:
        display.slider(
            [small(c) for c in colours], ["one", "two", "three"], "tasks learned", "A square.", "Move it."
        )
    box, still, caption = captured.outputs
    state = Widget.get_manager_state()["state"]  # what a saved page holds

    def model(name):
        return state[name.removeprefix("IPY_MODEL_")]["state"]

    children = model(box.data["application/vnd.jupyter.widget-view+json"]["model_id"])["children"]
    handle, stack = (model(child) for child in children)
    assert handle["description"] == handle["tooltip"] == "tasks learned"
    assert list(handle["_options_labels"]) == ["one", "two", "three"]
    assert stack["selected_index"] == handle["index"] == 0
    frames = [state[child.removeprefix("IPY_MODEL_")]["buffers"][0]["data"] for child in stack["children"]]
    assert [base64.b64decode(frame) for frame in frames] == [png(small(c)) for c in colours]
    links = [m["state"] for m in state.values() if m["model_name"] == "LinkModel"]
    assert ([children[0], "index"], [children[1], "selected_index"]) in [
        (list(link["source"]), list(link["target"])) for link in links
    ]
    assert still.metadata["image/png"]["alt"] == "A square. Shown: one and three."
    picture = Image.open(io.BytesIO(base64.b64decode(still.data["image/png"]))).convert("RGB")
    assert picture.getpixel((5, 5)) == (255, 0, 0) and picture.getpixel((5, picture.height - 5)) == (
        0,
        0,
        255,
    )
    assert caption.data["text/markdown"] == "Move it. Below the slider, for print: one and three."
    json.dumps([output.data for output in captured.outputs])
    with pytest.raises(ValueError, match="a label a figure"):
        display.slider([small("red")], [], "d", "a", "c")


def test_slider_frames_are_small():
    noise = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)
    mask = np.arange(224) > 200
    mask, scores = np.outer(mask, mask), np.linspace(0, 1, 224 * 224).reshape(224, 224)
    R = np.full((6, 6), 0.8)
    fig = pictures.forgetting_frame(noise, mask, scores, scores, R, R, 6, list("abcdef"), 2.0)
    assert len(png(fig, display.FRAME_BYTES)) <= display.FRAME_BYTES


def test_table_has_caption_three_decimals_and_stable_ids():
    frame = pd.DataFrame({"task": ["01", "b"], "roc_auc": [0.98765, NAN], "cells": [6, 21]})
    html = display.table(frame, "Scores.").to_html()
    assert "<caption>Scores.</caption>" in html
    assert ">0.988<" in html and ">–<" in html and ">21<" in html and ">01<" in html
    assert html == display.table(frame, "Scores.").to_html()
    assert html.count("text-align: right") == 2 and html.count("text-align: left") == 1


def test_names_in_a_table_are_text_and_no_markup():
    html = display.table(pd.DataFrame({"a<b": ["<b>tile</b>"]}), "Names.").to_html()
    assert "&lt;b&gt;tile" in html and "a&lt;b" in html and "<b>" not in html
