"""The queue of a server that judges, in Chromium, while answers wait: dashboard_queue.py URL KEY RUN [PICTURES].

Prints a line "ok NAME" or "not ok NAME: WHY" a check. With PICTURES, a screenshot goes to that folder."""

import json
import os
import sys
import urllib.request

from chromium import Browser, check
from verify_lines import GOOD

url, key, run = sys.argv[1:4]
SAID = "(document.getElementById('server-queue') || {textContent: ''}).textContent"


def ask(method, path, body=None):
    headers = {"content-type": "application/json", "authorization": "Bearer " + key}
    r = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers, method=method)
    with urllib.request.urlopen(r, timeout=120) as f:
        return json.load(f)


def main():
    b = Browser("--window-size=1280,700", "--user-data-dir=" + os.environ["PROFILE"])

    def nothing():
        b.show(url, "")
        b.js(
            "document.getElementById('key').value = arguments[0]; document.querySelector('main form button').click()",
            key,
        )
        b.wait(f"return {SAID}.startsWith('Nothing waits.')", "an empty queue behind the key")

    def waiting(batch):
        b.wait(f"return /^[1-9]\\d* judged now, [1-9][\\d,]* waiting/.test({SAID})", "answers that wait")
        b.call("POST", "/url", {"url": f"{url}/dashboard#/{run}/queue"})
        b.wait(f"return location.hash.endsWith('/queue') && / waiting /.test({SAID})", "the same beside a run's")
        if len(sys.argv) > 4:
            b.picture(os.path.join(sys.argv[4], "dashboard-queue.png"))
        ask("DELETE", "/v1/verify/batches/" + batch)
        b.wait(f"return {SAID}.startsWith('Nothing waits.')", "an end of it")

    try:
        check("nothing waits", nothing)
        # So many that they are not all judged before they are seen. Those that are left then are cancelled.
        options = {"measure": False, "trials": 2}
        items = [{"problem": "level1/1_ReLU", "solution": f"{GOOD}// {i}", "options": options} for i in range(1000)]
        batch = ask("POST", "/v1/verify/batches", {"items": items})["id"]
        check("answers wait, are judged, and are gone", lambda: waiting(batch))
    finally:
        b.close()


main()
