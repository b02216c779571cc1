#!/usr/bin/env bash
# Try Hearth without installing it: builds the daemon, brings a small language model with its
# server from the Python registry, starts both on loopback with a throw-away home, and opens a
# chat. Everything it writes is in `.hearth-try/` of this repository and in cargo's `target/`.
#
#   deploy/try.sh                    chat
#   deploy/try.sh --ask "hello"      answer once; exits with the status of `hearth ask`
#   deploy/try.sh --ask "hi" --json  the same as JSON lines
#   deploy/try.sh --keep ...         go on with the home of the run before
#   deploy/try.sh --stop             end a run that is still there
#
# Environment: HEARTH_TRY_DIR  another folder than .hearth-try
#              HEARTH_TRY_APT  1: as root, install missing Debian packages
#              HEARTH_TRY_QUIET  1: no progress
#              HEARTH_BIN      a built daemon, instead of building one
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${HEARTH_TRY_DIR:-$root/.hearth-try}
began=$SECONDS

say() { [ "${HEARTH_TRY_QUIET:-0}" = 1 ] || printf '%s\n' "$*" >&2; }
die() { printf 'try.sh: %s\n' "$1" >&2; [ $# -lt 2 ] || printf '        %s\n' "${@:2}" >&2; exit 1; }
usage() { sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; }

question='' ask=0 keep=0 stop=0 flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --ask) [ $# -ge 2 ] || die "--ask needs a question"; ask=1 question=$2; shift ;;
    --json) flags+=(--json) ;;
    --keep) keep=1 ;;
    --stop) stop=1 ;;
    -h|--help) usage; exit 0 ;;
    *) die "unknown argument: $1" "see deploy/try.sh --help" ;;
  esac
  shift
