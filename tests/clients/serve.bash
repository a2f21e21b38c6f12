# `kernelrl serve` for tests of its clients: TAP helpers, and `serve [FLAG]...`, which starts a server of $model, or of the
# embedded model, on a free port and waits until it is ready. $url is its address without /v1, $key a key that it takes.
# The server ends with the script.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
key=sk-test
export no_proxy=127.0.0.1,localhost

# Skips the whole script where there is no model, or Python lacks a module.
needs() { # MODULE...
    local why
    if [ ! -f models/tiny/model.safetensors ]; then
        skip "$1" "models/tiny has no model.safetensors; make embedded-model builds it"
    elif ! why=$("$python" -c "import $(IFS=,; echo "$*")" 2>&1); then
        skip "$1" "$(tail -n 1 <<<"$why")"
    else
        return 0
    fi
    echo "1..$tap_n"
    exit 0
}

serve() { serve_without_key --api-key "$key" "$@"; }

serve_without_key() {
    "$KRL" serve --model "${model:-models/tiny}" --port 0 --access-log "$tmp/access" "$@" >"$tmp/serve.log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$tmp"' EXIT
    for _ in $(seq 600); do
        url=$(sed -n 's|^.* is ready at \(http://.*\)/v1$|\1|p' "$tmp/serve.log")
        [ -n "$url" ] && return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    not_ok "a server"
    sed 's/^/# /' "$tmp/serve.log"
    echo "1..$tap_n"
    exit 1
}

# Ends the server as a user does; the exit status is its.
stop_server() {
    kill -TERM $server
    wait $server
}
