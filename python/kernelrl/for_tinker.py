"""tinker-cookbook (0.5): environments, groups of them, and a data set."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import chz
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.tokenizer_utils import get_tokenizer

from kernelrl import tasks


@dataclass(frozen=True)
class Server:
    """Who gives verdicts; unless said, KERNELRL_URL with KERNELRL_API_KEY. fields: of each request."""

    url: Optional[str] = None
    key: Optional[str] = None
    fields: Tuple[Tuple[str, Any], ...] = ()


class KernelEnv(Env):
    """One answer to one problem."""

    def __init__(self, server: Server, problem: str, messages: List[Dict[str, str]], renderer: Any) -> None:
        self.server, self.problem, self.messages, self.renderer = server, problem, messages, renderer

    async def initial_observation(self) -> Tuple[tinker.ModelInput, Any]:
        prompt = self.renderer.build_generation_prompt(self.messages)
        return prompt, self.renderer.get_stop_sequences()

    async def step(self, action: List[int], *, extra: Any = None) -> StepResult:
        """Judges the answer. Raises NoVerdict where the verdict is missing."""
        message, _ = self.renderer.parse_response(action)
        many = tasks.async_client_at(self.server.url, self.server.key)
        reply = renderers.get_text_content(message)
        job = await many.verify(self.problem, reply, extract=True, tokens=len(action), **dict(self.server.fields))
        return StepResult(
            reward=tasks.paid(job),
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self.renderer.get_stop_sequences(),
            metrics=tasks.numbers(job),
            logs={"outcome": job["verdict"]["outcome"], "message": job["verdict"]["message"]},
        )


@dataclass(frozen=True)
class KernelGroup(EnvGroupBuilder):
    """group_size environments of one problem."""

    server: Server
    row: Dict[str, Any]
    renderer: Any
    group_size: int

    async def make_envs(self) -> Sequence[Env]:
        one = (self.server, self.row["problem"], self.row["prompt"], self.renderer)
        return [KernelEnv(*one) for _ in range(self.group_size)]

    def logging_tags(self) -> List[str]:
        return ["kernelrl", f"level{self.row['level']}"]


class KernelDataset(RLDataset):
    def __init__(self, groups: List[KernelGroup], batch_size: int) -> None:
        self.groups, self.batch_size = groups, batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.groups[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.groups) // self.batch_size)


@chz.chz
class KernelDatasetBuilder(RLDatasetBuilder):
    """Problems of training, and those that are held out."""

    renderer_name: str
    model_name_for_tokenizer: str
    batch_size: int = 8
    group_size: int = 8
    url: Optional[str] = None
    key: Optional[str] = None
    keys: Optional[List[str]] = None  # of training; unless said, all of its split

    async def __call__(self) -> Tuple[KernelDataset, Optional[KernelDataset]]:
        renderer = renderers.get_renderer(self.renderer_name, tokenizer=get_tokenizer(self.model_name_for_tokenizer))
        server = Server(self.url, self.key)
        client = tasks.client_at(self.url, self.key)

        def groups(rows: Any, size: int) -> List[KernelGroup]:
            return [KernelGroup(server, row, renderer, size) for row in rows]

        train = tasks.rows(client, self.keys, None if self.keys else "train")
        held_out = [] if self.keys else groups(tasks.rows(client, None, "test"), 1)
        test = KernelDataset(held_out, self.batch_size) if held_out else None
        return KernelDataset(groups(train, self.group_size), self.batch_size), test
