#!/usr/bin/env bash
# The Debian package: built twice, looked at by lintian, installed in a bare Debian 12 with and without what it recommends,
# used there by an ordinary user, and purged.
. "$(dirname "$0")/../e2e/tap.bash"
. "$(dirname "$0")/root.bash"
if ! can_make_roots; then
    skip "the Debian package" "needs root, mmdebstrap and bubblewrap"
    echo "1..$tap_n"
    exit 0
fi
timed "make deb" tools/deb "$tmp/one"
deb=$(echo "$tmp"/one/kernelrl_*.deb)
[ -f "$deb" ] || { echo "1..$tap_n" && exit 1; }
timed "the same sources give the same package" sh -c "tools/deb '$tmp/two' && cmp '$deb' '$tmp'/two/kernelrl_*.deb"
echo "# $(basename "$deb"): $(($(stat -c %s "$deb") / 1024)) KiB, installed $(dpkg-deb -f "$deb" Installed-Size) KiB"
lintian --allow-root -EIL +pedantic "$tmp"/one/*.changes >"$tmp/lintian" 2>&1
sed 's/^/# lintian: /' "$tmp/lintian"
check "lintian finds nothing" test ! -s "$tmp/lintian"
cp "$deb" tests/verify/relu.py tests/verify/answers/good.c "$given/"
name=$(basename "$deb")

# ---- bare: only what it depends on ----
r=$tmp/bare
timed "a bare Debian 12" root_new bookworm "$r"
inside "$r" sh -c 'apt-get install -y --no-install-recommends bubblewrap $(dpkg-deb -f /given/*.deb Depends |
    tr , "\n" | sed "s/(.*//") >>/var/log/apt-said 2>&1'
files_of "$r" >"$tmp/files.before"
timed "it installs without what it recommends" inside "$r" apt-get install -y --no-install-recommends "/given/$name"
refuses "doctor names what is missing" 1 'apt-get install gcc libc6-dev' as_user "$r" kernelrl doctor
check "PyTorch, too" grep -q 'apt-get install python3-torch' "$tmp/out"
check "the sandbox works" grep -q '^sandbox .* works' "$tmp/out"
# shellcheck disable=SC2086
refuses "so does the demo, at once" 1 'install gcc and libc6-dev.*apt-get install python3-torch' as_user "$r" kernelrl $small_demo log_path=runs/x
cp "$tmp/out" "$tmp/demo.bare"
sed 's/^/# demo: /' "$tmp/demo.bare" | grep kernelrl:
check "what needs neither works: the model answers" as_user "$r" sh -c \
    'kernelrl sample --model models/tiny --prompt "$(kernelrl problems prompt level1/1_ReLU)" --max-tokens 20'
# The units: systemd reads them here, where their program is.
cp "$r/lib/systemd/system/"kernelrl*.service "$tmp/"
if command -v systemd-analyze >/dev/null; then
    check "systemd takes the units" systemd-analyze verify --man=no --root="$r" kernelrl.service kernelrl-verify.service
    check "without a warning" test ! -s "$tmp/out"
    exposure() { systemd-analyze security --offline=true --root="$r" "$1" | sed -n 's/.*Overall exposure level.*: *\([0-9.]*\) .*/\1/p'; }
    echo "# exposure of kernelrl.service: $(exposure kernelrl.service), of kernelrl-verify.service: $(exposure kernelrl-verify.service)"
    check "the server alone is closed" systemd-analyze security --offline=true --threshold=15 --root="$r" kernelrl.service
    check "with verdicts, as far as the jail allows" systemd-analyze security --offline=true --threshold=40 --root="$r" kernelrl-verify.service
else
    skip "systemd takes the units" "there is no systemd-analyze"
fi
mkdir -p "$r/var/lib/private/kernelrl/x" "$r/var/cache/private/kernelrl-verify" # as if the services had run
ln -s private/kernelrl "$r/var/lib/kernelrl"
check "purge" inside "$r" apt-get purge -y kernelrl
files_of "$r" >"$tmp/files.after"
check "nothing of it is left" diff "$tmp/files.before" "$tmp/files.after"
check "not in the folders of the services either" test -z "$(find "$r/var" -name 'kernelrl*' ! -path '*/log/*' ! -name 'kernelrl_*.deb')"
rm -rf "$r"

# ---- as a user would ----
r=$tmp/full
timed "another bare Debian 12" root_new bookworm "$r"
timed "apt-get install ./kernelrl_*.deb" install_in "$r" "/given/$name"
timed "doctor is content" as_user "$r" kernelrl doctor
check "and names the next step" grep -q 'Next: kernelrl demo' "$tmp/out"
# shellcheck disable=SC2086
timed "the demo, in little" as_user "$r" kernelrl $small_demo
check "has both tables" grep -q '^greedy (48 held-out problems' "$tmp/out"
check "an answer of one's own is judged" as_user "$r" sh -c 'kernelrl verify --problem /given/relu.py --solution /given/good.c --json |
    tee said | grep -q "\"correct\":true"; rc=$?; cat said; rm said; exit $rc'
check "the administrator may use it, too" inside "$r" kernelrl verify --problem /given/relu.py --solution /given/good.c --no-measure
# Hardening changes no result: the package's program and a plain one say the same, to the last bit of a probability.
sampled() { # PROGRAM
    as_user "$r" env KERNELRL_HOME=/usr/share/kernelrl "$1" sample --model models/tiny --prompt "$(cat "$given/prompt")" \
        --n 8 --max-tokens 200 --seed 7 --json 2>/dev/null
}
"$KRL" problems prompt level1/1_ReLU >"$given/prompt"
cp "$KRL" "$given/plain"
sampled kernelrl >"$tmp/hard"
sampled /given/plain >"$tmp/plain"
check "eight answers by the hardened program" sh -c "test \$(wc -l <'$tmp/hard') = 8"
check "are those of a plain build, to the last digit" cmp "$tmp/hard" "$tmp/plain"
check "no Python cache, no file of it written outside of home" inside "$r" sh -c '! find /usr/share/kernelrl -newer /usr/bin/kernelrl -type f | grep .'
check "removed again" inside "$r" apt-get remove -y kernelrl
check "its configuration stays until purge" test -f "$r/etc/kernelrl/serve.yaml"
check "purged" inside "$r" apt-get purge -y kernelrl
check "with its configuration" test ! -e "$r/etc/kernelrl"
echo "1..$tap_n"
