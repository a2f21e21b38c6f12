"""Verdicts, prompts and samples of kernelrl for trainers in Python. Standard library only.

with kernelrl.local() as client:
    job = client.verify("level1/1_ReLU", source)
"""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

Job = Dict[str, Any]
Problem = Union[str, Dict[str, str]]
Messages = List[Dict[str, str]]
BATCH = 1000  # requests that the server takes at once
WAIT_S = 50  # of one long poll


class Error(Exception):
    """The server refused a request. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """Asks a server for verdicts. Any number of threads may share one."""

    def __init__(self, url: str = "http://127.0.0.1:8000", key: Optional[str] = None, tries: int = 8) -> None:
        self.url, self.key, self.tries = url.rstrip("/"), key, tries

    def call(self, method: str, path: str, body: Any = None, idempotency_key: Optional[str] = None) -> Any:
        """One request. It is repeated while the server is busy (429, 503) or cannot be reached."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        for attempt in range(self.tries):
            pause = min(30.0, 0.25 * 2**attempt)
            request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=WAIT_S + 30) as reply:
                    return json.load(reply)
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                if error.code not in (429, 503) or attempt == self.tries - 1:
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        text = json.loads(text)["error"]["message"]
                    raise Error(error.code, text) from None
                pause = float(error.headers.get("retry-after") or pause)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if attempt == self.tries - 1:
                    raise
            time.sleep(pause)
        raise AssertionError("tries is at least 1")

    def verify(self, problem: Problem, solution: str, **fields: Any) -> Job:
        """The verdict on one answer; fields: docs/verdict-service.md."""
        return self.verify_many([{"problem": problem, "solution": solution, **fields}])[0]

    def verify_many(self, requests: Sequence[Dict[str, Any]]) -> List[Job]:
        """The jobs of these requests, in their order. A `verdict` of None is missing: leave such an answer out."""
        jobs: List[Job] = []
        for first in range(0, len(requests), BATCH):
            jobs += self._batch(requests[first : first + BATCH])
        return jobs

    def _batch(self, requests: Sequence[Dict[str, Any]]) -> List[Job]:
        body = {"items": list(requests)}
        # A request that is repeated because its reply was lost must not be judged twice.
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode() + os.urandom(16)).hexdigest()
        name = self.call("POST", "/v1/verify/batches", body, key)["id"]
        while self.call("GET", f"/v1/verify/batches/{name}?wait={WAIT_S}")["status"] != "done":
            pass
        jobs: List[Optional[Job]] = [None] * len(requests)
        after = 0
        while True:
            page = self.call("GET", f"/v1/verify/batches/{name}/results?limit={BATCH}&after={after}")
            for job in page["data"]:
                jobs[job["index"]] = job
            after = page["next"]
            if page["done"]:
                break
        whole = [job for job in jobs if job is not None]
        if len(whole) != len(jobs):
            raise Error(410, f"{len(jobs) - len(whole)} jobs of {name} are gone")
        return whole

    def problems(self, source: Optional[str] = None) -> List[Dict[str, Any]]:
        """Keys, levels and splits of the problems."""
        query = "?" + urllib.parse.urlencode({"source": source}) if source else ""
        return self.call("GET", "/v1/problems" + query)["data"]

    def prompt(self, key: str, **query: str) -> Messages:
        """What a run shows a model first. query: config, backend, source."""
        path = "/v1/problems/" + urllib.parse.quote(key) + "/prompt"
        return self.call("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))["messages"]

    def chat(self, messages: Messages, **fields: Any) -> List[str]:
        """The texts of the n answers of a model that is served beside the verdicts. fields: docs/serving.md."""
        choices = self.call("POST", "/v1/chat/completions", {"messages": messages, **fields})["choices"]
        return [choice["message"]["content"] for choice in choices]

    def complete(self, prompt: str, **fields: Any) -> List[str]:
        """The same for a text that goes on. fields: docs/serving.md."""
        return [
            choice["text"] for choice in self.call("POST", "/v1/completions", {"prompt": prompt, **fields})["choices"]
        ]


class AsyncClient:
    """The calls of a Client, to be awaited. Up to `at_once` of them are under way in threads of its own."""

    def __init__(self, client: Client, at_once: int = 64) -> None:
        self.client = client
        self._threads = concurrent.futures.ThreadPoolExecutor(at_once, "kernelrl")

    async def _run(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*given, **named))

    async def verify(self, problem: Problem, solution: str, **fields: Any) -> Job:
        return await self._run(self.client.verify, problem, solution, **fields)

    async def verify_many(self, requests: Sequence[Dict[str, Any]]) -> List[Job]:
        return await self._run(self.client.verify_many, requests)

    async def problems(self, source: Optional[str] = None) -> List[Dict[str, Any]]:
        return await self._run(self.client.problems, source)

    async def prompt(self, key: str, **query: str) -> Messages:
        return await self._run(self.client.prompt, key, **query)

    async def chat(self, messages: Messages, **fields: Any) -> List[str]:
        return await self._run(self.client.chat, messages, **fields)

    async def complete(self, prompt: str, **fields: Any) -> List[str]:
        return await self._run(self.client.complete, prompt, **fields)

    def close(self) -> None:
        """Waits for the calls that are under way."""
        self._threads.shutdown()


def reward_of(job: Job) -> Optional[float]:
    """What the answer is paid; None where the verdict is missing, which is never zero."""
    return job["reward"]["total"] if job["reward"] else None


@contextlib.contextmanager
def local(*flags: str, program: str = "kernelrl", model: Optional[str] = None) -> Iterator[Client]:
    """A server of its own, on a free port, for as long as the block runs. model: is served, too. flags: of `serve`."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+", encoding="utf-8") as log:
        what = ["--model", model, "--verify"] if model else ["--verify-only"]
        command = [program, "serve", *what, "--port", "0", "--jobs", f"{folder}/jobs.sqlite", *flags]
        with subprocess.Popen(command, stderr=log) as process:
            try:
                yield Client(_address(process, log.name))
            finally:
                process.terminate()


def _address(process: "subprocess.Popen[bytes]", log: str) -> str:
    for _ in range(1200):
        with open(log, encoding="utf-8", errors="replace") as f:
            said = f.read()
        found = re.search(r" is ready at (http://\S+)/v1", said)
        if found:
            return found[1]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {said[-500:]}")
        time.sleep(0.05)
    raise RuntimeError("the server is not ready after a minute")
