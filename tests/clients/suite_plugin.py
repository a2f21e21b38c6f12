"""A plugin of pytest: server tests of vLLM and of llama.cpp meet `kernelrl serve` at $SUITE_URL. What they import of
vLLM and torch is replaced, and so is what would start their own server or fetch a model. A test that $SUITE_SKIPS
names does not apply, for the reason that stands there, and must fail; one that looks at the other program's own
classes without a server is skipped. $SUITE_RESULTS gets a line a test: a word, its name, what there is to say."""

import fnmatch
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from unittest.mock import MagicMock

import openai
import pytest
import requests

URL, KEY = os.environ["SUITE_URL"], os.environ["SUITE_KEY"]


class RemoteOpenAIServer:
    """What vLLM's tests take for a server that they have started."""

    DUMMY_API_KEY = KEY
    host = "127.0.0.1"
    port = int(URL.rsplit(":", 1)[1])
    url_root = URL

    def __init__(self, model, *args, **kwargs):
        self.model = model

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def url_for(self, *parts):
        return "/".join((URL, *parts))

    def get_client(self, **kwargs):
        return openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, **{"timeout": 600, **kwargs})

    def get_async_client(self, **kwargs):
        return openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, **{"timeout": 600, **kwargs})


def get_tokenizer(*args, **kwargs):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.environ["SUITE_MODEL"])


class ModelConfig:
    def __init__(self, *args, **kwargs):
        pass

    def get_vocab_size(self):
        with open(os.path.join(os.environ["SUITE_MODEL"], "config.json")) as f:
            return json.load(f)["vocab_size"]


def iinfo(dtype):
    """Of torch.long, which alone is asked for."""
    return types.SimpleNamespace(min=-(2**63), max=2**63 - 1)


# What the tests take from vLLM and torch by these names has a value; the rest is a mock.
VALUES = {
    "get_tokenizer": get_tokenizer,
    "cached_get_tokenizer": get_tokenizer,
    "ModelConfig": ModelConfig,
    "iinfo": iinfo,
}


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in VALUES:
            return VALUES[name]
        value = type(name, (Exception,), {}) if name.endswith("Error") else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        stubs = ("vllm", "torch", "pybase64", "PIL", "tblib", "wget")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in stubs else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


class Headers:
    """A reply's headers, whose names are alike in capitals and small letters."""

    def __set__(self, reply, value):
        reply.__dict__["headers"] = requests.structures.CaseInsensitiveDict(value)

    def __get__(self, reply, kind):
        return reply.__dict__["headers"]


sys.meta_path.insert(0, Finder())
if os.path.isdir("tests/entrypoints"):  # vLLM's
    utils = sys.modules["tests.utils"] = Stub("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
else:
    os.environ.update(DEBUG_EXTERNAL="1", PORT=str(RemoteOpenAIServer.port))
    sys.path.insert(0, os.getcwd())
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.ServerResponse.headers = Headers()


@pytest.fixture(scope="session")
def qwen3_lora_files():
    """Adapters are loaded by the server's own tests."""
    return "none"


def skips():
    for line in open(os.environ["SUITE_SKIPS"]):
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.rstrip("\n").split(None, 1)
            yield pattern, reason


def pytest_collection_modifyitems(items):
    known, used = list(skips()), set()
    for item in items:
        source = set(item.fixturenames) | set(item.function.__code__.co_names)
        if not source & {"client", "server", "server_fixture", "async_client", "RemoteOpenAIServer"}:
            item.add_marker(pytest.mark.skip("it meets no server"))
        for pattern, reason in known:
            # Parameters may hold brackets, which are patterns, too.
            if fnmatch.fnmatchcase(item.nodeid.split("::", 1)[1].replace("[", "("), pattern.replace("[", "(")):
                # It runs all the same: what is listed and passes has no reason to be listed.
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
                used.add(pattern)
                break
    unused.extend(pattern for pattern, _ in known if pattern not in used)


unused, seen = [], {}


def pytest_runtest_logreport(report):
    """Keeps what became of each test: a word, and what there is to say."""
    text = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longrepr)).replace("\r", " ")
    if report.skipped and hasattr(report, "wasxfail"):
        seen[report.nodeid] = ("listed", report.wasxfail)
    elif report.skipped:
        seen[report.nodeid] = ("skipped", report.longrepr[2].removeprefix("Skipped: "))
    elif report.failed:
        seen[report.nodeid] = ("failed", text)
    elif report.when == "call":
        seen[report.nodeid] = ("passed", "")


def pytest_sessionfinish():
    with open(os.environ["SUITE_RESULTS"], "w") as out:
        for name, (word, text) in seen.items():
            print(word, name.replace("\n", "\\n"), *text.split("\n")[:3], sep="\t", file=out)
        for pattern in unused:
            print("failed", "the pattern " + pattern, "no test of these files has such a name", sep="\t", file=out)
