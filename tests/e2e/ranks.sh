#!/usr/bin/env bash
# Ranks over each MPI that there is: every call between them, a rank that fails, dies or stops.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
program=$BUILD/test/library/ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
check "the program is built" make --no-print-directory BUILD="$BUILD" "$program"
check "without a launcher there is one rank" bash -c '[ "$("$1")" = "1 ranks over self" ]' - "$program"
found= all=
for mpi in openmpi mpich; do
    if ! command -v mpirun.$mpi >/dev/null || [ ! -f "$BUILD/libkernelrl_$mpi.so" ]; then
        skip "ranks over $mpi" "its mpirun or our plugin for it is not there (tools/setup ranks)"
        continue
    fi
    found=$mpi all="$all $mpi"
    run() { # RANKS ARGUMENT...
        local ranks=$1
        shift
        case $mpi in
        openmpi) timeout 60 mpirun.openmpi --oversubscribe --bind-to none -n "$ranks" "$@" ;;
        mpich) timeout 60 mpirun.mpich -n "$ranks" "$@" ;;
        esac
    }
    for ranks in 2 3; do
        check "$ranks ranks over $mpi: every call" bash -c \
            "$(declare -f run); mpi=$mpi; run $ranks $program | tee '$tmp/said' && grep -q '^$ranks ranks over ' '$tmp/said'"
    done
    run 3 "$program" fail 1 >"$tmp/fail" 2>&1
    check "$mpi: a failure of one is everybody's, with its message" bash -c \
        "[ $? != 0 ] && [ \$(grep -c 'rank 1 on .*: the disk is full' '$tmp/fail') = 2 ]"
    run 3 "$program" die 1 >"$tmp/die" 2>&1
    check "$mpi: a rank that is killed ends the job" test $? != 0
    for stopped in 1 0; do
        begin=$SECONDS
        run 3 "$program" stop $stopped 2 >"$tmp/stop" 2>&1
        check "$mpi: rank $stopped stops, the others end in time and say so" bash -c \
            "[ $? != 0 ] && [ $((SECONDS - begin)) -lt 14 ] && grep -q 'rank $stopped on .* is lost: not heard of for' '$tmp/stop'"
    done
done
if [ -n "$found" ]; then
    check "a plugin that is none is named" bash -c \
        "KERNELRL_MPI=/no/plugin.so OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 $program 2>&1 | grep -q 'ranks: cannot load /no/plugin.so'"
fi
# Sums over ranks: on the CPU, and on emulated devices by what stands in for NCCL and through the host's memory.
fold=$BUILD/test/library/rank_fold plugin=$BUILD/test/libkernelrl_cuda_emulated.so stand_in=$BUILD/test/libnccl_stand_in.so
if [ -n "$found" ]; then
    mpi=$found
    check "sums of gradients are built" make --no-print-directory BUILD="$BUILD" "$fold" "$stand_in"
    for ranks in 1 2 3; do
        check "sums over $ranks ranks in the order of the leaves" run $ranks "$fold" cpu
    done
    if command -v g++ >/dev/null && make --no-print-directory BUILD="$BUILD" "$plugin" >/dev/null 2>&1; then
        export KERNELRL_CUDA_PLUGIN=$PWD/$plugin KERNELRL_EMULATE_DEVICES=3
        KERNELRL_NCCL=$PWD/$stand_in run 3 "$fold" cuda >"$tmp/nccl" 2>&1
        check "sums over 3 devices by NCCL's calls" bash -c "[ $? = 0 ] && grep -q '^3 ranks, by NCCL$' '$tmp/nccl'"
        KERNELRL_NCCL=none run 3 "$fold" cuda >"$tmp/staged" 2>&1
        check "and without NCCL" bash -c "[ $? = 0 ] && grep -q '^3 ranks, by host memory: libnccl' '$tmp/staged'"
        # Rank 1 leaves in the middle of an exchange: its peer gives up NCCL's communicator, once, and the job ends in time.
        # MPICH's mpirun tells one time in a hundred of a signal 1 that nobody sent, and shows that instead of 75.
        gone() { # HOW TEXT: so long for a peer that says nothing, and 10 s
            local begin=$SECONDS seconds=3
            NCCL_STAND_IN_GONE=$1 KERNELRL_NCCL=$PWD/$stand_in run 2 "$fold" cuda 0 $seconds >"$tmp/gone" 2>&1
            local status=$?
            cat "$tmp/gone"
            [ $status = 75 ] || { [ "$mpi $status" = "mpich 1" ] && grep -q 'Hangup (signal 1)' "$tmp/gone"; } || return 1
            [ $((SECONDS - begin)) -le $((seconds + 10)) ] && grep -q "$2" "$tmp/gone" &&
                [ "$(grep -c '^ncclCommAbort of rank 0$' "$tmp/gone")" = 1 ]
        }
        for mpi in $all; do
            check "$mpi: an exchange that fails gives up NCCL and ends the job" gone error 'NCCL: unhandled system error'
            check "so does one of which NCCL says later that it failed" gone later 'NCCL: remote process exited'
            check "so does one that never ends, when its peer is silent" gone silent 'rank 1 on .* is lost: not heard of for'
        done
        unset KERNELRL_CUDA_PLUGIN KERNELRL_EMULATE_DEVICES
    else
        skip "sums over devices" "g++ is not installed"
    fi
