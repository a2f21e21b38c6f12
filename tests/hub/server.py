"""A Hugging Face Hub for tests, on two ports of this machine: the hub, and the storage it redirects large files to.

    server.py ROOT

ROOT/repos/{models,datasets}/ORG/NAME/COMMIT/... are the files of a commit, ROOT/repos/.../NAME/refs.json says what
branches and tags stand for: {"main": COMMIT}. The organisation "private" wants a token, "gated" refuses every one.
ROOT/log gets a line of JSON for every request. ROOT/faults.json makes requests go wrong:

    {"id": 1, "faults": [{"path": "model", "server": "storage", "method": "GET", "times": 1, "do": "truncate"}]}

`path` is a part of the path, `times` how often the fault occurs (always, if absent); a new id starts the count again.
`do` is one of
    status    answer with "code" and "headers"
    headers   answer as usual, with "headers" instead of those of the same name
    truncate  close the connection after "bytes" of the body
    body      send "text" in place of the body
    corrupt   change one byte of the body
    norange   send everything, whatever range was asked for
    slow      wait "seconds" before every 64 KiB
The two port numbers come on standard output; the server ends when its standard input does.
"""

import hashlib
import http.server
import json
import os
import sys
import threading
import time
import urllib.parse

ROOT = sys.argv[1]
PORTS = {}
TOKEN = "hf_of_the_tests"
lock = threading.Lock()
used = {}


def is_large(name):
    return name.endswith((".safetensors", ".parquet")) or name == "tokenizer.json"


