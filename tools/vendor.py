"""Bring the scripts that the pages need, MathJax and the widget viewer, into build/vendor: the book then
reads without a network.

    python tools/vendor.py [FOLDER]        (FOLDER: build/vendor beside this script's folder)

The scripts come from the npm registry as pinned tarballs whose sha256 is checked; nothing in them is run.
Without npm or its registry each script becomes a short loader of the same name that points to a public CDN:
_config.yml stays as it is, the book builds, and its readers need a network for formulas and sliders. A note
says so, and the next call tries npm again.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# package@version: sha256 of its tarball, and which of its files go where
PACKAGES = {
    "mathjax@3.2.2": (
        "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09",
        {"es5/tex-svg-full.js": "mathjax/tex-svg-full.js", "LICENSE": "mathjax/LICENSE"},
    ),
    "@jupyter-widgets/html-manager@1.0.15": (
        "2b9d65cb7913e1c7d671757a10008b32c9c2448d4429513371e55c07d6107638",
        {
            "dist/embed.js": "widgets/embed.js",
            "dist/embed.js.LICENSE.txt": "widgets/embed.js.LICENSE.txt",
            # the icons of Play and friends: embed.js looks for them beside itself
            "dist/1551f4f60c37af51121f.woff2": "widgets/1551f4f60c37af51121f.woff2",
            "dist/7a3337626410ca2f4071.woff2": "widgets/7a3337626410ca2f4071.woff2",
            "dist/d878b0a6a1144760244f.woff2": "widgets/d878b0a6a1144760244f.woff2",
        },
    ),
}
CDN = "https://cdn.jsdelivr.net/npm/"
INTEGRITY = {  # what a browser shall accept from the CDN: the same bytes as in the tarballs
    "mathjax/tex-svg-full.js": "sha384-4kE/rQ11E8xT9QgrCBTyvenkuPfQo8rXYQvJZuMgxyPOoUfpatjQPlgdv6V5yhUK",
    "widgets/embed.js": "sha384-BhIlHV0bCNC00G3UVIEIJKhEHXPQXX90znOSkFJNUoe/L1UByfxdu2lxB3Kdgrpu",
}


class NoRegistry(Exception):
    """npm is not installed, or it could not fetch a package."""


def fetch(package: str, sha256: str, folder: Path) -> Path:
    """Download the tarball of `package` with `npm pack` and unpack it; returns the folder of its files.

    Raises NoRegistry when npm gives nothing, ValueError when it gives something else than was pinned.
    """
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=30000"]
    command += ["--pack-destination", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        tarball = folder / done.stdout.split()[-1]
        content = tarball.read_bytes()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise NoRegistry(f"npm pack {package}: {type(error).__name__}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{package}: sha256 {found}, expected {sha256}; nothing was installed")
    unpacked = folder / tarball.stem
    with tarfile.open(tarball) as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked / "package"


def loader(address: str, integrity: str) -> str:
    """A script that loads the script at `address` in its own place."""
    options = json.dumps({"src": address, "integrity": integrity, "crossOrigin": "anonymous"})
    return (
        "// Made without the npm registry: this page needs a network for the script below.\n"
        f"document.head.append(Object.assign(document.createElement('script'), {options}));\n"
    )


def gather(folder: Path) -> str:
    """Fill `folder` with every asset; returns where they came from, "npm" or "cdn"."""
    origin = "npm"
    with tempfile.TemporaryDirectory() as downloads:
        try:
            sources = {
                package: fetch(package, sha256, Path(downloads)) for package, (sha256, _) in PACKAGES.items()
            }
        except NoRegistry as reason:
            print(
                f"vendor: {reason}. The pages will load MathJax and widgets from {CDN}: not readable offline."
            )
            origin, sources = "cdn", {}
        for package, (_, files) in PACKAGES.items():
            for source, name in files.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if origin == "npm":
                    shutil.copyfile(sources[package] / source, target)
                elif name in INTEGRITY:
                    target.write_text(loader(f"{CDN}{package}/{source}", INTEGRITY[name]))
    for script in (HERE / "js").glob("*.js"):
        shutil.copyfile(script, folder / "widgets" / script.name)
    return origin


def main(folder: Path) -> None:
    """Make `folder`/vendor complete, at once when it already is, and never leave half of it there."""
    scripts = sorted((HERE / "js").glob("*.js"))
    wanted = {"origin": "npm", "packages": {package: sha256 for package, (sha256, _) in PACKAGES.items()}}
    wanted["scripts"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in scripts}
    target, record = folder / "vendor", folder / "vendor" / "assets.json"
    if record.is_file() and json.loads(record.read_text()) == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".vendor-", dir=folder))
    try:
        origin = gather(temporary)
        (temporary / record.name).write_text(json.dumps({**wanted, "origin": origin}, indent=1))
        temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"vendor: browser scripts in {target} ({origin})")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "build" / "vendor")
    except (ValueError, OSError) as error:
        sys.exit(f"vendor: {error}")
