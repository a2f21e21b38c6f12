#!/usr/bin/env bash
# kernelrl runs dashboard: what it answers, and its pages in Chromium with texts that try to be more than text.
. "$(dirname "$0")/tap.bash"
if ! command -v zstd >/dev/null || ! command -v curl >/dev/null; then
    skip "the dashboard" "there is no zstd or no curl"
    echo "1..$tap_n"
    exit 0
fi
evil='<img src=x onerror="document.title=1+1">'
run="$tmp/runs/$evil"
mkdir -p "$run" "$tmp/secret"
echo 'seed: 1' >"$run/config.yaml"
echo 'seed: 2' >"$tmp/secret/config.yaml"
ln -s "$tmp/secret" "$tmp/runs/link"
# A metric, a problem, an answer and a message of that kind; an answer of one line of a megabyte; colours of a terminal.
python3 - "$run" "$evil" <<'PY'
import json, sys
run, evil = sys.argv[1:]
odd = evil + "</pre><script>document.title=1+1</script> \x1b[31mred\x1b[0m \u202eleft "
lines = [{"step": 0, "group": 0, "sample": i, "turn": 0, "problem": evil, "text": t, "stop": "length", "tokens": 2,
          "reward": {"total": i, evil: 1}, "advantage": i, "verdict": {"outcome": evil, "class": "C",
          "passed_stage": "lint", "message": odd}, "ids": [1, 2], "logp": [-0.5, -3]}
         for i, t in enumerate([odd + "\nint a;", odd + "\nint b;", odd + "x" * 1000000])]
lines[0].update(prompt_ids=[1, 2], prompt_text=odd)
later = {**lines[0], "turn": 1}
del later["prompt_text"]  # as in runs of older versions
with open(run + "/lines", "w") as f:
    f.writelines(json.dumps(x) + "\n" for x in lines + [later])
with open(run + "/metrics.jsonl", "w") as f:
    f.writelines(json.dumps({"step": s, "reward/mean": s, "x/" + evil: s}) + "\n" for s in range(3))
PY
zstd -q "$run/lines" -o "$run/traces.jsonl.zst"

"$KRL" runs dashboard --runs-dir "$tmp/runs" --port 0 >"$tmp/url" 2>"$tmp/log" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$tmp"' EXIT
for _ in $(seq 100); do
    if [ -s "$tmp/url" ]; then break; fi
    sleep 0.1
done
url=$(sed 's,/dashboard$,,' "$tmp/url")
name=$(python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "$evil")
get() { curl -s --max-time 20 "$url$1"; }
status() { curl -s --max-time 20 -o /dev/null -w '%{http_code}' "${@:2}" "$url$1"; }

in_chromium() { # FILE: its lines "ok NAME" and "not ok NAME: WHY" are checks of ours
    while IFS= read -r line; do
        check "in Chromium: ${line#*ok }" test "${line%% *}" = ok
    done <"$1"
}

check "the page allows no script but its own" sh -c "curl -si '$url/dashboard' |
    grep -qi \"^content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'\""
check "the run is listed, and the link is not" sh -c "curl -s '$url/api/runs' | grep -q 'onerror' && ! curl -s '$url/api/runs' | grep -q link"
check "a link is no run" test "$(status /api/runs/link)" = 404
check "a path is no run" test "$(status /api/runs/..%2Fsecret)" != 200
check "nobody's page may ask in another name" test "$(status /api/runs -H 'Host: evil.example')" != 200
check "nothing can be written" test "$(status /api/runs -X POST -d '{}')" = 405
check "a bound that is no number is refused" test "$(status "/api/runs/$name/episodes?step_from=x")" = 400
check "answers are counted" sh -c "curl -s '$url/api/runs/$name/episodes?limit=1' | grep -q '\"total\":4,\"matches\":4'"
check "a search finds letters that JSON escapes" sh -c "curl -s -G '$url/api/runs/$name/episodes' --data-urlencode 'text=\"document.title=1+1\"' |
    grep -o '\"sample\"' | wc -l | grep -qx 4"

