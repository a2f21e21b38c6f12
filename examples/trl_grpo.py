#!/usr/bin/env python3
"""examples/trl_grpo.py: trains the embedded model with TRL's GRPOTrainer on verdicts of kernelrl.

Prompts, rewards and update are those with which `kernelrl train --config configs/quickstart.yaml` does it. It needs
`pip install trl`, and PYTHONPATH=python where the package kernelrl is not installed."""

import argparse
import contextlib
import os
import shutil

import torch
import transformers
import trl

import kernelrl
from kernelrl import for_trl

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "pre_split.txt")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="models/tiny", help="a folder with a model")
    p.add_argument("--output", default="runs/trl", help="the trained model is written there")
    p.add_argument("--url", help="a server of verdicts; unless said, one is started")
    p.add_argument("--program", default="build/kernelrl", help="what starts it")
    p.add_argument("--config", default="configs/quickstart.yaml", help="how it judges and pays")
    p.add_argument("--keys", nargs="*", help="of problems; unless said, all of training")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--prompts", type=int, default=8, help="problems a step")
    p.add_argument("--group", type=int, default=8, help="answers a problem")
    p.add_argument("--rows", type=int, default=16, help="answers in a forward pass; prompts x group in such parts")
    p.add_argument("--max-tokens", type=int, default=768)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


@contextlib.contextmanager
def verdicts(o):
    if o.url:
        yield kernelrl.Client(o.url, os.environ.get("KERNELRL_API_KEY"))
        return
    flags = ("--verify-config", o.config, "--access-log", "off")
    with kernelrl.local(*flags, program=o.program) as client:
        yield client


def settings(o):
    return trl.GRPOConfig(
        output_dir=o.output,
        max_steps=o.steps,
        per_device_train_batch_size=min(o.rows, o.prompts * o.group),
        gradient_accumulation_steps=max(1, o.prompts * o.group // o.rows),
        num_generations=o.group,
        max_completion_length=o.max_tokens,
        chat_template_kwargs={"enable_thinking": False},
        temperature=1.0,
        max_grad_norm=1.0,
        loss_type="dapo",  # the normaliser counts tokens
        scale_rewards="group",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=o.seed,
    )


def update(model):
    """The update of configs/quickstart.yaml, which says why: the rate is half in the first step, then whole."""
    adam = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), eps=1e-2, weight_decay=0.0)
    return adam, torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min(1.0, (step + 1) / 2))


def main():
    o = options()
    model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(o.model)
    with verdicts(o) as client:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=for_trl.reward(client),
            args=settings(o),
            train_dataset=for_trl.dataset(client, o.keys, **({} if o.keys else {"split": "train"})),
            processing_class=tokenizer,
            optimizers=update(model),
        )
        trainer.train()
    trainer.save_model(o.output)
    for name in TOKENIZER:  # byte for byte, since transformers writes them anew
        if os.path.exists(os.path.join(o.model, name)):
            shutil.copyfile(os.path.join(o.model, name), os.path.join(o.output, name))
    trainer.state.save_to_json(os.path.join(o.output, "trainer_state.json"))
    print(f"kernelrl eval model_name={o.output} num_samples=4 says what was learnt")


if __name__ == "__main__":
    main()
