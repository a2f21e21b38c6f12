"""lm-eval against a server: `serve_lm_eval.py URL KERNELRL FOLDER`, where URL is without /v1. Prints TAP."""

import json
import logging
import os
import struct
import subprocess
import sys

import lm_eval
import lm_eval.tasks
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI, LocalChatCompletion
from serve_cases import case, equal, run

URL, KERNELRL, FOLDER = sys.argv[1:4]
logging.disable(logging.WARNING)
lm = LocalCompletionsAPI(
    base_url=URL + "/v1/completions",
    model="models/tiny",
    tokenizer_backend="remote",
    batch_size=4,
    num_concurrent=2,
    auth_token=os.environ["OPENAI_API_KEY"],
)
PROMPTS = ["int main(void) {\n", "for (int i = 0; i <", "    out[i] = ", "#include <math.h>\n\nvoid kernel("]


def sampled(prompt, temperature, seed, n=12):
    """What `kernelrl sample` draws behind a prompt: text, ids, log-probabilities."""
    line = subprocess.run(
        [
            KERNELRL,
            "sample",
            "--model",
            "models/tiny",
            "--raw",
            "--json",
            "--prompt",
            prompt,
            "--max-tokens",
            str(n),
            "--temperature",
            str(temperature),
            "--seed",
            str(seed),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(line)


def bits(values):
    return [struct.pack("f", v) for v in values]


@case("the remote tokenizer")
def _():
    equal(lm.tokenizer_backend, "remote")
    assert lm.eot_token_id == lm.tok_encode("<|im_end|>")[0]
    text = "for (int i = 0; i < 8; i++)"
    equal(lm.decode_batch([lm.tok_encode(text)])[0] if hasattr(lm, "decode_batch") else text, text)


@case("log-probabilities of sampled ids are those of sampling, bit for bit")
def _():
    for seed, prompt in enumerate(PROMPTS):
        s = sampled(prompt, 1, seed)
        context = lm.tok_encode(prompt)
        reply = lm.model_call(messages=[context + s["ids"]], generate=False)
        p = reply["choices"][0]["logprobs"]
        equal(len(p["token_logprobs"]), len(context) + len(s["ids"]) + 1)  # and one that it draws
        equal(bits(p["token_logprobs"][len(context) : -1]), bits(s["logprobs"]))


def kept(s, prompt):
    """Whether the text of an answer is encoded as it was drawn; only then can lm-eval ask for the same ids."""
    return s["stop"] == "length" and lm.tok_encode(prompt + s["text"]) == lm.tok_encode(prompt) + s["ids"]


@case("loglikelihood, and whether greedy decoding would say it")
def _():
    pairs = [(t, p, sampled(p, t, seed, 4)) for p in PROMPTS for t in (0, 1) for seed in range(3)]
    pairs = [x for x in pairs if kept(x[2], x[1])]
    assert len(pairs) >= 6 and any(t == 0 for t, _, _ in pairs), len(pairs)
    requests = [Instance("loglikelihood", {}, (p, s["text"]), i) for i, (_, p, s) in enumerate(pairs)]
    for (t, _, s), (total, greedy) in zip(pairs, lm.loglikelihood(requests, disable_tqdm=True)):
        equal(total, sum(s["logprobs"]))
        if t == 0:
            assert greedy, s


@case("loglikelihood_rolling")
def _():
    text = "void kernel(const float *restrict x, float *restrict out) {\n"
    (got,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)
    ids = lm.tok_encode(text)
    p = lm.model_call(messages=[[lm.prefix_token_id] + ids], generate=False)["choices"][0]["logprobs"]
    equal(got[0] if isinstance(got, tuple) else got, sum(p["token_logprobs"][1:-1]))


@case("generate_until")
def _():
    kwargs = {"until": ["}"], "max_gen_toks": 20, "temperature": 0}
    asked = [Instance("generate_until", {}, (p, dict(kwargs)), i) for i, p in enumerate(PROMPTS)]
    for text in lm.generate_until(asked, disable_tqdm=True):
        assert "}" not in text


def write_tasks():
    rows = [{"q": f"{i} + {i} =", "a": str(2 * i), "b": str(2 * i + 1)} for i in range(20)]
    with open(f"{FOLDER}/rows.jsonl", "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {FOLDER}/rows.jsonl}}}}\ntest_split: test\n"
    os.makedirs(f"{FOLDER}/tasks", exist_ok=True)
    with open(f"{FOLDER}/tasks/choose.yaml", "w") as f:
        f.write(
            "task: choose\n" + data + "output_type: multiple_choice\ndoc_to_text: '{{q}}'\n"
            "doc_to_target: 0\ndoc_to_choice: '{{[a, b]}}'\nmetric_list: [{metric: acc}]\n"
        )
    with open(f"{FOLDER}/tasks/write.yaml", "w") as f:
        f.write(
            "task: write\n" + data + "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
            'generation_kwargs: {until: ["\\n"], max_gen_toks: 8}\nmetric_list: [{metric: exact_match}]\n'
        )


@case("tasks of twenty rows, twice the same")
def _():
    write_tasks()
    tasks = lm_eval.tasks.TaskManager(include_path=f"{FOLDER}/tasks", include_defaults=False)

    def results():
        return lm_eval.simple_evaluate(
            lm, tasks=["choose", "write"], task_manager=tasks, bootstrap_iters=0, log_samples=True, cache_requests=False
        )

    one, two = results(), results()
    equal(one["results"], two["results"])
    assert 0 <= one["results"]["choose"]["acc,none"] <= 1
    assert len(one["samples"]["choose"]) == len(one["samples"]["write"]) == 20
    for a, b in zip(one["samples"]["choose"], two["samples"]["choose"]):
        equal(a["filtered_resps"], b["filtered_resps"])


@case("chats")
def _():
    chat = LocalChatCompletion(base_url=URL + "/v1/chat/completions", model="models/tiny", num_concurrent=2)
    message = chat.apply_chat_template([{"role": "user", "content": "Say something."}])
    asked = Instance("generate_until", {}, (message, {"until": ["\n\n"], "max_gen_toks": 12}), 0)
    (text,) = chat.generate_until([asked], disable_tqdm=True)
    assert isinstance(text, str)


run()
