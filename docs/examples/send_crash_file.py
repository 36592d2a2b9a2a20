#!/usr/bin/env python3
"""Sends a crash file of any size to symdepot, waits for the response, and prints it.

    SYMDEPOT=http://127.0.0.1:3021 python3 send_crash_file.py crash.dmp
    SYMDEPOT=http://127.0.0.1:3021 python3 send_crash_file.py app.ips applecrashreport

The file is not read into memory: it is sent to the bucket of attachments, and a request then refers to it there. A
scope may follow the address: SYMDEPOT_SCOPE=symbols. Needs Python 3.9 and no packages.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

# Longer than the service holds a request.
TIMEOUT = 60


def ask(path, body=None):
    """Sends a request to the service, and returns its response. Redirects to large responses are followed."""
    address = os.environ["SYMDEPOT"].rstrip("/") + path
    if scope := os.environ.get("SYMDEPOT_SCOPE"):
        address += "?" + urllib.parse.urlencode({"scope": scope})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return json.load(response)


def store(path):
    """Writes a file to the bucket of attachments, and returns the URL by which requests refer to it."""
    offer = ask("/attachments", {"bytes": os.path.getsize(path)})
    upload = offer["upload"]
    with open(path, "rb") as file:
        request = urllib.request.Request(upload["url"], file, upload["headers"], method=upload["method"])
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return offer["storage_url"]


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    path, kind = sys.argv[1], (sys.argv + ["minidump"])[2]
    response = ask("/symbolicate-any", {"symbolicate": {"type": kind, "storage_url": store(path)}})
    while response["status"] == "pending":
        # The service holds a request while its files are built, but not while these builds wait in a queue.
        time.sleep(response["retry_after"])
        response = ask("/requests/" + response["request_id"])
    json.dump(response, sys.stdout, indent=2)
    print()
    return 0 if response["status"] == "completed" else 1


if __name__ == "__main__":
    if not os.environ.get("SYMDEPOT"):
        print(__doc__, file=sys.stderr)
        sys.exit("SYMDEPOT is not set: the address of the service")
    try:
        sys.exit(main())
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode(errors='replace')}")
    except (OSError, ValueError) as error:
        # No such file, no answer, or an answer that is no JSON.
        sys.exit(str(error))
