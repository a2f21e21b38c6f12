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
# The sources as they are now, twice, at places of different length; the second time without a compiler's cache.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
KERNELRL_COMMIT=$(git describe --always --dirty)
export SOURCE_DATE_EPOCH KERNELRL_COMMIT
tools/source_tree "$tmp/sources"
cp -r "$tmp/sources" "$tmp/the same sources"
timed "make deb" "$tmp/sources/tools/deb" "$tmp/one"
deb=$(echo "$tmp"/one/kernelrl_*.deb)
[ -f "$deb" ] || { echo "1..$tap_n" && exit 1; }
CCACHE_DISABLE=1 timed "elsewhere, too" "$tmp/the same sources/tools/deb" "$tmp/two"
check "the same sources give the same package" cmp "$deb" "$tmp/two/$(basename "$deb")"
echo "# $(basename "$deb"): $(($(stat -c %s "$deb") / 1024)) KiB, installed $(dpkg-deb -f "$deb" Installed-Size) KiB"
lintian --allow-root -EIL +pedantic "$tmp"/one/*.changes >"$tmp/lintian" 2>&1
sed 's/^/# lintian: /' "$tmp/lintian"
check "lintian finds nothing" test ! -s "$tmp/lintian"
cp "$deb" tests/verify/relu.py tests/verify/answers/good.c "$given/"
name=$(basename "$deb")

# ---- bare: only what it depends on ----
r=$tmp/bare
timed "a bare Debian 12" root_new bookworm "$r"
# shellcheck disable=SC2046
install_in "$r" --no-install-recommends $(dpkg-deb -f "$deb" Depends | tr ',' '\n' | sed 's/(.*//')
mkdir -p "$r/var/lib/private" "$r/var/cache/private"
files_of "$r" >"$tmp/files.before"
timed "it installs without what it recommends" install_in "$r" --no-install-recommends "/given/$name"
refuses "doctor names what is missing" 1 'apt-get install gcc libc6-dev' as_user "$r" kernelrl doctor
says "PyTorch, too" 'apt-get install python3-torch'
says "the sandbox works" '^sandbox .* works'
# shellcheck disable=SC2086
refuses "so does the demo, at once" 1 'install gcc and libc6-dev.*apt-get install python3-torch' as_user "$r" kernelrl $small_demo log_path=runs/x
sed -n 's/^kernelrl:/# demo:/p' "$tmp/out"
check "what needs neither works: the model answers" as_user "$r" sh -c \
    'kernelrl sample --model models/tiny --prompt "$(kernelrl problems prompt level1/1_ReLU)" --max-tokens 20'
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
says "and names the next step" 'Next: kernelrl demo'
# shellcheck disable=SC2086
timed "the demo, in little" as_user "$r" kernelrl $small_demo
says "has both tables" '^greedy .48 held-out problems'
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
# ---- the services, in a container that boots ----
if command -v systemd-nspawn >/dev/null; then
    timed "systemd" install_in "$r" --no-install-recommends systemd dbus
    check "systemd takes the units" inside "$r" systemd-analyze verify --man=no kernelrl.service kernelrl-verify.service
    check "without a warning" test ! -s "$tmp/out"
    exposure() { inside "$r" systemd-analyze security --offline=true --no-pager "$@"; }
    for unit in kernelrl kernelrl-verify; do
        exposure $unit.service | sed -n 's/.*Overall exposure level for \(.*\): *\([0-9.]*\) .*/# exposure of \1: \2 of 10/p'
    done
    check "the server alone is closed" exposure --threshold=15 kernelrl.service
    check "with verdicts, as far as the jail allows" exposure --threshold=40 kernelrl-verify.service
    cp tests/packages/try_units tests/honest/relu_clamp.py "$given/"
    cp tests/cheats/problems/relu.py "$given/relu_module.py"
    cat >"$r/etc/systemd/system/try.service" <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh /given/try_units >/given/units.tap 2>&1; systemctl --no-block poweroff'
[Install]
WantedBy=multi-user.target
EOF
    mkdir -p "$r/etc/systemd/system/multi-user.target.wants"
    ln -sf /etc/systemd/system/try.service "$r/etc/systemd/system/multi-user.target.wants/try.service"
    timed "a container boots and tries them" timeout 600 systemd-nspawn --quiet --register=no --keep-unit --console=pipe \
        --bind="$given":/given --directory="$r" --boot
    check "to the end" grep -qE '^(not )?ok - .*(serves|stops)' "$given/units.tap"
    cp "$given/units.tap" "$tmp/out"
    while IFS= read -r line; do # its checks are ours
        case $line in
        "ok - "*"# SKIP "*) line=${line#ok - } && skip "${line% # SKIP*}" "${line##*# SKIP }" ;;
        "ok - "*) ok "${line#ok - }" ;;
        "not ok - "*) not_ok "${line#not ok - }" ;;
        "# "*) echo "$line" ;;
        esac
    done <"$given/units.tap"
    rm -f "$r/etc/systemd/system/try.service" "$r/etc/systemd/system/multi-user.target.wants/try.service"
else
    skip "the services" "systemd-nspawn is not installed"
fi
check "no Python cache, no file of it written outside of home" inside "$r" sh -c '! find /usr/share/kernelrl -newer /usr/bin/kernelrl -type f | grep .'
check "removed again" inside "$r" apt-get remove -y kernelrl
check "its configuration stays until purge" test -f "$r/etc/kernelrl/serve.yaml"
check "purged" inside "$r" apt-get purge -y kernelrl
check "with its configuration" test ! -e "$r/etc/kernelrl"
echo "1..$tap_n"
