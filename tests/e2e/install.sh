#!/usr/bin/env bash
# `make install`: the installed program finds worker, problems, models and configurations, wherever the tree is moved and
# without KERNELRL_HOME; manual page, completion and units are there; `make uninstall` leaves nothing. What packages need
# is what tools/packages.txt says. tests/packages installs the packages themselves, in a bare Debian.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
install_to() { make --no-print-directory BUILD="$BUILD" PREFIX="$1" DESTDIR="$2" "${3:-install}"; }
# The place has a blank in its name, and the tree is moved after its installation.
check "make install" install_to "/opt/a place" "$tmp/stage"
p="$tmp/stage/opt/a place"
check "what the server reads is there" test -f "$p/etc/kernelrl/serve.yaml"
echo "# changed" >>"$p/etc/kernelrl/serve.yaml"
check "make install once more" install_to "/opt/a place" "$tmp/stage"
check "it keeps a configuration that was changed" grep -q '# changed' "$p/etc/kernelrl/serve.yaml"
mv "$tmp/stage/opt" "$tmp/moved to"
p="$tmp/moved to/a place"
krl="$p/bin/kernelrl"
python=$(command -v python3) # that of this machine, should it have PyTorch in a place of its own
clean() { (cd "$tmp" && env -i HOME="$tmp" PATH="$(dirname "$python"):/usr/bin:/bin" ${KERNELRL_PYTHON:+KERNELRL_PYTHON="$KERNELRL_PYTHON"} "$@"); }
find "$p" -printf '%P %y %m %s\n' | sort >"$tmp/before"

check "it runs" clean "$krl" version
check "by a link from elsewhere, too" sh -c "ln -s '$krl' '$tmp/link' && '$tmp/link' version"
clean "$krl" doctor >"$tmp/doctor" 2>&1
doctor=$?
check "doctor finds its files" grep -qF "files in $p/share/kernelrl" "$tmp/doctor"
check "what doctor finds is what the build finds" sh -c "'$KRL' doctor >'$tmp/here' 2>&1; test \$? = $doctor"
check "the embedded model" clean "$krl" tokenize --model models/tiny --text "void kernel"
check "the problems" sh -c "clean() { cd '$tmp' && env -i PATH=/usr/bin:/bin \"\$@\"; }
    clean '$krl' problems show level1/1_ReLU | grep -q 'class Model'"
check "a configuration is one of ours where there is no file of that name here" \
    sh -c "clean() { cd '$tmp' && env -i PATH=/usr/bin:/bin \"\$@\"; }
    clean '$krl' plan --config configs/best_of_n.yaml model_name=models/tiny | grep -q 'micro-batch'"
mkdir -p "$tmp/configs"
echo 'nonsense: 1' >"$tmp/configs/quickstart.yaml"
refuses "else it is the file" 2 'configs/quickstart.yaml:1:1: unknown key' clean "$krl" train --config configs/quickstart.yaml
rm -r "$tmp/configs"
refuses "a file that is nowhere is named as it was given" 1 '^kernelrl: configs/none.yaml' clean "$krl" train --config configs/none.yaml
if [ $doctor = 0 ]; then
    cp tests/verify/relu.py tests/verify/answers/good.c "$tmp/"
    check "a kernel is judged" sh -c "cd '$tmp' && '$krl' verify --problem relu.py --solution good.c --json | tee out2 |
        grep -q '\"correct\":true'"
else
    skip "a kernel is judged" "doctor says what is missing"
fi
find "$p" -printf '%P %y %m %s\n' | sort >"$tmp/after"
check "nothing was written there" cmp "$tmp/before" "$tmp/after"
check "KERNELRL_HOME has the last word" sh -c "env KERNELRL_HOME='$tmp' '$krl' doctor | grep -qF 'files in $tmp'"

man_page="$p/share/man/man1/kernelrl.1"
if command -v man >/dev/null; then
    check "the manual page has no mistake" sh -c "LC_ALL=C.UTF-8 MANROFFSEQ= MANWIDTH=100 \
        man --warnings -E UTF-8 -l -Tutf8 -Z '$man_page' 2>'$tmp/warned' >'$tmp/page' && cat '$tmp/warned' && test ! -s '$tmp/warned'"
    MANWIDTH=100 man -P cat -E UTF-8 -l "$man_page" 2>"$tmp/warned" | col -bx >"$tmp/page"
    check "it renders every command" sh -c "'$krl' help | sed -n 's/^  \([a-z-]*\) .*/\1/p' | grep -vxE 'man|help' |
        while read -r c; do grep -qE \"^ +\$c\\\$\" '$tmp/page' || { echo \"\$c\"; exit 1; }; done"
else
    skip "the manual page has no mistake" "man-db is not installed"
    skip "it renders every command" "man-db is not installed"
