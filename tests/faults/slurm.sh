#!/usr/bin/env bash
# examples/slurm.sbatch on a cluster of two machines, which are network namespaces with daemons of their own: a rank is
# killed, a machine is drained and given up, another one is gone at once. Each time the job goes on, at the end with one
# rank, to the bits of a run of one rank that nobody disturbed.
. "$(dirname "$0")/../e2e/tap.bash"
BUILD=${BUILD:-build}
net=krl$$ cluster=$tmp/cluster
leave() { # REASON
    skip "a run under Slurm" "$1"
    echo "1..$tap_n"
    exit 0
}
PATH=$PATH:/usr/sbin
for program in slurmctld slurmd srun munged; do
    command -v $program >/dev/null || leave "there is no $program: apt-get install slurmctld slurmd slurm-client munge libpmix2"
done
[ -f models/tiny/model.safetensors ] || leave "models/tiny is not there"
ip netns add "$net-1" 2>/dev/null && ip netns add "$net-2" 2>/dev/null ||
    leave "network namespaces cannot be made here (iproute2, and the rights of root)"
remove() {
    kill -KILL "$(cat "$cluster/munge.pid" 2>/dev/null)" 2>/dev/null
    for n in 1 2; do
        ip netns pids "$net-$n" | xargs -r kill -KILL 2>/dev/null
        ip netns del "$net-$n"
    done
}
trap 'remove; rm -rf "$tmp"' EXIT

# ---- the cluster ----
ip link add krlv netns "$net-1" type veth peer name krlv netns "$net-2"
for n in 1 2; do
    ip -n "$net-$n" addr add "10.79.0.$n/24" dev krlv
    ip -n "$net-$n" link set lo up
    ip -n "$net-$n" link set krlv up
    mkdir -p "$cluster/spool.n$n" "$cluster/tmp.n$n"
done
mkdir "$cluster/state"
chmod 755 "$tmp" "$cluster"
echo CgroupPlugin=cgroup/v1 >"$cluster/cgroup.conf" # which nothing here uses, but slurmd wants to know
cat >"$cluster/slurm.conf" <<END
ClusterName=test
SlurmctldHost=n1(10.79.0.1)
SlurmUser=root
AuthInfo=socket=$cluster/munge.socket,cred_expire=5
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool.%n
TmpFS=$cluster/tmp.%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdTimeout=6
KillWait=2
ReturnToService=2
NodeName=n1 NodeAddr=10.79.0.1 CPUs=1
NodeName=n2 NodeAddr=10.79.0.2 CPUs=1
PartitionName=all Nodes=ALL Default=YES
END
head -c 1024 /dev/urandom >"$cluster/key"
chmod 400 "$cluster/key"
munged --force --key-file="$cluster/key" --socket="$cluster/munge.socket" --pid-file="$cluster/munge.pid" \
    --log-file="$cluster/munge.log" --seed-file="$cluster/seed" 2>"$tmp/munge.out"