fi
# Leaves computed twice, and one of them spoiled; what all ranks compute, compared before a run; samples of all ranks.
audit=$BUILD/test/library/rank_audit sampling=$BUILD/test/library/rank_sampling
device=$BUILD/test/library/rank_device
names() { # TEXT RANKS ARGUMENT...: it fails with this text
    local text=$1 ranks=$2
    shift 2
    ! run "$ranks" "$audit" models/tiny "$@" >"$tmp/audit" 2>&1 && grep -q "$text" "$tmp/audit"
}
says() { # TEXT RANKS PROGRAM ARGUMENT...: it ends well with this text
    local text=$1 ranks=$2
    shift 2
    run "$ranks" "$@" >"$tmp/says" 2>&1 && grep -q "$text" "$tmp/says"
}
if [ -n "$found" ] && [ -f models/tiny/model.safetensors ]; then
    check "the audit's program and the sampler's are built" make --no-print-directory BUILD="$BUILD" "$audit" "$sampling"
    check "leaves of every second round are computed twice" says '^3 ranks, 4 leaves compared' 3 "$audit" models/tiny
    check "one rank compares nothing" says '^1 ranks, 0 leaves compared' 1 "$audit" models/tiny
    check "a bit that flips once on rank 1 of 2 is found" names 'rank 1 on .* computes wrong gradients: at optimizer step 12' 2 1 0 once
    check "one that flips while comparing, too" names 'rank 1 on .* computes wrong gradients' 2 1 1 once
    check "a rank of 3 that always differs is named" names 'rank 2 on .* computes wrong gradients' 3 2 0 always
    check "of 2 nobody can tell" names 'which of them is wrong cannot be told' 2 1 0 always
    check "a device that fails is built" make --no-print-directory BUILD="$BUILD" "$device"
    for kind in lora full; do
        check "rank 1's device fails anywhere in a step, $kind: both ranks end it" says '^2 ranks, [1-9][0-9]* places' 2 "$device" models/tiny $kind 1
    done
    check "all ranks compute the same leaf" says '^selfcheck: ok' 2 "$KRL" selfcheck ranks --model models/tiny --rows 200 --threads 1
    check "one rank shows its leaf" bash -c "'$KRL' selfcheck ranks --model models/tiny --rows 200 | grep -q '^0 .* [0-9a-f]\{16\}$'"
    check "samples of all ranks are those of one" says '^rank 2 drew' 3 "$sampling" models/tiny
