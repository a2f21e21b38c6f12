#!/usr/bin/env bash
# `kernelrl serve --tinker` while clients and server are killed and the network breaks calls (tinker_chaos.py), and with
# 1,000 polls, 40 models and bodies of 5 MB (tinker_load.py). LOAD_SECONDS is for how long: from 300 on the memory must
# stop growing.
. "$(dirname "$0")/../e2e/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "clients that are killed" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export KRL PYTHONPATH=tests/faults PYTHONDONTWRITEBYTECODE=1
all_hold() { # NAME COMMAND...: a test of its own in TAP; its lines stand in the log
    "${@:2}" >"$tmp/out" 2>&1 && ! grep -q "^not ok" "$tmp/out" && grep -q "^1\.\." "$tmp/out" && ok "$1" && grep "^# " "$tmp/out" ||
        { cp "$tmp/out" "$tmp/said"; not_ok "$1"; }
}
mkdir "$tmp/chaos"
all_hold "clients and server are killed, calls are cut, late and repeated: the weights of a calm run" \
    python3 tests/faults/tinker_chaos.py "$tmp/chaos" 1

ulimit -n 8192
"$KRL" serve --model models/tiny --port 0 --tinker "$tmp/state" --kv-memory 67108864 --tinker-rest 67108864 --access-log off \
    >"$tmp/log" 2>&1 &
server=$!
trap 'kill -9 $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$tmp"' EXIT
for _ in $(seq 600); do
    port=$(sed -n 's|.*is ready at http://[^:]*:\([0-9]*\)/v1.*|\1|p' "$tmp/log")
    [ -n "$port" ] && break
    sleep 0.1
done
all_hold "1,000 polls, 40 models, bodies of 5 MB: no error, bounded memory" \
    python3 tests/faults/tinker_load.py "$port" $server "${LOAD_SECONDS:-20}"
echo "1..$tap_n"
