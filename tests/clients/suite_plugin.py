"""A plugin of pytest: server tests of vLLM and of llama.cpp meet `kernelrl serve` at $SUITE_URL. What they import of vLLM
and torch is replaced, and so is what would start their own server or fetch a model. Tests that $SUITE_SKIPS names are
skipped, each for its reason, and so are those that look at the other program's own classes without a server."""

import fnmatch
import importlib.abc
import importlib.machinery
import os
import sys
import types
from unittest.mock import MagicMock

import openai
import pytest

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


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("get_tokenizer", "cached_get_tokenizer"):
            return get_tokenizer
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


sys.meta_path.insert(0, Finder())
if os.path.isdir("tests/entrypoints"):  # vLLM's
    utils = sys.modules["tests.utils"] = Stub("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
else:
    os.environ.update(DEBUG_EXTERNAL="1", PORT=str(RemoteOpenAIServer.port))
    sys.path.insert(0, os.getcwd())
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)


def skips():
    for line in open(os.environ["SUITE_SKIPS"]):
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.rstrip("\n").split(None, 1)
            yield pattern, reason


def pytest_collection_modifyitems(items):
    known = list(skips())
    for item in items:
        source = set(item.fixturenames) | set(item.function.__code__.co_names)
        if not source & {"client", "server", "async_client", "RemoteOpenAIServer"}:
            item.add_marker(pytest.mark.skip("it meets no server"))
        for pattern, reason in known:
            # Parameters may hold brackets, which are patterns, too.
            if fnmatch.fnmatchcase(item.nodeid.split("::", 1)[1].replace("[", "("), pattern.replace("[", "(")):
                item.add_marker(pytest.mark.skip(reason))
                break
