#!/usr/bin/env python3
"""suites_fetch.py DIR: unpacks into DIR the server tests of vLLM and of llama.cpp, which lie in source packages of
Python's index: nothing of them is kept here. Packages that are in DIR already are not fetched again."""

import hashlib
import html
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

# The package, its release, and the folders of it that are unpacked.
PACKAGES = (
    ("vllm", "0.33.0", ("/tests/entrypoints/", "/tests/__init__.py")),
    ("llama_cpp_python", "0.3.36", ("/vendor/llama.cpp/tools/server/tests/",)),
)


def index():
    """The index that pip uses."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True
    )
    if os.environ.get("PIP_INDEX_URL") or said.stdout.strip():
        return os.environ.get("PIP_INDEX_URL") or said.stdout.strip()
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def fetch(folder, package, release, wanted):
    name = f"{package}-{release}"
    archive = os.path.join(folder, name + ".tar.gz")
    page = index().rstrip("/") + "/" + package.replace("_", "-") + "/"
    with urllib.request.urlopen(page, timeout=60) as reply:
        links = [html.unescape(x) for x in re.findall(r'href="([^"]+)"', reply.read().decode())]
    link = next(x for x in links if urllib.parse.urlparse(x).path.endswith("/" + name + ".tar.gz"))
    seen = hashlib.sha256()
    with urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=600) as reply, open(archive, "wb") as out:
        while part := reply.read(1 << 20):
            out.write(part)
            seen.update(part)
    wanted_hash = urllib.parse.urlparse(link).fragment.removeprefix("sha256=")
    if wanted_hash != seen.hexdigest():
        os.unlink(archive)
        sys.exit(f"{name}: the index says sha256 {wanted_hash or 'nothing'}, and {seen.hexdigest()} came")
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.isfile() and any(w in m.name for w in wanted)]
        tar.extractall(folder, members, filter="data")
    os.unlink(archive)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for package, release, wanted in PACKAGES:
        if not os.path.isdir(os.path.join(folder, f"{package}-{release}")):
            fetch(folder, package, release, wanted)


main()
