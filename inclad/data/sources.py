"""Whose the datasets are: title, licence, homepage, what to cite. Facts of 2026; the homepage has the last word."""

from dataclasses import dataclass

from inclad.data import elpv, mtd

NOT_STATED = "not stated"
CC = "https://creativecommons.org/licenses/"


@dataclass(frozen=True)
class Source:
    """One dataset; `licence` is an address where there is one, `seed` is that of a split which we draw ourselves
    because the dataset has none (None: the split is the dataset's)."""

    title: str
    licence: str = NOT_STATED
    homepage: str = ""
    cite: str = ""
    seed: int | None = None


SOURCES = {
    "mini": Source("mini, drawn by this project", "https://www.apache.org/licenses/LICENSE-2.0"),
    "elpv": Source(
        "ELPV, solar cells in electroluminescence light",
        CC + "by-nc-sa/4.0/",
        "https://github.com/zae-bayern/elpv-dataset",
        "Buerhop-Lutz et al. 2018; Deitsch et al. 2019",
        elpv.SPLIT_SEED,
    ),
    "mtd": Source(
        "Magnetic Tile Defect",
        homepage="https://github.com/abin24/Magnetic-tile-defect-datasets.",
        cite="Huang, Qiu and Yuan 2020",
        seed=mtd.SPLIT_SEED,
    ),
    "mvtec": Source(
        "MVTec AD",
        CC + "by-nc-sa/4.0/",
        "https://www.mvtec.com/company/research/datasets/mvtec-ad",
        "Bergmann et al. 2019",
    ),
    "visa": Source("VisA", CC + "by/4.0/", "https://github.com/amazon-science/spot-diff", "Zou et al. 2022"),
    "btad": Source("BTAD", "CC BY-SA", "https://github.com/pankajmishra000/VT-ADL", "Mishra et al. 2021"),
    "mpdd": Source("MPDD", CC + "by-nc-sa/4.0/", "https://github.com/stepanje/MPDD", "Jezek et al. 2021"),
    "dagm": Source(
        "DAGM 2007",
        homepage="https://hci.iwr.uni-heidelberg.de/content/weakly-supervised-learning-industrial-optical-inspection",
        cite="Wieler and Hahn 2007",
    ),
}
