#!/usr/bin/env bash
# The README's first command, as a stranger would run it: installs, answers, is fast the second
# time, leaves nothing running however it ends, and writes only into its folder.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
HEARTH_TRY_DIR=$(mktemp -d) && export HEARTH_TRY_DIR HEARTH_TRY_APT=1
# The script builds the binary itself.
unset HEARTH_BIN
passed=0 failed=0
row() { # row NAME COMMAND...: one row of the table
  local name=$1
  shift
  if "$@"; then passed=$((passed + 1)); echo "pass  $name"; else failed=$((failed + 1)); echo "FAIL  $name"; fi
}

# Processes whose command line names the folder.
left() { pgrep -f -- "$HEARTH_TRY_DIR/" || true; }
none_left() {
  for _ in $(seq 100); do [ -n "$(left)" ] || return 0; sleep 0.1; done
  ps -o pid,args -p "$(left | paste -sd,)"
  return 1
}
# The chat's script; one that hangs is a failed row and not a hanging test.
ended() {
  for _ in $(seq 100); do kill -0 "$script" 2>/dev/null || { wait "$script" 2>/dev/null; return 0; }; sleep 0.1; done
  kill -KILL "$script"
  return 1
}
tree() { git status --porcelain --untracked-files=all 2>/dev/null | sort; }
# A chat with an open input, in the background; returns when its daemon is there.
chat() {
  deploy/try.sh <"$HEARTH_TRY_DIR/input" >"$HEARTH_TRY_DIR/chat.out" 2>&1 7>&- &
  script=$!
  for _ in $(seq 300); do
    grep -q '^Ready' "$HEARTH_TRY_DIR/chat.out" 2>/dev/null && return 0
    sleep 0.1
  done
  cat "$HEARTH_TRY_DIR/chat.out"
  return 1
}

before=$(tree)
answer=$(timeout 900 deploy/try.sh --ask "hello")
status=$?
row "answers with status 0" test $status = 0
row "the answer is text" test -n "$answer"
echo "      $answer"

begun=$SECONDS
answer=$(timeout 120 deploy/try.sh --ask "What time is it?" --json)
status=$?
row "the second run takes less than 60 s" test $((SECONDS - begun)) -lt 60
row "the model calls a tool" grep -q 'time[._]now' <<<"$answer"
row "JSON answers with status 0" test $status = 0
row "nothing is left running" none_left

mkfifo "$HEARTH_TRY_DIR/input"
exec 7<>"$HEARTH_TRY_DIR/input"
row "a chat starts" chat
row "a second run at the same time is refused" eval '! timeout 60 deploy/try.sh --ask hello 2>/dev/null'
row "it can be stopped" timeout 60 deploy/try.sh --stop
row "the stopped chat has ended" ended
row "nothing is left running after a stop" none_left

row "a chat starts again" chat
kill -KILL "$script"
row "the killed chat has ended" ended
row "nothing is left running after a kill" none_left
exec 7>&-

row "nothing else was touched" test "$before" = "$(tree)"
rm -rf "$HEARTH_TRY_DIR"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
