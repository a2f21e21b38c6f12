"""The dashboard in Chromium, through its driver: dashboard_browser.py URL EVIL PLAIN [PICTURES].

EVIL is a run whose texts try to be more than text, PLAIN one that tools/make_run made. Prints a line "ok NAME" or
"not ok NAME: WHY" a check. With PICTURES, screenshots of PLAIN's pages go to that folder. The shell that calls it has
looked for chromium and chromedriver."""

import json
import os
import shutil
import sys
import urllib.parse

from chromium import SHOWN, Browser, check

url, evil, plain = sys.argv[1:4]
pictures = sys.argv[4] if len(sys.argv) > 4 else None
ESCAPE, ENTER = "\ue00c", "\ue007"


def text(b):
    return b.js("return document.body.innerText")


def expect(b, *words):
    seen = text(b)
    return next((f"{w!r} is not in {seen[:200]!r}" for w in words if w not in seen), None)


def place(run, page):
    return "#/" + urllib.parse.quote(run, safe="") + "/" + page


def hostile(b, page, *words):
    def step():
        b.show(url, place(evil, page))
        wrong = b.js(
            "return [document.querySelector('img') && 'an image', document.scripts.length !== 1 && 'a script',"
            "/^2/.test(document.title) && 'it ran'].filter(Boolean).join()"
        )
        return wrong or expect(b, *words) or "".join(x for x in b.complaints() if "404" not in x)

    check("hostile text: " + page, step)


def fits(b, page):
    """Nothing but what scrolls by itself is wider than the window."""

    def step():
        b.show(url, place(plain, page) if page else "")
        return b.js(
            "return document.documentElement.scrollWidth > innerWidth ? document.documentElement.scrollWidth : null"
        )

    check(f"400 pixels wide: {page or 'runs'}", step)


CONTRAST = """
const light = (c) => {
  const v = c.map((x) => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const rgb = (t) => t.match(/[\\d.]+/g).map(Number);
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  if (e.closest('svg')) continue;
  const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) return e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40) + ' ' + ratio.toFixed(2);
}
for (const e of document.querySelectorAll('button, a, input, select'))
  if (!(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label')))
    return 'no name: ' + e.outerHTML.slice(0, 90);
return document.querySelectorAll('h1').length === 1 ? null : 'not one h1';
"""


def readable(b, page, theme):
    def step():
        b.show(url, place(plain, page) if page else "")
        b.js("document.documentElement.dataset.theme = arguments[0]", theme)
        if pictures:
            b.picture(os.path.join(pictures, f"dashboard-{page.split('/')[0].split('?')[0] or 'runs'}-{theme}.png"))
        return b.js(CONTRAST)

    check(f"names and contrast, {theme}: {page or 'runs'}", step)


def keys(b):
    def at(name, *pressed, end):
        def step():
            for k in pressed:
                b.key(k)
            b.wait(f"return ({end})", f"{end} behind {' '.join(pressed)}, at {b.js('return location.hash')}")

        check("key " + name, step)

    shown = "document.getElementById('content').dataset.shown === location.hash && "
    b.show(url, "")
    at("j, Enter: the first run", "j", ENTER, end=shown + "location.hash.endsWith('/overview')")
    for i, page in enumerate(["metrics", "episodes", "best", "queue"]):
        at(f"{i + 3}: {page}", str(i + 3), end=shown + f"location.hash.endsWith('/{page}')")
    at("1: the runs", "1", end=shown + "location.hash === '#/'")
    b.show(url, place(plain, "episodes"))
    at("j, j, k", "j", "j", "k", end="document.querySelector('tr.here') === document.querySelector('tbody tr')")
    at("/: the search", "/", end="document.activeElement.id === 'search'")
    at("letters are letters where one types", "j", "g", end="document.activeElement.value === 'jg'")
    b.show(url, place(plain, "episodes"))
    at("Enter opens an answer", "j", ENTER, end=shown + "location.hash.includes('/episode/')")
    for k, part in [("d", "diff=0"), ("d", "diff=1"), ("t", "tokens=1"), ("r", "raw=1"), ("t", "raw=1")]:
        at(f"{k}: {part}", k, end=shown + f"location.hash.includes('{part}')")
    first = b.js("return location.hash.split('?')[0]")
    at("k: the answer before", "k", end=shown + f"!location.hash.startsWith('{first}')")
    at("j: and back", "j", end=shown + f"location.hash.startsWith('{first}')")
    at("g: its group", "g", end=shown + "location.hash.includes('/group/')")
    at("Esc: the answers", ESCAPE, end=shown + "location.hash.endsWith('/episodes')")
    at("Esc: the overview", ESCAPE, end=shown + "location.hash.endsWith('/overview')")
    at("?: the keys", "?", end="document.getElementById('keys').open")
    at("Esc closes them", ESCAPE, end="!document.getElementById('keys').open")
    b.show(url, place(evil, "episode/0/0/0/0"))
    at("]: the next turn", "]", end=shown + "location.hash.endsWith('/0/1')")
    at("[: and back", "[", end=shown + "location.hash.endsWith('/0/0')")
    at("g of it", "g", end=shown + "location.hash.includes('/group/')")
    b.js("navigator.clipboard.writeText = (t) => { window.copied = t; return Promise.resolve(); }")
    at("y: the link", "y", end="window.copied === location.href")