def fault(server, method, path):
    try:
        with open(os.path.join(ROOT, "faults.json")) as f:
            plan = json.load(f)
    except FileNotFoundError:
        return {}
    with lock:
        for i, one in enumerate(plan["faults"]):
            key = (plan["id"], i)
            if one["path"] not in path or one.get("server", server) != server or one.get("method", method) != method:
                continue
            if used.get(key, 0) < one.get("times", 1 << 30):
                used[key] = used.get(key, 0) + 1
                return one
    return {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        path = urllib.parse.urlsplit(self.path).path
        server = "hub" if self.server.server_port == PORTS["hub"] else "storage"
        line = {
            "server": server,
            "method": self.command,
            "path": path,
            "range": self.headers.get("Range"),
            "token": self.headers.get("Authorization") == "Bearer " + TOKEN,
            "authorization": self.headers.get("Authorization") is not None,
        }
        with lock, open(os.path.join(ROOT, "log"), "a") as f:
            f.write(json.dumps(line) + "\n")
        self.fault = fault(server, self.command, path)
        if self.fault.get("do") == "status":
            return self.reply(self.fault["code"], dict(self.fault.get("headers", {})))
        parts = urllib.parse.unquote(path).strip("/").split("/")
        raw = path.strip("/").split("/")
        if server == "storage":
            return self.send_blob(parts[-1])
        if raw[0] == "api" and raw[1] in ("models", "datasets") and raw[4] == "revision":
            return self.listing(raw[1], "/".join(parts[2:4]), urllib.parse.unquote(raw[5]))
        kind = "models"
        if parts[:2] == ["api", "resolve-cache"]:
            return self.send_small("/".join(parts[2:5]), parts[5], "/".join(parts[6:]))
        if parts[0] == "datasets":
            kind, parts, raw = "datasets", parts[1:], raw[1:]
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve(kind, "/".join(parts[:2]), urllib.parse.unquote(raw[3]), "/".join(parts[4:]))
        self.reply(404, {"X-Error-Code": "RepoNotFound"})

    def commit_of(self, kind, repo, revision):
        """The commit, or None when an error has been sent."""
        folder = os.path.join(ROOT, "repos", kind, repo)
        if repo.startswith("private/") and self.headers.get("Authorization") != "Bearer " + TOKEN:
            return self.reply(401, {"X-Error-Code": "RepoNotFound"})
        if repo.startswith("gated/"):
            return self.reply(403, {"X-Error-Code": "GatedRepo"})
        if not os.path.isdir(folder):
            known = self.headers.get("Authorization") == "Bearer " + TOKEN
            return self.reply(404 if known else 401, {"X-Error-Code": "RepoNotFound"})
        with open(os.path.join(folder, "refs.json")) as f:
            refs = json.load(f)
        commit = refs.get(revision, revision)
        if not os.path.isdir(os.path.join(folder, commit)):
            return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        return commit

    def listing(self, kind, repo, revision):
        commit = self.commit_of(kind, repo, revision)
        if not commit:
            return
        folder = os.path.join(ROOT, "repos", kind, repo, commit)
        names = []
        for base, _, files in os.walk(folder):
            names += [os.path.relpath(os.path.join(base, f), folder) for f in files]
        body = {"id": repo, "sha": commit, "siblings": [{"rfilename": n} for n in sorted(names)]}
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def resolve(self, kind, repo, revision, name):
        commit = self.commit_of(kind, repo, revision)
        if not commit:
            return
        path = os.path.join(ROOT, "repos", kind, repo, commit, name)
        if not os.path.isfile(path):
            return self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        if name == "config.json":  # as the Hub does for small files of late
            target = f"/api/resolve-cache/{kind}/{repo}/{commit}/{name}"
            return self.reply(307, {"X-Repo-Commit": commit, "Location": target}, b"Temporary Redirect")
        if not is_large(name):
            return self.send_small(kind + "/" + repo, commit, name)
        data = open(path, "rb").read()
        sha = hashlib.sha256(data).hexdigest()
        os.makedirs(os.path.join(ROOT, "storage"), exist_ok=True)
        stored = os.path.join(ROOT, "storage", sha)
        if not os.path.exists(stored):
            with open(stored + f".{threading.get_ident()}", "wb") as f:
                f.write(data)
            os.rename(f.name, stored)
        headers = {
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{sha}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"http://127.0.0.1:{PORTS['storage']}/blobs/{sha}?signature=secret",
        }
        self.reply(302, headers, b"Found. Redirecting")

    def send_small(self, repo, commit, name):
        with open(os.path.join(ROOT, "repos", repo, commit, name), "rb") as f:
            data = f.read()
        sha = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.send_data(data, {"ETag": f'W/"{sha}"', "X-Repo-Commit": commit})

    def send_blob(self, sha):
        if "signature=secret" not in self.path:
            return self.reply(403, {})
        with open(os.path.join(ROOT, "storage", sha), "rb") as f:
            data = f.read()
        self.send_data(data, {"ETag": '"of-the-storage"'})

    def send_data(self, data, headers):
        wanted = self.headers.get("Range")
        if not wanted or self.fault.get("do") == "norange":
            return self.reply(200, headers, data)
        first = int(wanted[len("bytes=") :].rstrip("-"))
        if first >= len(data):
            return self.reply(416, {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.reply(206, headers, data[first:])

    def reply(self, code, headers, body=b""):
        do = self.fault.get("do")
        if do == "headers":
            headers = {**headers, **self.fault["headers"]}
        if do == "body":
            body = self.fault["text"].encode()
        if do == "corrupt" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if do == "truncate":
            self.wfile.write(body[: self.fault.get("bytes", len(body) // 2)])
            self.close_connection = True
            return
        for i in range(0, len(body), 65536):
            if do == "slow":
                time.sleep(self.fault.get("seconds", 0.01))
            try:
                self.wfile.write(body[i : i + 65536])
            except OSError:  # the client has gone, as some tests want
                self.close_connection = True
                return


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Connections that break are part of the tests."""


def main():
    servers = {name: Server(("127.0.0.1", 0), Handler) for name in ("hub", "storage")}
    for name, one in servers.items():
        PORTS[name] = one.server_port
        threading.Thread(target=one.serve_forever, daemon=True).start()
    print(PORTS["hub"], PORTS["storage"], flush=True)
    sys.stdin.read()


main()
