"""Chromium without a window, through its driver: what tests and measurements of pages share. The caller has looked for
chromium and chromedriver."""

import base64
import json
import subprocess
import time
import urllib.request

# true: the page shows what its address says
SHOWN = "document.getElementById('content').dataset.shown === (location.hash || '#/')"


def check(name, step):
    """Prints "ok NAME", or "not ok NAME: WHY" where the step fails or returns what is wrong."""
    try:
        wrong = step()
    except Exception as e:  # whatever it is, the check has failed and the next one is made
        wrong = str(e)
    print(f"not ok {name}: {str(wrong)[:300]}" if wrong else f"ok {name}", flush=True)


class Browser:
    def __init__(self, *arguments):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        port = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                port = line.split("port")[-1].strip(" .\n")
                break
        self.base = f"http://127.0.0.1:{port}/session"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": flags, "binary": "/usr/bin/chromium"}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        self.base += "/" + self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        r = urllib.request.Request(self.base + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(r, timeout=120) as f:
                return json.load(f)["value"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(json.load(e)["value"]["message"]) from e

    def js(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def open(self, address):
        self.call("POST", "/url", {"url": "about:blank"})  # so that the page begins anew
        self.call("POST", "/url", {"url": address})

    def show(self, url, place):
        """Shows a place of the dashboard, and waits until it is there."""
        self.open(url + "/dashboard" + place)
        self.wait("return " + SHOWN, place)

    def wait(self, script, what):
        for _ in range(300):  # half a minute: no machine is so busy
            if self.js(script):
                return
            time.sleep(0.1)
        raise RuntimeError("never came: " + what)

    def key(self, key):
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": keys}]})

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def cdp(self, command, **params):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def picture(self, path):
        """Of the whole page, as far as it is not too long."""
        height = self.js("return Math.min(1100, Math.max(400, document.documentElement.scrollHeight))")
        width = self.js("return innerWidth")
        self.size(width, height)
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("GET", "/screenshot")))

    def complaints(self):
        return [x["message"] for x in self.call("POST", "/se/log", {"type": "browser"}) if x["level"] == "SEVERE"]

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
