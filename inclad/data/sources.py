"""Where the datasets come from: what to download, from whose page, under which licence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """The owner's page of a dataset; `size` and `licence` are empty where the owner states none."""

    title: str
    page: str
    licence: str = ""
    size: str = ""


SOURCES = {
    "mvtec": Source(
        "MVTec AD",
        "https://www.mvtec.com/company/research/datasets/mvtec-ad",
        "CC BY-NC-SA 4.0, no commercial use",
        "about 4.9 GB",
    ),
    "visa": Source("VisA", "https://github.com/amazon-science/spot-diff", "CC BY 4.0", "about 1.9 GB"),
    "btad": Source("BTAD", "https://github.com/pankajmishra000/VT-ADL", "CC BY-SA 4.0", "about 3 GB"),
    "mpdd": Source(
        "MPDD",
        "https://github.com/stepanje/MPDD",
        "CC BY-NC-SA 4.0, no commercial use",
        "about 1.8 GB",
    ),
    "dagm": Source("DAGM 2007", "https://conferences.mpi-inf.mpg.de/dagm/2007/prizes.html", "CC BY 4.0"),
    "mtd": Source("Magnetic Tile Defect", "https://github.com/abin24/Magnetic-tile-defect-datasets."),
}


def how_to_get(dataset: str) -> str:
    """What to download, as the end of a message about a missing folder; empty where nothing is known."""
    source = SOURCES.get(dataset)
    if source is None:
        return ""
    size = f" ({source.size})" if source.size else ""
    licence = source.licence or "none stated, ask its owner"
    return f". To get {source.title}{size}: {source.page} ; licence: {licence}"
