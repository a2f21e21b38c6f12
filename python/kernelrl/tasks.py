"""What the adapters to frameworks share: tasks as rows, and jobs as numbers. Standard library only."""

import functools
import os
from typing import Any, Dict, Iterator, Optional, Sequence

from kernelrl import AsyncClient, Client, Job, reward_of


class NoVerdict(Exception):
    """The verifier or the problem failed. Nothing may be learnt from such an answer: it is not a bad one."""


@functools.lru_cache(maxsize=None)
def client_at(url: Optional[str] = None, key: Optional[str] = None) -> Client:
    """The client of a server; unless said, of KERNELRL_URL with KERNELRL_API_KEY."""
    url = url or os.environ.get("KERNELRL_URL", "http://127.0.0.1:8000")
    return Client(url, key or os.environ.get("KERNELRL_API_KEY"))


@functools.lru_cache(maxsize=None)
def async_client_at(url: Optional[str] = None, key: Optional[str] = None) -> AsyncClient:
    """The same to be awaited, shared by all who ask for it."""
    return AsyncClient(client_at(url, key))


def rows(
    client: Client, keys: Optional[Sequence[str]] = None, split: Optional[str] = None, **query: str
) -> Iterator[Dict[str, Any]]:
    """A row for each problem: `problem` (its key), `prompt` (messages), `level` and `split`. keys: which; split:
    "train" or "test"; query: config, backend or source, as Client.prompt takes them."""
    known = {problem["key"]: problem for problem in client.problems(query.get("source"))}
    for key in keys or known:
        one = known.get(key, {})
        if split is None or one.get("split") == split:
            prompt = client.prompt(key, **query)
            yield {"problem": key, "prompt": prompt, "level": one.get("level"), "split": one.get("split")}


def ask(problem: Any, reply: str, **fields: Any) -> Dict[str, Any]:
    """The request for a verdict on a model's whole reply."""
    return {"problem": problem, "solution": reply, "extract": True, **fields}


def paid(job: Job) -> float:
    """The reward; raises NoVerdict where it is missing."""
    reward = reward_of(job)
    if reward is None:
        raise NoVerdict((job["error"] or {}).get("message", job["status"]))
    return reward


def numbers(job: Job) -> Dict[str, float]:
    """What is worth a curve, the same keys for every verdict. An answer that is not correct has speed-up 0."""
    verdict, reward = job["verdict"], job["reward"]
    return {
        "format": float(reward["format"]),
        "compiled": float(reward["compile"]),
        "correct": float(verdict["correct"]),
        "speedup": float(verdict["speedup"] or 0),
    }


def feedback(job: Job) -> str:
    """What a model may be told about its answer before it tries again."""
    verdict = job["verdict"]
    said = f"Your kernel was judged: {verdict['outcome']}."
    if verdict["message"]:
        said += f"\n{verdict['message']}"
    if verdict["speedup"]:
        said += f"\nIt takes {verdict['kernel_ms']:.3g} ms, PyTorch {verdict['eager_ms']:.3g} ms."
    return said + "\nWrite a better one in the same format."
