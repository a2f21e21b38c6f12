# Short forms, for those who have `just` (tools/setup just brings it); tools/just says what each does. NAME may be given as
# `run=NAME`; what stands behind it goes to kernelrl unchanged: just train first learning_rate=1e-5
set positional-arguments

# list the recipes
default:
    @just --list

# train in the background with configs/rl_kernelbench.yaml: [NAME] [key=value]...
train *args:
    @tools/just train "$@"

# the same with another configuration: CONFIG [NAME] [key=value]...
train-config *args:
    @tools/just train-config "$@"

# refinement over several turns (Kevin): [NAME] [rag_index=DIR] [key=value]...
train-kevin *args:
    @tools/just train-kevin "$@"

# with retrieved examples: [NAME] [rag_index=DIR] [key=value]...
train-raicl *args:
    @tools/just train-raicl "$@"

# go on with a run: NAME [key=value]...
resume *args:
    @tools/just resume "$@"

# evaluate a run's last checkpoint: NAME [key=value]...
eval *args:
    @tools/just eval "$@"

# follow a run's log: NAME
logs *args:
    @tools/just logs "$@"

# last lines of a run's log: NAME [n=50]
logs-tail *args:
    @tools/just logs-tail "$@"

# a line a step: NAME
metrics *args:
    @tools/just metrics "$@"

# curves in the terminal: NAME
watch *args:
    @tools/just watch "$@"

# curves in the terminal: NAME
watch-metrics *args:
    @tools/just watch "$@"

# curves in the terminal, of a run with turns: NAME
watch-kevin *args:
    @tools/just watch "$@"

# device-hours, answers, tokens and verdicts of all runs
summary *args:
    @tools/just summary "$@"

# the newest runs
list *args:
    @tools/just list "$@"

# what runs take on the disk
disk:
    @tools/just disk

# what is running
status *args:
    @tools/just status "$@"

# end a run behind the step it is in: NAME
stop *args:
    @tools/just stop "$@"

# end all runs
stop-all:
    @tools/just stop-all

# TensorBoard of a run: NAME [port=6006]
tensorboard *args:
    @tools/just tensorboard "$@"

# TensorBoard of all runs: [port=6006]
tensorboard-all *args:
    @tools/just tensorboard-all "$@"

# delete a run, after a question: NAME
clean *args:
    @tools/just clean "$@"

# groups of answers that all scored the same: NAME
uniform-warnings *args:
    @tools/just uniform-warnings "$@"

# index of Triton and CUDA pairs: [output=DIR] [--option]...
build-rag-index *args:
    @tools/just build-rag-index "$@"

# index of Triton pairs: [output=DIR] [--option]...
build-rag-index-triton *args:
    @tools/just build-rag-index-triton "$@"

# index of CUDA pairs: [output=DIR] [--option]...
build-rag-index-cuda *args:
    @tools/just build-rag-index-cuda "$@"