done
[ ${#flags[@]} -eq 0 ] || [ $ask = 1 ] || die "--json goes with --ask"

umask 077
mkdir -p "$dir" "$dir/run"
dir=$(cd "$dir" && pwd)
home=$dir/home run=$dir/run venv=$dir/venv config=$dir/home/hearth.toml

# One run at a time. The lock lives as long as this shell: children do not inherit it.
exec 9>>"$run/lock"
if [ $stop = 1 ]; then
  # While the lock is held its owner is alive, so the numbers in these files are still its own.
  if flock -n 9; then say "Nothing runs in $dir."; exit 0; fi
  end() { [ ! -s "$run/$2.pid" ] || kill "-$1" "$(cat "$run/$2.pid")" 2>/dev/null || true; }
  # The chat ends with the daemon, and the shell after the chat.
  for who in shell daemon; do end TERM "$who"; done
  if ! flock -w 20 9; then
    for who in daemon model shell; do end KILL "$who"; done
    flock -w 5 9 || die "the run in $dir could not be ended"
  fi
  say "Stopped."
  exit 0
fi
flock -n 9 || die "another run uses $dir" "end it with deploy/try.sh --stop, or choose another HEARTH_TRY_DIR"
rm -f "$run"/*.pid
echo $$ >"$run/shell.pid"

model_pid='' daemon_pid=''
finish() {
  trap - EXIT
  trap '' INT TERM HUP
  local pid
  # The daemon first, so that it ends its turns while the model still answers.
  for pid in $daemon_pid $model_pid; do
    kill -TERM "$pid" 2>/dev/null || continue
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  rm -f "$run"/*.pid "$run/alive"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- What has to be there ------------------------------------------------------------------

need() { # need COMMAND PACKAGE: a Debian package for a missing command
  command -v "$1" >/dev/null && return
  install_debian "$2" "$1 is missing"
}
install_debian() {
  if [ "${HEARTH_TRY_APT:-0}" = 1 ] && [ "$(id -u)" = 0 ]; then
    say "Installing $1 ..."
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"; } \
      >"$run/apt.log" 2>&1 || die "$2, and installing $1 failed" "see $run/apt.log"
  else
    die "$2" "install it with: sudo apt-get install $1"
  fi
}

need setpriv util-linux
need python3 python3

# --- The daemon ----------------------------------------------------------------------------

hearth=${HEARTH_BIN:-}
if [ -z "$hearth" ]; then
  command -v cargo >/dev/null || PATH=$PATH:$HOME/.cargo/bin
  command -v cargo >/dev/null || die "Rust is missing" "install it with rustup, the installer of the Rust project"
  need cc gcc
  say "Building the daemon (the first time takes a few minutes) ..."
  quiet=(); [ "${HEARTH_TRY_QUIET:-0}" = 1 ] && quiet=(--quiet)
  (cd "$root" && CARGO_TARGET_DIR=$root/target cargo build "${quiet[@]}" --release --locked -p hearth) 9>&- >&2 \
    || die "the build failed"
  hearth=$root/target/release/hearth
fi
[ -x "$hearth" ] || die "$hearth cannot be run"

# --- The model and its server --------------------------------------------------------------

[ -e "$venv/installed" ] || say "Fetching the model and its server (130 MB) ..."
"$root/deploy/model/install.sh" "$venv" 9>&- || exit 1

# Both servers get a session of their own, so that Ctrl-C reaches only the chat. The model server
# ends when this shell's end of the pipe closes, the daemon when the kernel tells it that this
# shell died: neither outlives the run, however it ends.
say "Starting the model ..."
rm -f "$run/alive"
: >"$run/model.out"
mkfifo "$run/alive"
exec 8<>"$run/alive"
setsid "$venv/bin/python" -I "$root/deploy/model/serve.py" \
  <"$run/alive" >"$run/model.out" 2>"$run/model.log" 8>&- 9>&- &
model_pid=$!
echo "$model_pid" >"$run/model.pid"

if [ $keep = 0 ] || [ ! -e "$config" ]; then
  rm -rf "$home"
  mkdir -p "$home/files/notes"
  printf 'milk\nbread\n' >"$home/files/notes/shopping.txt"
fi

model_url=''
for _ in $(seq 600); do
  read -r word model_url <"$run/model.out" 2>/dev/null && [ "$word" = ready ] && break
  kill -0 "$model_pid" 2>/dev/null || { tail -n 5 "$run/model.log" >&2; die "the model server ended" "see $run/model.log"; }
  model_url=''
  sleep 0.2
done
[ -n "$model_url" ] || die "the model was not ready after 120 s" "see $run/model.log"

[ ${#home} -le 80 ] || die "the path $dir is too long for a socket" "choose a shorter HEARTH_TRY_DIR"
cat >"$config" <<TOML
[paths]
state = "$home/store"
marker = "$home/initialized"

[unlock]
method = "key_file"
key_file = "$home/unlock.key"

[console]
socket = "$home/run/console.sock"

[[model.endpoint]]
name = "small"
wire = "openai"
url = "$model_url"
model = "SmolLM2-135M-Instruct"
context_tokens = 4096
max_tokens = 256
temperature = 0.0

[[tools.root]]
path = "$home/files"
mode = "write"
TOML

# --- The daemon with its home --------------------------------------------------------------

client() { env -i PATH=/usr/bin:/bin HOME="$home" TERM="${TERM:-dumb}" LANG="${LANG:-C.UTF-8}" ${TZ:+TZ="$TZ"} \
  "$hearth" --config "$config" "$@" 8>&- 9>&-; }

if [ ! -e "$home/initialized" ]; then
  client init </dev/null >"$run/init.log" 2>&1 || { cat "$run/init.log" >&2; die "the home could not be made"; }
fi
say "Starting the daemon ..."
setsid setpriv --pdeathsig TERM env -i PATH=/usr/bin:/bin HOME="$home" ${TZ:+TZ="$TZ"} \
  "$hearth" --config "$config" serve </dev/null >"$run/daemon.log" 2>&1 8>&- 9>&- &
daemon_pid=$!
echo "$daemon_pid" >"$run/daemon.pid"
client status --wait 30 </dev/null >"$run/status.log" 2>&1 || {
  tail -n 5 "$run/daemon.log" "$run/status.log" >&2
  die "the daemon did not start" "see $run/daemon.log"
}
say "Ready after $((SECONDS - began)) s."

# From here Ctrl-C belongs to the client: it cancels the answer, not this script.
trap : INT
status=0
if [ $ask = 1 ]; then
  client ask "${flags[@]}" -- "$question" || status=$?
else
  say "A small model answers: it can tell the time, keep notes and read files. Ctrl-D ends the chat."
  client chat || status=$?
fi
exit "$status"
