"""Croissant 1.0 metadata of a manifest, with the fields of its RAI (responsible AI) vocabulary 1.0.

Croissant (Akhtar et al. 2024) is how data sets are described for search engines and loaders. What is described
here is the manifest, which lists images and holds none: they stay where their owners publish them.
"""

import re
from collections import Counter
from datetime import UTC, date, datetime

from inclad.data.sources import SOURCES

PAPER = "https://arxiv.org/abs/2610.15032"
CITE = (
    "Marcjan, Wilk-Kołodziejczyk and Corizzo: InCLAD, a continual learning benchmark for industrial visual "
    "anomaly detection, arXiv 2610.15032, 2026"
)

# The standard context of Croissant 1.0, word for word: loaders compare with it.
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject"),
            *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
            *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
            *("separator", "source", "subField", "transform"),
        )
    },
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
}

# Every column of the manifest's `images`, and what it holds.
COLUMNS = {
    "dataset": ("sc:Text", "dataset the image belongs to"),
    "task": ("sc:Text", "inspected component; one task of the stream"),
    "position": ("sc:Integer", "place of the task in the stream, from 1"),
    "split": ("sc:Text", "train (normal images only) or test"),
    "image": ("sc:Text", "path of the image below the root of its dataset"),
    "mask": ("sc:Text", "path of its pixel mask; empty for normal images and where there is none"),
    "label": ("sc:Integer", "1 = anomalous, 0 = normal"),
    "defect": ("sc:Text", "kind of defect, or good"),
    "sha256": ("sc:Text", "sha256 of the image file"),
    "mask_sha256": ("sc:Text", "sha256 of the mask file"),
}


def describe(manifest: dict, sha256: str, published: date | None = None) -> dict:
    """The content of croissant.json for a manifest whose file, manifest.json, has this `sha256`.

    `published` is the day it was made, today unless given.
    """
    sources = manifest["sources"].values()
    tasks = manifest["tasks"]
    count = Counter((row["split"], row["label"]) for row in manifest["images"])
    titles = ", ".join(source["title"] for source in sources)
    pages = [source["homepage"] for source in sources if source["homepage"]]
    public = {(name, source["title"]) for name, source in manifest["sources"].items()}
    public = public <= {(name, source.title) for name, source in SOURCES.items()}
    seeds = ", ".join(f"{s['title']} by us with seed {s['seed']}" for s in sources if s["seed"] is not None)
    content = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": manifest["scenario"],
        "description": (
            f"A stream for continual visual anomaly detection: {len(tasks)} tasks of {titles}, in the order "
            f"{manifest['ordering']} ({', '.join(each['task'] for each in tasks)}). {count['train', 0]} normal "
            f"training images, {count['test', 0]} normal and {count['test', 1]} anomalous test images, listed by "
            "path and sha256. The images themselves are not part of it; get them from their owners."
        ),
        "license": list(dict.fromkeys(_licence(source["licence"]) for source in sources)),
        "url": PAPER if len(pages) > 1 else next(iter(pages), None),
        "sameAs": pages if len(pages) > 1 else None,
        "citeAs": CITE if public else None,  # of somebody's own parts the paper knows nothing
        "creator": [
            {"@type": "sc:Organization", "name": f"the owners of {source['title']}"} for source in sources
        ],
        "datePublished": (published or datetime.now(UTC).date()).isoformat(),
        "version": "1.0.0",
        "keywords": [
            "anomaly detection",
            "continual learning",
            "industrial inspection",
            manifest["ordering"],
        ],
        "isLiveDataset": False,
        "rai:dataCollection": f"Photographs of industrial parts or surfaces, as their owners describe them: {titles}.",
        "rai:dataPreprocessingProtocol": "None here: files are listed as they lie in the owners' archives.",
        "rai:dataAnnotationProtocol": (
            "Labels, kinds of defect and masks are the owners'. The split is theirs too"
            + (f", except where they have none: {seeds}." if seeds else ".")
        ),
        "rai:dataUseCases": (
            "Measuring what an anomaly detector keeps of earlier parts while it learns new ones. Training is on "
            "normal images only. Not meant for accepting or rejecting parts of a real line."
        ),
        "rai:dataLimitations": (
            "Laboratory conditions; few and often staged defects, whose share in the test sets is far above that "
            "of a real line; one fixed order of tasks. Figures do not carry over to other parts or cameras."
        ),
        "rai:dataBiases": (
            "The order of a curriculum comes from three detectors' scores, so it is difficulty for detectors of "
            "that kind. Datasets differ in size, light, resolution and care of the masks."
        ),
        "rai:personalSensitiveInformation": "None known: the images show parts, not people.",
        "rai:dataSocialImpact": "Automated inspection changes the work of inspectors; a missed defect may do harm.",
        "rai:dataReleaseMaintenancePlan": "The manifest names each file by its sha256; changed data need a new one.",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": "manifest.json",
                "name": "manifest.json",
                "description": "The manifest: one row an image.",
                "contentUrl": "manifest.json",
                "encodingFormat": "application/json",
                "sha256": sha256,
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "images",
                "name": "images",
                "description": "One record an image.",
                "field": [_field(name, kind, text) for name, (kind, text) in COLUMNS.items()],
            }
        ],
    }
    return {key: value for key, value in content.items() if value is not None}


def _licence(text: str) -> str:
    """The address of a Creative Commons licence, as Croissant prefers it; other texts as they are."""
    known = re.match(r"CC (BY[A-Z-]*) (\d\.\d)\b", text)
    return f"https://creativecommons.org/licenses/{known[1].lower()}/{known[2]}/" if known else text


def _field(name: str, kind: str, text: str) -> dict:
    return {
        "@type": "cr:Field",
        "@id": f"images/{name}",
        "name": name,
        "description": text,
        "dataType": kind,
        "source": {"fileObject": {"@id": "manifest.json"}, "extract": {"jsonPath": f"$.images[*].{name}"}},
    }