fi
# The same run on any number of ranks: weights, moments, answers and metrics, with the verdicts that the first one wrote.
same_run() { # NAME RUN: all but times, and who did what
    local a=$tmp/runs/$1 b=$tmp/runs/$2 f
    for f in "$a"/checkpoints/final/*.safetensors; do cmp "$f" "$b/checkpoints/final/${f##*/}" || return 1; done
    cmp "$a/verdicts.jsonl" "$b/verdicts.jsonl" || return 1
    diff <(zstdcat "$a/traces.jsonl.zst") <(zstdcat "$b/traces.jsonl.zst") || return 1
    diff <(plain "$a") <(plain "$b")
}
plain() { sed -E 's/"((time|verify)\/[^"]+|ranks\/size|ranks\/audited|ranks\/[a-z]+_[0-9]+)":[^,}]*,?//g' "$1/metrics.jsonl"; }
train() { # RUN RANKS MPI KEY=VALUE...
    local dir=$tmp/runs/$1 ranks=$2 mpi=$3
    shift 3
    [ -z "$mpi" ] || { mkdir -p "$dir" && cp "$tmp/runs/$first/verdicts.jsonl" "$dir/"; } || return 1
    set -- "$KRL" train model_name=models/tiny threads=1 level=1 end_problem=12 batch_size=2 group_size=4 max_tokens=200 \
        max_steps=2 train_tokens=700 num_correct_trials=2 reward_speed_weight=0.3 peer_timeout=120 log_path="$dir" "$@"
    case $mpi in
    "") "$@" ;;
    *) run "$ranks" "$@" ;;
    esac
}
if [ -n "$found" ] && [ -f models/tiny/model.safetensors ]; then
    first=lora
    check "a run of LoRA on one rank" train lora 1 "" lora_rank=8
    for how in 3:openmpi:332 2:mpich:44; do # so many of eight answers are dealt to each rank
        dealt=${how##*:} how=${how%:*}
        mpi=${how#*:}
        [ -f "$BUILD/libkernelrl_$mpi.so" ] && command -v mpirun.$mpi >/dev/null || continue
        check "the same on ${how%:*} ranks over $mpi" train "lora$mpi" "${how%:*}" $mpi lora_rank=8
        check "has the same bits" same_run lora "lora$mpi"
        check "each rank drew its share" bash -c '[ "$(grep -oE "ranks/samples_[0-9]\":[0-9]+" "$1" | cut -d: -f2 | tr -d "\n")" = "$2$2" ]' \
            - "$tmp/runs/lora$mpi/metrics.jsonl" "$dealt"
    done
    mpi=$found first=full
    turns=(lora_rank=0 dtype=bf16 mode=multi_turn max_turns=2 max_staleness=1 kl_penalty_coef=0.1)
    check "a run of all weights with turns, sampled ahead, with a KL term" train full 1 "" "${turns[@]}"
    check "the same on 2 ranks" train full2 2 $mpi "${turns[@]}"
    check "has the same bits" same_run full full2
    check "both ranks sampled and trained" bash -c \
        "grep -qE '\"ranks/samples_1\":[1-9]' '$tmp/runs/full2/metrics.jsonl' && grep -qE '\"ranks/leaves_1\":[1-9]' '$tmp/runs/full2/metrics.jsonl'"
    for i in 1 2 3 4 5 6 7 8 9; do
        echo "{\"prompt\": \"ping $((i / 3))\", \"completion\": \"for (int i = 0; i < $i; i++) m += $i;\"}"
    done >"$tmp/rows.jsonl"
    sft=("$KRL" sft model_name=models/tiny data="$tmp/rows.jsonl" valid="$tmp/rows.jsonl" lora_rank=4 batch_tokens=400
        train_tokens=64 max_steps=3 threads=1)
    check "rows train on one rank" "${sft[@]}" output="$tmp/sft1"
    check "and on one that MPI starts" run 1 "${sft[@]}" output="$tmp/sft0" ranks=mpi
    check "with the same bits" cmp "$tmp/sft1/adapter_model.safetensors" "$tmp/sft0/adapter_model.safetensors"
    check "and on 2" run 2 "${sft[@]}" output="$tmp/sft2"
    check "with the same bits" cmp "$tmp/sft1/adapter_model.safetensors" "$tmp/sft2/adapter_model.safetensors"
    # All weights: in float32 each rank has all moments, in bfloat16 its part of them and of the float32 weights. The
    # latter run goes on with another number of ranks after each step.
    all=("${sft[@]}" lora_rank=0 weight_decay=0.1 save_dtype=f32)
    check "all weights train on one rank" "${all[@]}" output="$tmp/all1" dtype=f32
    check "and on 2" run 2 "${all[@]}" output="$tmp/all2" dtype=f32
    check "with the same bits" cmp "$tmp/all1/model.safetensors" "$tmp/all2/model.safetensors"
    check "in bfloat16 on one rank" "${all[@]}" output="$tmp/half1" dtype=bf16
    "${all[@]}" output="$tmp/halves" dtype=bf16 stop_after_minutes=0.00001 >"$tmp/halves.out" 2>&1
    for ranks in 3 2; do # the first over the one MPI, the second over the other, where there are two
        [ $ranks = 3 ] && [ -f "$BUILD/libkernelrl_openmpi.so" ] && mpi=openmpi || mpi=$found
        run $ranks "${all[@]}" output="$tmp/halves" dtype=bf16 stop_after_minutes=0.00001 >>"$tmp/halves.out" 2>&1
    done
    one_each() { [ "$(grep -oE 'at step [12] of 3|halves: done' "$tmp/halves.out" | tr '\n' ,)" = 'at step 1 of 3,at step 2 of 3,halves: done,' ]; }
    check "a step on one rank, one on 3, one on 2" one_each
    check "with the same bits" cmp "$tmp/half1/model.safetensors" "$tmp/halves/model.safetensors"
    # The file of moments cannot be read, or not be written: rank 0 says so, and no rank waits for the rest of it.
    ends() { # it fails before the time is up, and names the file
        run 2 "$@" output="$tmp/cut" dtype=bf16 >"$tmp/cut.out" 2>&1
        [ $? = 1 ] && grep -q 'optimizer.safetensors: ' "$tmp/cut.out"
    }
    run 2 "${all[@]}" output="$tmp/cut" dtype=bf16 stop_after_minutes=0.00001 >/dev/null 2>&1
    truncate -s 30000000 "$tmp/cut/state/optimizer.safetensors"
    check "a file of moments that is cut short ends all ranks" ends "${all[@]}"
    rm -rf "$tmp/cut"
    check "so does one that cannot be written" ends bash -c "trap '' XFSZ; ulimit -f 30000; exec \"\$@\"" - "${all[@]}" save_every=1
    check "ranks that differ are refused by name" bash -c "$(declare -f run); mpi=$mpi; cp '$KRL' '$tmp/krl' && echo >>'$tmp/krl'
        ! run 2 sh -c 'if [ \"\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}\" = 1 ]; then k=$tmp/krl; else k=$KRL; fi
            KERNELRL_MPI=$PWD/$BUILD/libkernelrl_$mpi.so KERNELRL_HOME=$PWD exec \$k train model_name=models/tiny log_path=$tmp/mixed' >'$tmp/mixed.out' 2>&1 &&
        grep -q 'ranks must be alike: rank 0 on .* has \"program: .*\", rank 1 on' '$tmp/mixed.out'"
    # Rank 1 is killed in the middle: the command starts its ranks again, and ends well.
    check "gpus and --restarts: a lost rank costs a restart" bash -c "
        '$KRL' train --restarts 3 gpus=2 model_name=models/tiny lora_rank=8 threads=1 level=1 end_problem=12 batch_size=2 group_size=4 \
            max_tokens=200 max_steps=3 save_every=1 num_correct_trials=2 log_path='$tmp/again' >'$tmp/again.out' 2>&1 &
        until grep -q '^step 1/' '$tmp/again.out' || ! kill -0 \$! 2>/dev/null; do sleep 0.1; done
        pkill -KILL -n -f 'kernelrl train gpus=2 .*log_path=$tmp/again' || exit 1
        wait \$! && grep -q 'a process was lost' '$tmp/again.out' && [ \$(grep -c '\"reward/mean\"' '$tmp/again/metrics.jsonl') = 3 ]"
else
    skip "a run on several ranks" "there is no MPI, or no embedded model"
fi
refuses "--restarts wants a number" 2 'restarts: expected a number from 0 on, got "x"' "$KRL" train --restarts x
refuses "without mpirun gpus says what is missing" 2 'mpirun: no such program; several ranks need an MPI' \
    env PATH=/nowhere "$(realpath "$KRL")" train gpus=2 log_path="$tmp/none"
check "where there is no plugin, what to do is said" bash -c \
    "KERNELRL_MPI=none OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 $program 2>&1 | grep -q 'tools/setup ranks'"
echo "1..$tap_n"
