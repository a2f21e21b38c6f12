#!/usr/bin/env bash
# What ranks lose in the middle of a run. First a device: that of one of two ranks fails. Then the network: two ranks on what
# are two machines to them, in network namespaces, and the cable is cut. All ranks end in time, nobody writes on, and the
# same command goes on, to the bits of the run that lost nothing.
. "$(dirname "$0")/../e2e/tap.bash"
BUILD=${BUILD:-build}
name=krl$$ timeout_s=6
agent=$tmp/agent
if [ ! -f models/tiny/model.safetensors ] || [ ! -f "$BUILD/libkernelrl_openmpi.so" ] || ! command -v mpirun.openmpi >/dev/null; then
    skip "ranks that lose something" "Open MPI, our plugin for it (tools/setup ranks) or models/tiny is not there"
    echo "1..$tap_n"
    exit 0
fi
program=$(realpath "$KRL")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Emulated devices, which reach each other through the host's memory, or by what stands in for NCCL. Rank 1's breaks behind
# the first step that is made.
plugin=$BUILD/test/libkernelrl_cuda_emulated.so stand_in=$BUILD/test/libnccl_stand_in.so
device_fails() { # NCCL STATUS
    local begin pid got
    rm -f "$tmp/fault"
    KERNELRL_NCCL=$1 mpirun.openmpi --oversubscribe --bind-to none -n 2 sh -c \
        '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export KERNELRL_EMULATE_FAULT=launch; exec "$@"' - \
        "${sft[@]}" output="$tmp/failed" >"$tmp/said" 2>&1 &
    pid=$!
    until grep -q '^sft step' "$tmp/said" || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
    touch "$tmp/fault"
    begin=$SECONDS
    wait $pid
    got=$?
    cat "$tmp/said"
    [ $got = "$2" ] && [ $((SECONDS - begin)) -le $((timeout_s + 10)) ] &&
        grep -q "rank 1 on $(hostname): .*an illegal memory access was encountered" "$tmp/said"
}
if command -v g++ >/dev/null && make --no-print-directory BUILD="$BUILD" "$plugin" "$stand_in" >/dev/null 2>&1; then
    for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"ping $i\", \"completion\": \"for (int i = 0; i < $i; i++) m += $i;\"}"; done >"$tmp/rows.jsonl"
    sft=("$program" sft device=cuda model_name="$PWD/models/tiny" data="$tmp/rows.jsonl" lora_rank=2 batch_tokens=128
        train_tokens=64 max_steps=5 save_every=1 log_every=1 threads=1 peer_timeout=$timeout_s)
    export KERNELRL_CUDA_PLUGIN=$PWD/$plugin KERNELRL_EMULATE_DEVICES=2 KERNELRL_EMULATE_FAULT_FILE=$tmp/fault
    check "a run whose devices work" "${sft[@]}" output="$tmp/worked"
    check "a device fails: all ranks end, and rank 0 names it" device_fails none 3
    check "so do those whose devices are connected, with exit status 75" device_fails "$PWD/$stand_in" 75
    rm "$tmp/fault"
    check "the same command goes on" "${sft[@]}" output="$tmp/failed"
    check "to the bits of the run whose devices work" cmp "$tmp/worked/adapter_model.safetensors" \
        "$tmp/failed/adapter_model.safetensors"
    unset KERNELRL_CUDA_PLUGIN KERNELRL_EMULATE_DEVICES KERNELRL_EMULATE_FAULT_FILE
else
    skip "a device that fails" "g++ is not installed"
fi
if ! ip netns add "$name-a" 2>/dev/null || ! ip netns add "$name-b" 2>/dev/null; then
    skip "ranks that are cut off" "network namespaces cannot be made here (iproute2, and the rights of root)"
    echo "1..$tap_n"
    exit 0
fi
remove() {
    ip netns pids "$name-a" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns pids "$name-b" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$name-a"
    ip netns del "$name-b"
}
trap 'remove; rm -rf "$tmp"' EXIT
ip link add krlv netns "$name-a" type veth peer name krlv netns "$name-b"
for n in a b; do
    ip -n "$name-$n" addr add "10.77.0.$([ $n = a ] && echo 1 || echo 2)/24" dev krlv
    ip -n "$name-$n" link set lo up
    ip -n "$name-$n" link set krlv up
done
# What mpirun calls in the place of ssh.
cat >"$agent" <<END
#!/usr/bin/env bash
while [ "\${1#-}" != "\$1" ]; do shift; done
shift
exec ip netns exec $name-b unshare -u sh -c "hostname machine-b; \$*"
END
chmod +x "$agent"
train=(train model_name="$PWD/models/tiny" threads=1 level=1 end_problem=12 batch_size=2 group_size=4 max_tokens=200
    train_tokens=700 max_steps=4 save_every=1 num_correct_trials=2 lora_rank=8 peer_timeout=$timeout_s)
mpi=(mpirun.openmpi --mca plm_rsh_agent "$agent" --mca btl tcp,self --mca btl_tcp_if_include krlv
    --mca oob_tcp_if_include krlv --host 10.77.0.1:1,10.77.0.2:1 -n 2 --bind-to none)
on_two() { # RUN
    exec ip netns exec "$name-a" unshare -u sh -c "hostname machine-a; exec \"\$@\"" - "${mpi[@]}" \
        "$program" "${train[@]}" log_path="$1"
}
check "a run that nobody cuts" "$program" "${train[@]}" log_path="$tmp/whole"
mkdir "$tmp/cut" && cp "$tmp/whole/verdicts.jsonl" "$tmp/cut/"
(on_two "$tmp/cut") >"$tmp/said" 2>&1 &
pid=$!
until grep -q '^step 2/' "$tmp/said" || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
check "two ranks on two machines train" grep -q '2 ranks over Open MPI' "$tmp/said"
ip -n "$name-b" link set krlv down
begin=$SECONDS
left() { pgrep -f "kernelrl train .*log_path=$tmp/cut" | grep -vx "$pid"; } # ranks, not their launcher
until [ -z "$(left)" ] || [ $((SECONDS - begin)) -gt $((timeout_s + 30)) ]; do sleep 0.2; done
check "both ranks have ended within peer_timeout and 10 s" test $((SECONDS - begin)) -le $((timeout_s + 10))
check "the rank that is lost is named" grep -q 'rank 1 on machine-b is lost: not heard of for' "$tmp/said"
# Open MPI's mpirun goes on waiting for the machine that it cannot reach; a batch system would end it.
kill -KILL $pid 2>/dev/null
ip netns pids "$name-a" | xargs -r kill -KILL 2>/dev/null
wait $pid 2>/dev/null
check "the same command goes on with one rank" "$program" "${train[@]}" log_path="$tmp/cut"
check "to the bits of the other run" bash -c "cmp '$tmp/whole/checkpoints/final/adapter_model.safetensors' \
    '$tmp/cut/checkpoints/final/adapter_model.safetensors' && cmp '$tmp/whole/checkpoints/final/optimizer.safetensors' \
    '$tmp/cut/checkpoints/final/optimizer.safetensors'"
echo "1..$tap_n"
