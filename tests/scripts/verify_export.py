#!/usr/bin/env python3
"""A second verifier for exported audit logs, written from docs/formats/audit-entry.md alone.

usage: verify_export.py FILE [EPOCH:MACKEY]    FILE may be -, MACKEY is 64 hexadecimal digits
Checks structure, canonical form, numbers, hash chain, and MACs from EPOCH on when its key is given.
Signatures (Ed25519) are counted, not checked: Python's standard library has none.
Exit status: 0 sound, 1 not sound (the first bad line is named), 2 wrong usage."""
import hashlib, hmac, json, re, sys

LINE_MAX = 256 * 1024
ENTRY = re.compile(rb'\{"entry":(\{.*\}),"mac":"([0-9a-f]{64})"\}', re.DOTALL)
BOTH = {"store": 32, "epoch": int, "signature": 128}  # digits of hexadecimal text, or a type
SHAPES = {"epoch": BOTH | {"first_seq": int, "prev": 64, "public_key": 64},
          "head": BOTH | {"size": int, "hash": 64, "closing": bool}}
ZERO = "0" * 64


def need(condition, what):
    if not condition:
        raise ValueError(what)


def canonical(raw):
    """The value of canonical JSON; floats come back as text, so that they are refused too."""
    value = json.loads(raw.decode(), parse_float=str, parse_constant=str)
    again = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    need(again.encode() == raw and isinstance(value, dict), "not canonical")
    return value


def shaped(name, body):
    need(isinstance(body, dict) and body.keys() == SHAPES[name].keys(), f"fields of the {name}")
    for field, shape in SHAPES[name].items():
        value, limit = body[field], 1 << (32 if field == "epoch" else 64)
        text = isinstance(shape, int) and isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{shape}}}", value)
        need(text or (type(value) is shape and 0 <= value < limit), field)


def verify(lines, mac_epoch, mac_key):
    epoch, store, size, last, signatures, macs, closed = None, None, 0, ZERO, 0, 0, False
    for number, raw in enumerate(lines, 1):
        try:
            need(len(raw) <= LINE_MAX, "too long")
            if entry := ENTRY.fullmatch(raw):
                body, mac = canonical(entry[1]), entry[2].decode()
                need(epoch is not None and type(body["seq"]) is int, "an entry without epoch or number")
                need(body["seq"] == size, f"entry {body['seq']} where {size} should stand")
                need(body["prev"] == last, f"entry {size} does not follow the one before")
                need(epoch != mac_epoch or hmac.digest(mac_key, entry[1], "sha256").hex() == mac, f"MAC of {size}")
                macs += epoch == mac_epoch
                size, last, closed = size + 1, hashlib.sha256(entry[1] + bytes.fromhex(mac)).hexdigest(), False
                continue
            ((name, body),) = canonical(raw).items()
            shaped(name, body)
            if name == "epoch":
                if epoch is None:
                    store, size, last = body["store"], body["first_seq"], body["prev"]
                    need(body["epoch"] or (size, last) == (0, ZERO), "the first epoch begins with entry 0")
                elif epoch == mac_epoch:  # HKDF-SHA256 of one block
                    secret = hmac.digest(b"hearth-audit-epoch", mac_key, "sha256")
                    mac_epoch, mac_key = epoch + 1, hmac.digest(secret, b"next\x01", "sha256")
                need(epoch is None or body["epoch"] == epoch + 1, "number of the epoch")
                need((body["first_seq"], body["prev"]) == (size, last), "the epoch does not begin here")
            else:
                need((body["epoch"], body["size"], body["hash"]) == (epoch, size, last), f"head at {size}")
            need(body["store"] == store, "another store")
            epoch, closed, signatures = body["epoch"], body.get("closing", False), signatures + 1
        except (ValueError, KeyError, RecursionError) as error:
            return 1, f"line {number}: {error}"
    if not closed:
        return 1, f"cut off after {size} entries: the last line is no closing head"
    return 0, f"chain sound, {macs} MACs checked, {signatures} signatures NOT checked\nhead {size}:{last}"


if __name__ == "__main__":
    _, file, key = (sys.argv + ["-1:" + ZERO])[:3] if len(sys.argv) in (2, 3) else sys.exit(2)
    file = sys.stdin.buffer if file == "-" else open(file, "rb")
    lines = (line.removesuffix(b"\n") for line in iter(lambda: file.readline(LINE_MAX + 2), b""))
    failed, text = verify(lines, int(key.split(":")[0]), bytes.fromhex(key.split(":")[1]))
    sys.exit(print(text) or failed)
