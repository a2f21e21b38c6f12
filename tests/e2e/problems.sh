#!/usr/bin/env bash
# kernelrl problems: filters, labels, and the check that finds problems which reward the wrong thing.
. "$(dirname "$0")/tap.bash"
problems=("$KRL" problems)
count() { "${problems[@]}" list --json --source builtin "$@" | wc -l; }
check "filters are those of the list" test "$(count)" = "$(($(count --split test) + $(count --split train)))"
check "levels too" test "$(count)" = "$(($(count --level 1) + $(count --level 2) + $(count --level 3)))"
check "an operator" test "$(count --ops gelu --level 1)" = 1
check "several filters" test "$(count --level 2 --ops gelu --split test --difficulty 2)" = 3
refuses "a split that is none" 2 'split: expected train or test' "${problems[@]}" list --split valid

bad=$tmp/level1
mkdir "$bad"
module() { # ID_NAME FORWARD [INPUTS]
    printf 'import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x):\n        %s\n\ndef get_inputs():\n    return [%s]\n\ndef get_init_inputs():\n    return []\n' \
        "$2" "${3:-torch.randn(8, 16)}" >"$bad/$1.py"
}
module 1_Good 'return torch.relu(x)'
module 2_Random 'return x + torch.rand_like(x)'
module 3_Constant 'return torch.ones_like(x)'
module 4_Blind 'return torch.softmax(x, dim=1).sum(dim=1) * torch.arange(8.0)'
module 5_Small 'return x * 1e-6'
module 6_NaN 'return torch.log(-torch.abs(x))'
module 7_Broken 'return x @ x'
module 8_Hangs 'while True: pass'
module 9_Dies 'import os; os._exit(3)'
"${problems[@]}" check --source "$tmp" --timeout 5 >"$tmp/said" 2>"$tmp/errors"
code=$?
cp "$tmp/said" "$tmp/out"
check "exit status 1 when there is something" test $code = 1
check "nothing is said of a good one" sh -c "! grep -q 1_Good '$tmp/said'"
finds() { check "finds $2" grep -qE "^level1/$1 +$2( |$)" "$tmp/said"; }
finds 2_Random random
finds 3_Constant constant
finds 3_Constant input_blind
finds 4_Blind input_blind
finds 5_Small below_tolerance
finds 6_NaN not_finite
finds 7_Broken error
finds 8_Hangs 'error +takes longer than 5 s'
finds 9_Dies 'error +its process died'
check "and sums up" grep -q '^9 problems, 8 with findings' "$tmp/said"
check "one that is good" "${problems[@]}" check 1_Good --source "$tmp"
refuses "a slip of the finger" 1 'did you mean level1/1_ReLU' "${problems[@]}" show level1/1_Relu --source builtin
refuses "one that is not there" 1 'no such problem' "${problems[@]}" check 10_None --source "$tmp"
check "the built-in test problems of level 2" "${problems[@]}" check --source builtin --level 2 --split test
printf "#!/bin/sh\nexit 3\n" >"$tmp/python" && chmod +x "$tmp/python"
refuses "no torch" 1 "PyTorch .tried" env KERNELRL_PYTHON="$tmp/python" "${problems[@]}" check 1_Good --source "$tmp"
label() { "${problems[@]}" label "$@" | grep -o '"key":"[^"]*"\|"difficulty":[0-9]' | cut -d: -f2 | paste -sd' '; }
"${problems[@]}" show level3/2_Linear_GELU_Linear --source builtin >"$tmp/2_MLP.py"
check "a label by its text" test "$(label --source "$tmp/2_MLP.py" | cut -d' ' -f2)" = 3
check "by its operators" test "$(label --by operators --source "$tmp/2_MLP.py" | cut -d' ' -f2)" = 2
rm "$bad"/[6-9]_* # what does not run
module 1_Good 'return torch.relu(x)' 'torch.randn(2000, 2000)'
check "by measured cost, into a file" "${problems[@]}" label --by cost --source "$tmp" --out "$tmp/labels.jsonl"
check "the largest one costs most" grep -q '"key":"level1/1_Good".*"difficulty":3' "$tmp/labels.jsonl"
check "labels of those named" test "$(label level1/1_ReLU level2/34_Linear_GELU --source builtin | cut -d' ' -f1,3 | tr -d '"')" = \
    "level1/1_ReLU level2/34_Linear_GELU"
refuses "an option that there is not" 2 'unknown flag --bogus' "${problems[@]}" list --bogus
refuses "a command that there is not" 2 'unknown command "lable"; did you mean "label"' "${problems[@]}" lable
refuses "no command" 2 'expected list, show, check, label or generate' "${problems[@]}"
refuses "a way that is none" 2 'by: expected text' "${problems[@]}" label --by taste
refuses "an option of another command" 2 'problems: --count means nothing to list; it is for generate' "${problems[@]}" list --count 3
echo "1..$tap_n"
