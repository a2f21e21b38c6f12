"""A server that speaks a little of the OpenAI API, for tests of clients of such servers. What it does stands in
the request's model: "good" gives max_tokens pieces, one every PACE seconds; "late" begins after 0.2 seconds; the
others fail
in ways of their own. The port comes on standard output; the server ends when its standard input does.

Usage: fake_openai.py [PACE]"""

import http.server
import json
import socket
import sys
import threading
import time

PACE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.002


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def whole(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def piece(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, body):
        self.piece("data: " + (body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))) + "\n\n")

    def do_GET(self):
        self.whole(200, {"object": "list", "data": [{"id": "good", "object": "model"}]})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":  # a token every four characters
            words = q["prompt"]
            return self.whole(200, {"tokens": [100 + i % 50 for i in range(0, len(words), 4)]})
        if self.headers.get("authorization") != "Bearer secret":
            return self.whole(401, {"error": {"message": "no key", "type": "authentication_error"}})
        if q["model"] == "full":
            return self.whole(429, {"error": {"message": "the queue is full", "type": "rate_limit_error"}})
        if q["model"] == "late":
            time.sleep(0.2)
        chat = self.path == "/v1/chat/completions"
        n = q["max_completion_tokens" if chat else "max_tokens"]
        usage = {"prompt_tokens": 7 if chat else len(q["prompt"]), "completion_tokens": n, "total_tokens": 7 + n}
        words = [f"{q.get('seed', 0)}-{i} " for i in range(n)]
        if q.get("stream"):
            return self.stream(q["model"], chat, words, usage)
        text = "".join(words) + ("!" if q["model"] == "fickle" else "")
        choice = {"index": 0, "finish_reason": "length"}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        self.whole(200, {"choices": [choice], "usage": usage})

    def stream(self, model, chat, words, usage):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.piece(": ping\n\n")
        if chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None})
            time.sleep(0.05)  # no token yet
        for i, word in enumerate(words):
            if i == 2 and model == "breaks":
                self.event({"error": {"message": "the engine has failed"}})
                break
            if i == 2 and model == "hangs up":
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            part = {"delta": {"content": word}} if chat else {"text": word}
            self.event({"choices": [{"index": 0, **part, "finish_reason": None}], "usage": None})
            time.sleep(PACE)
        if model != "breaks":
            self.event({"choices": [], "usage": usage})
        self.event("[DONE]")
        self.piece("")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