def clicks(b):
    def cheats():
        b.show(url, place(plain, "episodes"))
        b.js("document.getElementById('cheats').click()")
        b.wait(
            "return location.hash.includes('class=H') && " + SHOWN + " && document.querySelector('tbody tr')",
            "cheats",
        )
        return b.js(
            "return [...document.querySelectorAll('tbody tr')].find((r) => !r.textContent.includes('hidden_work'))"
        )

    def by_time():
        b.show(url, place(plain, "metrics") + "?by=time")
        return expect(b, " min", "reward/mean")

    def lint():
        b.js("document.querySelector('a.row').click()")
        b.wait("return document.querySelector('pre .note')", "a finding")
        seen = b.js("return document.querySelector('pre .note').parentNode.textContent")
        return None if "{  \u2190 static_state" in seen else "not its line"

    def prompt():
        b.show(url, place(plain, "group/19/0"))
        b.js("document.querySelector('#prompt summary').click()")
        cut = b.js("return document.querySelector('#prompt pre').textContent.length")
        b.js("document.getElementById('all-of-prompt').click()")
        seen = b.js("return document.querySelector('#prompt pre').textContent")
        whole = seen.startswith("You write fast kernels in C.") and seen.endswith("x.relu()\n")
        return None if whole and cut < len(seen) and b.js("return !document.getElementById('all-of-prompt')") else seen

    def live():
        b.show(url, place(plain, "overview"))
        before = b.js("return document.querySelector('main p').textContent")
        with open(os.environ["PLAIN_DIR"] + "/metrics.jsonl", "a") as f:
            f.write('{"step": 1000, "reward/mean": 1, "progress/fraction": 1}\n')
        b.wait(f"return document.querySelector('main p').textContent !== {json.dumps(before)}", "news")

    check("cheats alone", cheats)
    check("findings stand at their lines", lambda: cheats() or lint())
    check("metrics by time", by_time)
    check("a group's prompt, in short and whole", prompt)
    check("what is new comes by itself", live)


def shared(b):
    """The page that `runs export` made of EVIL opens from disk, and its texts are text."""

    def step():
        b.open("file://" + os.environ["SHARED"])
        wrong = b.js(
            "return [document.querySelector('img') && 'an image', document.scripts.length && 'a script',"
            "/^2/.test(document.title) && 'it ran', document.querySelectorAll('svg').length || 'no curve',"
            "document.documentElement.scrollWidth > innerWidth && 'too wide'].filter((w) => w && isNaN(w)).join()"
        )
        b.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        return wrong or expect(b, "<img src=x", "<U+202E>left", "more bytes", "seed: 1") or "".join(b.complaints())

    check("a page to share, from disk", step)


def changing(b):
    """A run that is cut, becomes a link and vanishes while it is shown. Behind the last check it is gone."""
    run = os.environ["PLAIN_DIR"]
    aside, gone = run + ".aside", "document.getElementById('live').textContent === 'the run is gone'"

    def keep(name, lines):
        with open(f"{run}/{name}") as f:
            kept = f.readlines()[:lines]
        with open(f"{run}/{name}", "w") as f:
            f.writelines(kept)

    def cut():
        b.show(url, place(plain, "overview"))
        keep("metrics.jsonl", 10)
        keep("episodes.jsonl", 1 + 320)
        b.wait(
            "return document.querySelector('main p').textContent.includes('10 steps, 320 answers')", "the shorter run"
        )
        b.show(url, place(plain, "episodes"))
        return expect(b, "320 of 320 match")

    def traces_cut():
        b.show(url, place(plain, "episode/9/0/0/0"))
        os.truncate(run + "/traces.jsonl.zst", 1000)
        b.show(url, place(plain, "episode/9/0/0/0"))
        return expect(b, "This cannot be shown", "the traces have changed")

    def link():
        b.show(url, place(plain, "overview"))
        os.rename(run, aside)
        os.symlink(aside, run)
        b.wait("return " + gone, "word that the run is gone")
        b.show(url, place(plain, "overview"))
        return expect(b, "This cannot be shown", "there is no run")

    def back():
        os.unlink(run)
        os.rename(aside, run)
        b.show(url, place(plain, "overview"))
        return expect(b, "10 steps, 320 answers")

    def vanished():
        shutil.rmtree(run)
        b.wait("return " + gone, "word that the run is gone")
        b.show(url, "#/")
        return f"{plain} is still listed" if f"\n{plain}\t" in text(b) else None

    check("a run that is cut shows what is left, by itself", cut)
    check("an answer whose traces are cut", traces_cut)
    check("a run that becomes a link is gone", link)
    check("and is there again", back)
    check("a run that vanishes is gone", vanished)


def main():
    b = Browser("--window-size=1280,900", "--user-data-dir=" + os.environ["PROFILE"])
    try:
        for page, *words in [
            ["overview", "reward/mean"],
            ["metrics", "x/<img"],
            ["episodes", "4 shown"],
            ["group/0/0", "Side by side", "The prompt"],
            ["episode/0/0/0/1", "The prompt has 2 tokens"],
            ["episode/0/0/0/0?tokens=1", "⟨202e⟩", "⟨001b⟩"],
            ["episode/0/0/0/0?diff=0", "From"],
            ["episode/0/0/2/0", "xxxxxxxx", "characters"],
            ["best", "No correct answer"],
            ["queue", "judges on its own"],
        ]:
            hostile(b, page, *words)
        shared(b)
        keys(b)
        clicks(b)
        answer = "episode/19/0/0/0"
        pages = [
            "",
            "overview",
            "metrics",
            "episodes",
            "group/19/0",
            answer + "?tokens=1",
            answer + "?diff=0",
            "best",
            "queue",
        ]
        for theme in ["light", "dark"]:
            for page in pages:
                readable(b, page, theme)
        b.size(400, 800)
        for page in pages:
            fits(b, page)
        changing(b)
    finally:
        b.close()


main()
