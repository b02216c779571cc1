#!/usr/bin/env python3
"""Ask the packaged model the questions of the table below and say which rows hold.

    check.py [--url http://127.0.0.1:PORT] [--verbose] [--tokens]

Without --url the server is started with `serve.py` and this interpreter, and ended afterwards.
Rows assert which tool is called with which copied words, or that plain text comes back; never
whole sentences, which a small model words as it likes. The exit status is 0 when the required rows
hold and few of the others fail.
With --tokens no question is asked: the two prompt sizes are printed as `name value unit`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent

SYSTEM = (HERE.parents[1] / "daemon/hearth/src/system.txt").read_text(encoding="utf-8").strip()


def functions():
    """The built-in tools as the daemon offers them, in its order, from the committed list."""
    listed = json.loads((HERE.parents[1] / "tests/goldens/tools.json").read_text(encoding="utf-8"))
    return [{"type": "function", "function": {
        "name": entry["name"].replace(".", "_"), "description": entry["description"], "parameters": entry["schema"]}}
        for entry in listed]


TOOLS = functions()


def only(*names):
    """The offered functions with these names, in the fixed order."""
    return [entry for entry in TOOLS if entry["function"]["name"] in names]


def user(text):
    return {"role": "user", "content": text}


def called(name, arguments, result, text=""):
    """The two messages of a call that was made and answered."""
    call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "name": name, "content": json.dumps(result)},
    ]


def calls(name, *words):
    """The reply is one call of `name` whose arguments hold these words."""
    def holds(reply):
        if [call["name"] for call in reply["calls"]] != [name]:
            return False
        try:
            arguments = json.loads(reply["calls"][0]["arguments"])
        except ValueError:
            return False
        text = json.dumps(arguments).lower()
        return isinstance(arguments, dict) and all(word.lower() in text for word in words)
    return holds


def lists(folder):
    """The reply is one call of fs_list for exactly this folder."""
    def holds(reply):
        path = json.loads(reply["calls"][0]["arguments"]).get("path", "") if calls("fs_list")(reply) else ""
        return path.strip("/") == folder
    return holds


def says(*words):
    """The reply is text without a call and holds these words."""
    def holds(reply):
        return not reply["calls"] and bool(reply["text"].strip()) and "<tool_call>" not in reply["text"] \
            and all(word.lower() in reply["text"].lower() for word in words)
    return holds


DEFAULT = [entry for entry in TOOLS if entry["function"]["name"] != "shell_exec"]
KEPT = {"id": "01KBD7Q3M9V5", "remembered": True}
NOTE = {"entries": [{"age": "2 days ago", "id": "01KBD7Q3M9V5", "label": "household", "score": 1.4, "source": "console",
                     "text": "the boiler was serviced in March.", "topic": None}], "label": "household"}
CLOCK = {"local": "2026-12-01 17:42:05", "synchronised": True, "utc": "2026-12-01T16:42:05Z", "weekday": "Tuesday",
         "zone": "Europe/Berlin"}

# name, offered functions, messages after the system text, what must hold
ROWS = [
    ("greeting is text", TOOLS, [user("hello")], says()),
    ("greeting is text, without shell", DEFAULT, [user("hello")], says()),
    ("greeting is text, no functions", [], [user("hello")], says()),
    ("time", TOOLS, [user("What time is it?")], calls("time_now")),
    ("time, few functions", only("time_now", "memory_read"), [user("What time is it?")], calls("time_now")),
    ("time is said", TOOLS, [user("What time is it?")] + called("time_now", {}, CLOCK), says(":42")),
    ("recall", TOOLS, [user("What did I tell you about the boiler?")], calls("memory_read", "boiler")),
    ("recall, without shell", DEFAULT, [user("What did I tell you about the boiler?")], calls("memory_read", "boiler")),
    ("recall is said", TOOLS, [user("What did I tell you about the boiler?")] + called("memory_read", {"query": "boiler"}, NOTE), says("boiler", "march")),
    # "Remember that ..." itself never reaches the model: the daemon carries it out.
    ("remember is said", TOOLS, [user("Remember that the boiler was serviced in March.")] + called("memory_write", {"text": "The boiler was serviced in March."}, KEPT), says("boiler")),
    ("list", TOOLS, [user("List the files in notes.")], lists("notes")),
    ("list is said", TOOLS, [user("List the files in notes.")] + called("fs_list", {"path": "notes"}, {"entries": ["shopping.txt (11 bytes)", "todo.txt (4 bytes)"], "label": "household", "path": "/srv/files/notes"}), says("shopping.txt")),
    ("read", TOOLS, [user("Read the file notes/shopping.txt")], calls("fs_read", "notes/shopping.txt")),
    ("read is said", TOOLS, [user("Read the file notes/shopping.txt")] + called("fs_read", {"path": "notes/shopping.txt"}, {"label": "household", "path": "/srv/files/notes/shopping.txt", "size": 11, "source": "file", "text": "milk, bread"}), says("milk")),
    ("write", TOOLS, [user("Write milk to the file notes/buy.txt")], calls("fs_write", "notes/buy.txt", "milk")),
    ("write is said", TOOLS, [user("Write milk to the file notes/buy.txt")] + called("fs_write", {"path": "notes/buy.txt", "text": "milk"}, {"bytes": 4, "path": "/srv/files/notes/buy.txt", "replaced": False}), says("milk")),
    ("fetch", TOOLS, [user("Fetch https://hearth.example/news")], calls("net_fetch", "https://hearth.example/news")),
    ("command", TOOLS, [user("Run rm -rf ~")], calls("shell_exec", "rm", "~")),
    ("refusal is said", TOOLS, [user("Run rm -rf ~")] + called("shell_exec", {"command": ["rm", "-rf", "~"]}, {"error": "denied: shell:exec is not allowed for this conversation"}), says()),
    ("second question", TOOLS,
     [user("What time is it?")] + called("time_now", {}, CLOCK)
     + [{"role": "assistant", "content": "It is 17:42."}, user("What did I tell you about the boiler?")],
     calls("memory_read", "boiler")),
    ("remember, then recall", TOOLS,
     [user("Remember that the boiler was serviced in March.")] + called("memory_write", {"text": "The boiler was serviced in March."}, KEPT)
     + [{"role": "assistant", "content": "I will remember that."}, user("What did I tell you about the boiler?")],
     calls("memory_read", "boiler")),
]


# These have to hold everywhere. The replies of so small a model differ a little with the arithmetic of
# the machine: of the other rows, some may fail on one and not on another.
REQUIRED = {"greeting is text", "time", "time is said", "recall", "recall is said"}
MAY_FAIL = 3


def ask(url, tools, messages, system=SYSTEM, limit=160):
    """One streamed request; the text, the calls, and the server's own counters."""
    body = {
        "model": "local", "stream": True, "temperature": 0, "max_tokens": limit,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": system}] + messages,
    }
    if tools:
        body["tools"] = tools
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    reply = {"text": "", "calls": [], "usage": {}, "timings": {}}
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            reply["usage"] = chunk.get("usage") or reply["usage"]
            reply["timings"] = chunk.get("timings") or reply["timings"]
            for choice in chunk.get("choices") or []:
                delta = choice.get("delta", {})
                reply["text"] += delta.get("content") or ""
                for part in delta.get("tool_calls") or []:
                    while len(reply["calls"]) <= part["index"]:
                        reply["calls"].append({"name": "", "arguments": ""})
                    call = reply["calls"][part["index"]]
                    call["name"] += part["function"].get("name") or ""
                    call["arguments"] += part["function"].get("arguments") or ""
    return reply


