#!/usr/bin/env python3
"""A stand-in for an OpenAI-compatible server: tests/remote/server.py [--answers FILE] [--log FILE] [--key KEY]

It prints its port and serves until its standard input ends. The name of the model is the script: steps with commas
between, of which the k-th request that is alike (but for its seed) gets the k-th, and all further ones the last:

    ok           an answer; its text is that of --answers, else it repeats the last message
    slow:S       the same after S seconds
    parts        the same with its content as a list of parts
    thinks       the same with its reasoning beside it
    long         an answer that was cut at its greatest length
    null         an answer without content
    429, 500 ..  an error of that status, with the shape of OpenAI's; 429:S with Retry-After: S; 429ms:M with
                 retry-after-ms: M; 429date:S with the date that is S seconds away
    detail:400   an error as FastAPI writes it; text:502 one that is no JSON
    noseed       refuses requests that have a seed; notokens those that have max_tokens
    cut          half of an answer, then the connection ends
    gone         the connection ends at once
    html, array, empty, nochoices, nomessage, broken    200 with something else than an answer
    moved        301
    echokey      401 that repeats the key

--answers FILE: a JSON list of {"when": text, "not": text, "say": [texts]}: the first whose `when` is in the last
message (and whose `not` is not) gives the answer: with a seed the one that the seed draws, else the next in turn.
--log FILE: a JSON line for each request: when it came, how many of the model were in flight, its headers and its body.
"""

import argparse
import email.utils
import hashlib
import http.server
import json
import sys
import threading
import time


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options):
        super().__init__(("127.0.0.1", 0), Handler)
        self.options = options
        self.lock = threading.Lock()
        self.seen = {}
        self.turns = {}
        self.flying = {}
        self.answers = json.load(open(options.answers)) if options.answers else []
        self.log = open(options.log, "a", buffering=1) if options.log else None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model, flies = None, False  # of the request, and whether it is in flight

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.path.endswith("/models"):
            self.reply(200, {"object": "list", "data": [{"id": "ok", "object": "model"}]})
        else:
            self.reply(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        server = self.server
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.model = json.loads(raw)["model"]
        self.flies = True
        with server.lock:
            flying = server.flying[self.model] = server.flying.get(self.model, 0) + 1
        try:
            self.serve(raw, flying)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.land()

    def land(self):
        """The request is no longer in flight: said before its reply is sent, or the next one would overtake us."""
        with self.server.lock:
            if self.flies:
                self.server.flying[self.model] -= 1
            self.flies = False

    def serve(self, raw, flying):
        server = self.server
        body = json.loads(raw)
        if server.log:
            row = {"at": time.monotonic(), "flying": flying, "headers": dict(self.headers), "path": self.path}
            with server.lock:
                server.log.write(json.dumps({**row, "body": body}) + "\n")
        if server.options.key and self.headers.get("Authorization") != "Bearer " + server.options.key:
            self.error(401, "wrong key")
            return
        if not self.path.endswith("/v1/chat/completions"):
            self.error(404, "no such path: " + self.path)
            return
        alike = json.dumps([body["model"], body["messages"]])
        with server.lock:
            count = server.seen.get(alike, 0)
            server.seen[alike] = count + 1
        steps = body["model"].split(",")
        self.step(steps[min(count, len(steps) - 1)], body)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def step(self, name, body):
        name, _, argument = name.partition(":")
        if name == "slow":
            time.sleep(float(argument))
            name = "ok"
        if name == "noseed":
            if "seed" in body:
                self.error(400, "Unsupported parameter: seed", param="seed", code="unsupported_parameter")
                return
            name = "ok"
        if name == "notokens":
            if "max_tokens" in body:
                self.error(400, "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")
                return
            name = "ok"
        if name.isdigit():
            self.error(int(name), "scripted", headers={"Retry-After": argument} if argument else {})
        elif name == "429ms":
            self.error(429, "scripted", headers={"retry-after-ms": argument})
        elif name == "429date":
            when = email.utils.formatdate(time.time() + float(argument), usegmt=True)
            self.error(429, "scripted", headers={"Retry-After": when})
        elif name == "detail":
            self.reply(int(argument), {"detail": "scripted detail"})
        elif name == "text":
            self.send(int(argument), b"scripted\ntext", "text/plain")
        elif name == "moved":
            self.send(301, b"", "text/plain", {"Location": "http://127.0.0.1:9/v1/chat/completions"})
        elif name == "echokey":
            self.error(401, "Incorrect API key provided: " + self.headers.get("Authorization", "")[7:])
        elif name == "gone":
            self.close_connection = True
            self.connection.close()
        elif name == "cut":
            text = json.dumps(self.completion("half", "stop", body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: len(text) // 2])
            self.wfile.flush()
            self.close_connection = True
        elif name in NONSENSE:
            self.send(200, NONSENSE[name].encode(), "text/html")
        else:
            self.answer(name, body)

    def answer(self, name, body):
        text = self.text_of(body)
        reply = self.completion(text, "length" if name == "long" else "stop", body)
        message = reply["choices"][0]["message"]
        if name == "parts":
            message["content"] = [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]
        if name == "thinks":
            message["reasoning_content"] = "a thought"
        if name == "null":
            message["content"] = None
        self.reply(200, reply)

    def text_of(self, body):
        prompt = body["messages"][-1]["content"]
        for number, row in enumerate(self.server.answers):
            if row.get("when", "") not in prompt or row.get("not", "\0") in prompt:
                continue
            with self.server.lock:
                turn = self.server.turns.get(number, 0)
                self.server.turns[number] = turn + 1
            if "seed" in body:
                turn = int(hashlib.sha256(f"{number} {body['seed']}".encode()).hexdigest(), 16)
            return row["say"][turn % len(row["say"])]
        return prompt

    @staticmethod
    def completion(text, finish, body):
        prompt = sum(len(m["content"]) for m in body["messages"]) // 4
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": len(text) // 4 + 1},
        }

    # ---- HTTP ------------------------------------------------------------------------------------------------------

    def error(self, status, message, headers=None, param=None, code=None):
        body = {"error": {"message": message, "type": "scripted", "param": param, "code": code}}
        self.reply(status, body, headers)

    def reply(self, status, value, headers=None):
        self.send(status, json.dumps(value).encode(), "application/json", headers)

    def send(self, status, body, kind, headers=None):
        self.land()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


NONSENSE = {
    "html": "<!DOCTYPE html>\n<html><body>Welcome to nginx</body></html>",
    "array": "[1, 2, 3]",
    "empty": '{"choices": []}',
    "nochoices": '{"object": "error", "message": "scripted trouble"}',
    "nomessage": '{"choices": [{"index": 0, "text": "x"}]}',
    "broken": '{"choices": [{"index": 0, "message": {"content": "unfinished',
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers")
    parser.add_argument("--log")
    parser.add_argument("--key")
    server = Server(parser.parse_args())
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


main()
