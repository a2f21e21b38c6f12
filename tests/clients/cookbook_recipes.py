"""Recipes of tinker_cookbook, unchanged, against a server of this program: `cookbook_recipes.py RECIPE FOLDER`. Their
data sets are replaced by small ones with the same columns; the address and the key are in the environment. Prints, as
JSON, what the recipe wrote into its metrics."""

import asyncio
import json
import os
import sys

import datasets

RECIPE, FOLDER = sys.argv[1:3]
MODEL = "Qwen/Qwen3-8B"


def rows(n):
    """n sums, each with its parts."""
    return [(3 + i, 4 + 2 * i, 7 + 3 * i) for i in range(n)]


def gsm8k(a, b, c):
    return {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {c}\n#### {c}"}


def no_robots(a, b, c):
    said = [{"role": "user", "content": f"{a} + {b}?"}, {"role": "assistant", "content": f"{c}"}]
    return {"prompt": said[0]["content"], "prompt_id": str(a), "messages": said, "category": "Open QA"}


def hh_rlhf(*_):
    """The same pair each time, so that each step is seen in the next one's margin."""
    a, b, c = rows(1)[0]
    begin = f"\n\nHuman: What is {a} + {b}?\n\nAssistant:"
    return {"chosen": f"{begin} {c}", "rejected": f"{begin} {c + 1}"}


SETS = {"openai/gsm8k": gsm8k, "HuggingFaceH4/no_robots": no_robots, "Anthropic/hh-rlhf": hh_rlhf}


def load_dataset(name, *_, split=None, **__):
    def part(n):
        return datasets.Dataset.from_list([SETS[name](*row) for row in rows(n)])

    found = datasets.DatasetDict({"train": part(16), "test": part(4)})
    return found[split] if split else found


datasets.load_dataset = load_dataset


def math_rl():
    from tinker_cookbook.recipes.math_rl import train

    config = train.CLIConfig(
        model_name=MODEL,
        env="arithmetic",
        lora_rank=8,
        group_size=4,
        groups_per_batch=4,
        learning_rate=1e-3,
        max_tokens=5,
        max_steps=2,
        eval_every=0,
        save_every=1,
        kl_penalty_coef=0.0,
        compute_post_kl=True,
        log_path=FOLDER,
        behavior_if_log_dir_exists="resume",
    )
    asyncio.run(train.cli_main(config))


def rl_loop():
    from tinker_cookbook.recipes import rl_loop as recipe

    recipe.main(
        recipe.Config(
            model_name=MODEL,
            batch_size=2,
            group_size=4,
            lora_rank=8,
            max_tokens=24,
            max_steps=2,
            save_every=1,
            log_path=FOLDER,
        )
    )


def sl_loop(steps):
    from tinker_cookbook.recipes import sl_loop as recipe

    recipe.main(
        recipe.Config(
            model_name=MODEL,
            batch_size=4,
            lora_rank=8,
            learning_rate=1e-3,
            max_length=512,
            max_steps=steps,
            save_every=1,
            log_path=FOLDER,
        )
    )


def dpo():
    from tinker_cookbook.recipes.preference.dpo import train

    train.cli_main(
        train.CLIConfig(
            model_name=MODEL,
            dataset="hhh",
            batch_size=4,
            learning_rate=1e-3,
            max_length=512,
            max_steps=3,
            log_path=FOLDER,
            behavior_if_log_dir_exists="resume",
        )
    )


def kernels():
    """rl.train on our problems and verdicts; the server gives both. KERNEL_STEPS: so many steps, instead of two."""
    from kernelrl.for_tinker import KernelDatasetBuilder
    from tinker_cookbook.rl import train

    keys = ["level1/1_ReLU", "level1/2_LeakyReLU"] * int(os.environ.get("KERNEL_STEPS", "2"))
    data = KernelDatasetBuilder(
        renderer_name="qwen3_instruct",
        model_name_for_tokenizer=MODEL,
        batch_size=2,
        group_size=8,
        url=os.environ["TINKER_BASE_URL"],
        key=os.environ["TINKER_API_KEY"],
        keys=keys,
    )
    config = train.Config(
        learning_rate=1e-3,
        dataset_builder=data,
        model_name=MODEL,
        recipe_name="kernels",
        renderer_name="qwen3_instruct",
        lora_rank=8,
        max_tokens=400,
        log_path=FOLDER,
        eval_every=0,
        save_every=0,
    )
    asyncio.run(train.main(config))


RECIPES = {
    "kernels": kernels,
    "math_rl": math_rl,
    "rl_loop": rl_loop,
    "sl_loop": lambda: sl_loop(2),
    "sl_loop_resumed": lambda: sl_loop(3),
    "dpo": dpo,
}
RECIPES[RECIPE]()
with open(os.path.join(FOLDER, "metrics.jsonl"), encoding="utf-8") as file:
    print(json.dumps([json.loads(line) for line in file]))