export SLURM_CONF=$cluster/slurm.conf
on() { # MACHINE COMMAND...
    local n=$1
    shift
    ip netns exec "$net-$n" unshare -u sh -c "hostname n$n; exec \"\$@\"" - "$@"
}
machine() { # N: with processes of its own, which all end when the first one is killed
    on "$1" unshare -p -m -f --kill-child --mount-proc sh -c 'slurmd -D & wait' >"$cluster/slurmd.n$1.log" 2>&1 &
}
on 1 slurmctld -D >"$cluster/slurmctld.log" 2>&1 &
machine 1
machine 2
soon() { # COMMAND...: it succeeds within 40 s
    local until=$((SECONDS + 40))
    until "$@"; do
        [ $SECONDS -lt $until ] || { tail -n 15 "${out:-/dev/null}"; return 1; }
        sleep 0.1
    done
}
idle() { [ "$(on 1 sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; }
check "a cluster of two machines" soon idle

# ---- runs that nobody disturbs ----
for i in 1 2 3 4 5 6 7 8 9; do
    echo "{\"prompt\": \"ping $((i / 3))\", \"completion\": \"for (int i = 0; i < $i; i++) m += $i;\"}"
done >"$tmp/rows.jsonl"
sft=(sft model_name="$PWD/models/tiny" data="$tmp/rows.jsonl" lora_rank=4 batch_tokens=400 train_tokens=64 max_steps=20
    threads=1 save_every=1 peer_timeout=6)
train=(train model_name="$PWD/models/tiny" threads=1 level=1 end_problem=12 batch_size=1 group_size=4 max_tokens=150
    train_tokens=400 max_steps=4 save_every=1 num_correct_trials=1 lora_rank=4 peer_timeout=6)
check "rows train on one rank" "$KRL" "${sft[@]}" output="$tmp/sft1"
check "a model trains on verdicts on one rank" "$KRL" "${train[@]}" log_path="$tmp/train1"

# ---- the same under Slurm ----
soon idle
refuses "processes that do not know each other are refused" 2 'srun has started 2 processes that do not know each other' \
    on 1 srun --mpi=none --nodes=2 "$(realpath "$KRL")" "${sft[@]}" output="$tmp/none"
ln -s "$(realpath "$KRL")" "$tmp/kernelrl"
export PATH=$tmp:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export UCX_TLS=tcp,self # by shared memory MPICH would not reach what is another machine with the same kernel
submit() { # MPI COMMAND...: sets job and out
    out=$tmp/$2.out
    job=$(SLURM_MPI_TYPE=$1 on 1 sbatch --parsable --nodes=2 --ntasks-per-node=1 -o "$out" examples/slurm.sbatch "${@:2}")
}
said() { # TEXT [N]: N times
    [ "$(grep -c "$1" "$out" 2>/dev/null)" = "${2:-1}" ]
}
ranks_of() { # MACHINE
    ip netns pids "$net-$1" | xargs -r ps -o pid=,comm= -p | awk '$2 == "kernelrl" { print $1 }'
}
same() { # FOLDER FOLDER FILE...
    local a=$1 b=$2 f
    shift 2
    for f in "$@"; do cmp "$a/$f" "$b/$f" || return 1; done
}
one_left() { # the job that waits takes one machine
    on 1 scontrol update JobId="$job" NumNodes=1-1 NumTasks=1 NumCPUs=1 2>/dev/null
}
ended() { # and well
    said ': done$' && on 1 scontrol -o show job "$job" | grep -q 'JobState=COMPLETED'
}
if [ -f "$BUILD/libkernelrl_openmpi.so" ]; then
    submit pmix "${sft[@]}" output="$tmp/sft2"
    check "srun --mpi=pmix starts two ranks" soon said '^2 ranks over Open MPI'
    soon said '^sft step 10/'
    check "a rank is killed" kill -KILL "$(ranks_of 2)"
    check "the job begins again, and goes on" soon said 'going on from step'
    on 1 scontrol update NodeName=n2 State=DRAIN Reason=test
    on 1 scontrol requeue "$job"
    check "a machine is drained, and the job takes one that is left" soon one_left
    check "the job goes on with one rank" soon said 'going on from step' 2
    check "to its end" soon ended
    check "with the bits of the run that was left alone" same "$tmp/sft1" "$tmp/sft2" adapter_model.safetensors
    on 1 scontrol update NodeName=n2 State=RESUME
else
    skip "srun --mpi=pmix" "our plugin for Open MPI is not there (tools/setup ranks)"
fi
if [ -f "$BUILD/libkernelrl_mpich.so" ]; then
    soon idle
    submit pmi2 "${sft[@]}" output="$tmp/gone"
    soon said '^2 ranks over MPICH'
    on 1 scancel "$job"
    cancelled() { on 1 scontrol -o show job "$job" | grep -q 'JobState=CANCELLED.* Requeue=1 Restarts=0 '; }
    check "a job that the user cancels ends" soon cancelled
    soon idle
    mkdir "$tmp/train2" && cp "$tmp/train1/verdicts.jsonl" "$tmp/train2/"
    submit pmi2 "${train[@]}" log_path="$tmp/train2"
    check "srun --mpi=pmi2 starts two ranks" soon said '^2 ranks over MPICH'
    soon said '^step 1/'
    ip -n "$net-2" link set krlv down
    ip netns pids "$net-2" | xargs -r kill -KILL 2>/dev/null
    check "a machine is gone, and the job takes one that is left" soon one_left
    check "to its end" soon ended
    check "with the bits of the run that was left alone" same "$tmp/train1/checkpoints/final" \
        "$tmp/train2/checkpoints/final" adapter_model.safetensors optimizer.safetensors
else
    skip "srun --mpi=pmi2" "our plugin for MPICH is not there (tools/setup ranks)"
fi
echo "1..$tap_n"
