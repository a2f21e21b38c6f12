# A farm for the tests of faults: `farm_begin ADDRESS HOST...` makes keys and starts a nats-server and hosts that judge
# nothing (tests/pool/stand_in.c) and take 0.05 s over it. What is started ends with the test.
# Nothing here has to happen within some time: the scripts wait for what they need, however long a busy machine takes.
farm_pids=()
stand_in=build/test/pool/stand_in
farm_here() { # says why there can be none
    local server
    server=$(PATH=$PATH:/usr/sbin command -v nats-server) || { echo "no nats-server (tools/setup faults installs it)" && return 1; }
    nats_server=$server
    [ -f models/tiny/model.safetensors ] || { echo "models/tiny has no model.safetensors; make embedded-model builds it" && return 1; }
    make --no-print-directory -s "$stand_in" >/dev/null 2>&1 || { echo "$stand_in cannot be built" && return 1; }
}
farm_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
farm_begin() { # ADDRESS HOST...
    local address=$1 class host
    shift
    class=$("$KRL" doctor | sed -n 's/^classes *\([^, ]*\).*/\1/p')
    port=$(farm_port) url_host=$address url=tls://$address:$port farm=$tmp/farm
    local hosts=()
    for host in "$@"; do hosts+=(--worker "$host=$class"); done
    rm -rf "$farm"
    "$KRL" verifiers setup "$farm" --server "$address" --port "$port" "${hosts[@]}" >"$tmp/out" || return 1
    export KERNELRL_FARM=$farm/trainer
    farm_server
}
farm_server() {
    (cd "$farm/server" && exec "$nats_server" -c nats.conf) >>"$tmp/server.log" 2>&1 &
    server_pid=$!
    farm_pids+=("$server_pid")
    disown
    for ((i = 0; i < 200; i++)); do
        (: <"/dev/tcp/${url_host:=127.0.0.1}/$port") 2>/dev/null && return
        sleep 0.1
    done
}
kill_server() {
    kill -KILL "$server_pid"
    while kill -0 "$server_pid" 2>/dev/null; do sleep 0.05; done
}
# A host, in a session of its own, so that all of it can be killed; what stands before HOST is put before the command.
farm_host() { # [COMMAND...] HOST
    local host=${!#}
    set -- "${@:1:$#-1}"
    STAND_IN_SLEEP=${sleeps:-0.05} setsid "$@" "$stand_in" verify-worker --nats "$url" --credentials "$farm/worker-$host" \
        --name "$host" --slots 2 --beat 0.2 --lease 5 >>"$tmp/$host.log" 2>&1 &
    host_pid[${host#h}]=$!
    farm_pids+=("$!")
    disown
}
declare -A host_pid
kill_host() { # SIGNAL N
    kill -"$1" -- "-${host_pid[$2]}" 2>/dev/null
}
farm_end() {
    local p
    for p in "${farm_pids[@]}"; do
        kill -CONT -- "-$p" 2>/dev/null
        kill -KILL -- "-$p" 2>/dev/null || kill -KILL "$p" 2>/dev/null
    done
    wait 2>/dev/null
    farm_pids=()
}
train=("$KRL" train model_name=models/tiny max_tokens=300 lora_rank=0 batch_size=5 group_size=8 max_steps=5
    measure_performance=false num_correct_trials=1 level=1 end_problem=12 save_every=1 verify_lease=2)
# A run in the background, of 80 answers, that is in $tmp/NAME.
run() { # NAME [COMMAND...]
    local name=$1
    shift
    "$@" "${train[@]}" max_steps=2 "${more[@]}" verify_hosts="nats:$url" log_path="$tmp/$name" >>"$tmp/${name//\//_}.said" 2>&1 &
    pid=$!
}
more=()
until_lines() { # NAME N: until its journal has so many, or it has ended
    for ((i = 0; i < 4000; i++)); do
        [ "$(cat "$tmp/$1/verdicts.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return
        kill -0 $pid 2>/dev/null || return
        sleep 0.05
    done
}
ended() { # NAME WHAT: it ends, with the weights of the undisturbed run, $tmp/whole, each place judged once
    wait $pid
    cp "$tmp/${1//\//_}.said" "$tmp/out"
    if each_place_once "$tmp/$1" 80 && same_weights "$tmp/whole" "$tmp/$1" >>"$tmp/out" 2>&1; then ok "$2"; else not_ok "$2"; fi
    rm -rf "${tmp:?}/$1"
}
places() { # RUN: places of the journal
    grep -oE '^\{"step":[0-9]+,"eval":[a-z]+,"group":[0-9]+,"sample":[0-9]+(,"turn":[0-9]+)?' "$1/verdicts.jsonl"
}
each_place_once() { # RUN N
    [ "$(wc -l <"$1/verdicts.jsonl")" = "$2" ] && [ "$(places "$1" | sort -u | wc -l)" = "$2" ]
}
same_weights() { cmp "$1/checkpoints/final/model.safetensors" "$2/checkpoints/final/model.safetensors"; }