check "a page to share" "$KRL" runs export "$evil" --runs-dir "$tmp/runs" --html "$tmp/shared.html" --csv "$tmp/shared.csv"
check "it holds no tag of others" sh -c "! grep -qE '<(img|script)' '$tmp/shared.html'"
check "one of answers that are chosen" "$KRL" runs export "$evil" --runs-dir "$tmp/runs" --html "$tmp/chosen.html" --filter 'reward_min=1&text=int+b'
check "has those alone" sh -c "grep -q '<td>0/0/1/0</td>' '$tmp/chosen.html' && ! grep -q '<td>0/0/[02]/' '$tmp/chosen.html'"
check "and a table of metrics" sh -c "head -1 '$tmp/shared.csv' | grep -q '^step,.*reward/mean'"
refuses "nothing is asked for" 2 'expected --html FILE or --csv FILE' "$KRL" runs export x
refuses "a choice that is none" 2 'reward_min: expected a number' "$KRL" runs export "$evil" --runs-dir "$tmp/runs" --html "$tmp/x.html" --filter reward_min=x
refuses "a choice for no page" 2 'choose answers for --html' "$KRL" runs export x --csv "$tmp/x.csv" --filter class=H
refuses "a run that is not there" 1 'no run "x"' "$KRL" runs export x --runs-dir "$tmp/runs" --html "$tmp/x.html"

if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    skip "pages in Chromium" "there is no chromium or no chromedriver; tools/setup browser installs them"
else
    tools/make_run "$tmp/runs/plain" --episodes 640 --steps 20
    HOME=$tmp SHARED=$tmp/shared.html PROFILE=$tmp/chromium PLAIN_DIR=$tmp/runs/plain timeout 500 \
        python3 tests/e2e/dashboard_browser.py "$url" "$evil" plain >"$tmp/browser" 2>&1
    check "the pages were looked at to the end" test $? = 0
    in_chromium "$tmp/browser"
    rm -rf "$tmp/runs/plain"
fi

rm -rf "$run"
check "a run that vanished is gone" test "$(status "/api/runs/$name")" = 404
check "and the server goes on" test "$(get /api/runs)" = '{"runs":[]}'
kill -TERM $server
wait $server
check "SIGTERM ends it well" test $? = 0

# The same page beside a model and verdicts, behind their key.
mkdir -p "$tmp/runs/served"
echo 'seed: 1' >"$tmp/runs/served/config.yaml"
"$KRL" serve --model models/tiny --verify --jobs "$tmp/jobs.sqlite" --dashboard "$tmp/runs" --api-key sesame --port 0 \
    --access-log off 2>"$tmp/serve" &
server=$!
for _ in $(seq 300); do
    if grep -qs 'is ready at' "$tmp/serve"; then break; fi
    sleep 0.1
done
url=$(sed -n 's,.*is ready at \(http.*\)/v1$,\1,p' "$tmp/serve")
check "serve --dashboard: the page is there for everybody" test "$(status /dashboard)" = 200
check "serve --dashboard: no run without the key" test "$(status /api/runs)" = 401
check "serve --dashboard: runs with the key" sh -c "curl -s -H 'Authorization: Bearer sesame' '$url/api/runs' | grep -q '\"name\":\"served\"'"
check "serve --dashboard: and the model" test "$(status /v1/models -H 'Authorization: Bearer sesame')" = 200
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    HOME=$tmp PROFILE=$tmp/chromium timeout 200 python3 tests/e2e/dashboard_queue.py "$url" sesame served >"$tmp/browser" 2>&1
    check "serve --verify --dashboard: the queue was looked at to the end" test $? = 0
    in_chromium "$tmp/browser"
fi
kill -TERM $server
wait $server
check "serve --dashboard: SIGTERM ends it well" test $? = 0
echo "1..$tap_n"