fi
# What bash does when a word is to be completed: the function fills COMPREPLY.
completed() { # WORD...
    bash -c '. "$1" && shift && f=$(complete -p kernelrl | sed "s/.*-F \([^ ]*\) .*/\1/") &&
        COMP_WORDS=(kernelrl "$@") && COMP_CWORD=$# && $f 2>/dev/null; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$p/share/bash-completion/completions/kernelrl" "$@"
}
check "completion of a command" test "$(completed vers)" = "version"
check "of a flag" test "$(completed verify --proble)" = "--problem"
check "of a key" test "$(completed train learning_r)" = "learning_rate="
if [ -f /usr/share/bash-completion/bash_completion ]; then
    check "bash-completion finds it" bash -c "export PATH='$p/bin':\$PATH XDG_DATA_DIRS='$p/share'
        . /usr/share/bash-completion/bash_completion && _completion_loader kernelrl; complete -p kernelrl | grep -q _kernelrl"
else
    skip "bash-completion finds it" "bash-completion is not installed"
fi

units="$p/lib/systemd/system"
check "the units have the paths of the installation" sh -c "
    cat '$units'/*.service | grep '^ExecStart=' | grep -cF 'ExecStart=/opt/a\\x20place/bin/kernelrl serve ' | grep -qx 2 &&
    ! grep -E '^[^#]*(PREFIX|SYSCONFDIR)' '$units'/*.service"
if "$krl" help | grep -q '^  serve '; then
    "$krl" serve --help >"$tmp/serve" 2>&1
    check "the units' flags are flags of serve" sh -c "sed -n 's/^ExecStart=//p' '$units'/*.service | grep -oE -- '--[a-z-]+' | sort -u |
        grep -vx -- --verify | # comes with the verdict service
        while read -r f; do grep -q -- \"^  *\$f\" '$tmp/serve' || { echo \"\$f\"; exit 1; }; done"
    check "and the configurations' keys" sh -c "grep -hoE '^[a-z_]+:' packaging/*.yaml | sort -u | tr -d : | tr _ - |
        while read -r k; do grep -q -- \"^  *--\$k\" '$tmp/serve' || { echo \"\$k\"; exit 1; }; done"
else
    skip "the units' flags are flags of serve" "this program has no serve"
    skip "and the configurations' keys" "this program has no serve"
fi

mkdir -p "$tmp/stage"
mv "$tmp/moved to" "$tmp/stage/opt"
check "make uninstall" install_to "/opt/a place" "$tmp/stage" uninstall
check "it leaves the changed configuration and nothing else" test \
    "$(find "$tmp/stage" ! -type d)" = "$tmp/stage/opt/a place/etc/kernelrl/serve.yaml"
check "with PREFIX=/usr the configuration is in /etc" sh -c "make --no-print-directory BUILD='$BUILD' PREFIX=/usr DESTDIR='$tmp/usr' install &&
    test -f '$tmp/usr/etc/kernelrl/verify.yaml'"
check "and uninstalled nothing is left" sh -c "make --no-print-directory PREFIX=/usr DESTDIR='$tmp/usr' uninstall &&
    test -z \"\$(find '$tmp/usr' ! -type d)\""
refuses "a PREFIX that is no whole path" 2 'PREFIX: expected a path from /' env BUILD="$BUILD" PREFIX=x tools/install

# ---- what packages say ----
section() { awk -v s="[$1]" '/^\[/ { on = $0 == s; next } on && !/^#/ && NF' tools/packages.txt | sort; }
field() { # NAME: the packages of a field of debian/control, without versions and what debhelper fills in
    awk -v f="$1:" '$1 == f { on = 1; sub(/^[^:]*:/, "") } on && /^[^ ]/ && NR > 1 && !seen++ { } on { print }
        on && !/,[ ]*$/ { exit }' debian/control | tr ',' '\n' | sed 's/([^)]*)//; s/[[:space:]]//g' | grep -v '[$]{' | grep . | sort
}
check "Build-Depends is what builds, beside the compiler" diff <(field Build-Depends | grep -v '^debhelper') \
    <(section build | grep -vxE 'gcc|make')
check "Depends and Recommends are what runs, with a compiler" diff <({ field Depends; field Recommends; } | sort) \
    <({ section run | grep -vx python3; echo gcc; echo libc6-dev; } | sort)
version=$(sed -n 's/#define KERNELRL_VERSION "\(.*\)"/\1/p' src/base/base.h)
check "one version: the program's" test "kernelrl $version" = "$("$KRL" version | sed 's/ (.*//; 1q')"
check "the changelog's" test "$version" = "$(sed -n 's/^## \([0-9][^ ]*\).*/\1/p' CHANGELOG.md | head -n 1)"
check "the Debian package's" test "$version" = "$(sed -n '1s/kernelrl (\(.*\)-[^-]*) .*/\1/p' debian/changelog)"
echo "1..$tap_n"