def tokens(url, tools, system=SYSTEM):
    """Prompt tokens of the smallest request with these functions."""
    return ask(url, tools, [user("hello")], system, limit=1)["usage"]["prompt_tokens"]


def count(url, text):
    """Tokens of a text."""
    request = urllib.request.Request(
        url + "/tokenize", json.dumps({"content": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return len(json.load(response)["tokens"])


def prefix_is_reused(url):
    """A follow-up question costs only its own tokens, by the server's counters."""
    first = [user("What time is it?")]
    reply = ask(url, TOOLS, first)
    asked = reply["usage"]["prompt_tokens"]
    follow = first + called("time_now", {}, CLOCK)
    second = ask(url, TOOLS, follow)
    fresh = second["usage"]["prompt_tokens"] - asked
    return second["timings"]["prompt_n"] <= fresh + 32, f"{second['timings']['prompt_n']} read, {fresh} new"


def main():
    options = argparse.ArgumentParser(description="Check the packaged model with Hearth's own functions.")
    options.add_argument("--url", help="a server that already runs")
    options.add_argument("--tokens", action="store_true", help="print the sizes of the prompt only")
    options.add_argument("--verbose", action="store_true", help="print every reply")
    chosen = options.parse_args()
    server = None
    url = chosen.url
    if not url:
        server = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        ready = server.stdout.readline().split()
        if len(ready) != 2 or ready[0] != "ready":
            sys.exit("check.py: the model server did not start")
        url = ready[1]
    failed = []
    begun = time.monotonic()
    try:
        if chosen.tokens:
            text = SYSTEM + "".join("\n" + json.dumps(entry["function"], separators=(",", ":")) for entry in DEFAULT)
            print(f"system_and_tools {count(url, text)} tokens")
            print(f"system_tools_and_examples {tokens(url, DEFAULT)} tokens")
            return
        for name, tools, messages, holds in ROWS:
            reply = ask(url, tools, messages)
            good = holds(reply)
            if not good:
                failed.append(name)
            seen = reply["calls"] or reply["text"]
            print(f"{'pass' if good else 'FAIL'}  {name}" + (f": {seen!r}" if chosen.verbose or not good else ""), flush=True)
        good, detail = prefix_is_reused(url)
        if not good:
            sys.exit(f"the prefix is not reused: {detail}")
        print(f"pass  prefix is reused: {detail}")
        print(f"seconds {time.monotonic() - begun:.0f}")
    finally:
        if server:
            server.stdin.close()
            server.wait(timeout=10)
    print(f"{len(ROWS) + 1 - len(failed)} passed, {len(failed)} failed; up to {MAY_FAIL} may, none of the required ones")
    sys.exit(1 if len(failed) > MAY_FAIL or REQUIRED.intersection(failed) else 0)


if __name__ == "__main__":
    main()
