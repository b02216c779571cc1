#!/usr/bin/env bash
# The one way to test Hearth.
#
#   tests/run.sh             everything, as before a release
#   tests/run.sh quick       the inner loop: unit tests and house rules
#   tests/run.sh NAME ...    some groups, in this order
#   tests/run.sh --list      the names
#
# A file tests/tests/NAME.rs is a group of its own: the outer ring, which drives the real binary.
# What is missing is installed: tools of the build into target/, and, as root, Debian packages.
#
# Environment: HEARTH_FIXTURES    recorded fixtures; else ../shared/fixtures where that exists
#              HEARTH_SKIP_MODEL  1: a developer without network skips the real model; never in CI
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD
export CARGO_TARGET_DIR=$root/target CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto} HEARTH_TRY_APT=1
[ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0
tools=$root/target/tools
DENY_VERSION=0.20.2

fixed=(fmt deny clippy doc unit storage)
# These come last: they want a quiet machine.
last=(model try figures)
# No group takes this long; one that hangs fails instead of holding up the rest.
LIMIT=20m
outer=()
for file in tests/tests/*.rs; do
  name=$(basename "$file" .rs)
  case " ${last[*]} " in *" $name "*) ;; *) outer+=("$name") ;; esac
done
all=("${fixed[@]}" "${outer[@]}" "${last[@]}")

say() { printf '\n=== %s\n' "$*"; }

# --- Groups --------------------------------------------------------------------------------

fmt() { cargo fmt --all --check; }

deny() {
  local deny=$tools/bin/cargo-deny
  if [ "$("$deny" --version 2>/dev/null)" != "cargo-deny $DENY_VERSION" ]; then
    echo "installing cargo-deny $DENY_VERSION (about three minutes, once)"
    cargo install --quiet --locked --version "$DENY_VERSION" --root "$tools" \
      --target-dir "$tools/build" cargo-deny || return 1
    rm -rf "$tools/build"
  fi
  "$deny" --locked check --hide-inclusion-graph bans licenses sources
}

# The bans of clippy.toml hold for what ships; tests may read clocks and start programs.
clippy() {
  cargo clippy --workspace --lib --bins --locked -- -D warnings -D clippy::disallowed_methods &&
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked; }

# Everything but the outer ring and the storage tests.
unit() {
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --exclude hearth-tests --locked --no-fail-fast \
      -E 'not (package(hearth-store) & kind(test))' &&
      cargo test --workspace --exclude hearth-tests --doc --locked --quiet
  else
    cargo test --workspace --exclude hearth-tests --locked --no-fail-fast
  fi
}

# Power cuts, failures and damage of the store; prints its counts.
storage() {
  local file tests=()
  for file in daemon/store/tests/*.rs; do tests+=(--test "$(basename "$file" .rs)"); done
  timeout --kill-after=10 $LIMIT cargo test -p hearth-store --locked "${tests[@]}" -- --nocapture
}

# One file of the outer ring, against the binary as it ships. The whole workspace is selected so
# that libraries are built with the same features as for the unit tests, and only once.
ring() {
  [ "$1" = tidy ] || release || return 1
  cargo test --workspace --locked --test "$1" --no-run || return 1
  timeout --kill-after=10 $LIMIT cargo test --workspace --locked --test "$1" -- --show-output
}

release() {
  [ "${built:-0}" = 0 ] || return 0
  cargo build --release --locked -p hearth && built=1
}

model() {
  if [ "${HEARTH_SKIP_MODEL:-0}" = 1 ] && [ "${CI:-}" != true ]; then
    echo "SKIPPED: the real model, because HEARTH_SKIP_MODEL is set"
    return 0
  fi
  deploy/model/install.sh "$root/target/model" || return 1
  export HEARTH_MODEL_PYTHON=$root/target/model/bin/python
  timeout --kill-after=10 $LIMIT "$HEARTH_MODEL_PYTHON" deploy/model/check.py && live && ring model
}

# The clients against the model's server, which ends with the pipe on its standard input.
live() {
  local word='' address='' server status
  coproc SERVER { exec "$HEARTH_MODEL_PYTHON" -I deploy/model/serve.py 2>"$root/target/model/server.log"; }
  server=$SERVER_PID
  read -r -t 130 word address <&"${SERVER[0]}"
  [ "$word" = ready ] || { tail -n 5 "$root/target/model/server.log"; return 1; }
  HEARTH_LLAMA_URL=$address timeout --kill-after=10 $LIMIT cargo test --workspace --locked --test live
  status=$?
  kill "$server"
  wait "$server" 2>/dev/null
  return $status
}

try() { timeout --kill-after=10 $LIMIT tests/try.sh; }

# That the figures can still be measured; those that take minutes are left out.
figures() { timeout --kill-after=10 $LIMIT tests/figures.sh size code start; }

# --- The run -------------------------------------------------------------------------------

case ${1:-} in
  -h|--help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  --list) printf '%s\n' "${all[@]}"; exit 0 ;;
  quick) wanted=(unit tidy) ;;
  '') wanted=("${all[@]}")
    # The whole run cuts and kills as often as a release asks for.
    export HEARTH_POWER_CUTS=${HEARTH_POWER_CUTS:-100000} HEARTH_KILLS=${HEARTH_KILLS:-1000} ;;
  *) wanted=("$@") ;;
esac
for name in "${wanted[@]}"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "no group $name; there are: ${all[*]}" >&2; exit 2 ;; esac
done

if [ -z "${HEARTH_FIXTURES:-}" ] && [ -d ../shared/fixtures ]; then
  HEARTH_FIXTURES=$(cd ../shared/fixtures && pwd)
fi
if [ -n "${HEARTH_FIXTURES:-}" ]; then
  export HEARTH_FIXTURES
else
  echo "!!! NO FIXTURES: ../shared/fixtures is not there and HEARTH_FIXTURES is unset."
  echo "!!! Tests on recordings that are not in this repository do not run."
fi
export HEARTH_BIN=$root/target/release/hearth

missing=()
command -v cargo >/dev/null || { echo "Rust is missing: install it with rustup" >&2; exit 1; }
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v python3 >/dev/null || missing+=(python3 python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { echo "missing: install with: sudo apt-get install ${missing[*]}" >&2; exit 1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" || exit 1
fi

passed=0 failed=0 built=0 report=()
for name in "${wanted[@]}"; do
  say "$name"
  begun=$SECONDS
  case " ${outer[*]} " in *" $name "*) group=(ring "$name") ;; *) group=("$name") ;; esac
  if "${group[@]}"; then
    word=ok passed=$((passed + 1))
  else
    word=FAILED failed=$((failed + 1))
  fi
  report+=("$(printf '%-12s %-7s %4d s' "$name" "$word" $((SECONDS - begun)))")
  echo "--- ${report[-1]}"
done

say "summary, $SECONDS s in all"
printf '%s\n' "${report[@]}"
echo "groups: $passed passed, $failed failed"
[ $failed = 0 ]
