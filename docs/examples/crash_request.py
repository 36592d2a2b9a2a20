"""Makes a request to symdepot of a crash that gdb shows: a core dump, or a program that it runs.

    gdb -q -batch -x crash_request.py ./app core        # a core dump
    gdb -q -batch -ex run -x crash_request.py ./app     # run it until it crashes
    curl -s http://127.0.0.1:3021/symbolicate -d @crash.json

Writes crash.json, or the file that OUT names. gdb needs the programs and libraries that crashed, and no debug files. Each of them is identified by
its build id, as `readelf -n` prints it.
"""

import json
import os
import re
import sys

import gdb

MAPPING = re.compile(r"\s*(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)\s+(?:\S{4}\s+)?(/.*)")


def modules():
    """Returns the files that are mapped and have a build id, each with where it begins and its size."""
    files = [objfile for objfile in gdb.objfiles() if objfile.owner is None and objfile.filename]
    build_ids = {os.path.realpath(objfile.filename): objfile.build_id for objfile in files}
    areas = {}
    for line in gdb.execute("info proc mappings", to_string=True).splitlines():
        mapping = MAPPING.fullmatch(line.rstrip())
        if mapping and build_ids.get(mapping[4]):
            start, end, offset = (int(number, 16) for number in mapping.groups()[:3])
            first, last = areas.get(mapping[4], (start - offset, end))
            areas[mapping[4]] = (min(first, start - offset), max(last, end))
    return [
        {"type": "elf", "code_file": path, "code_id": build_ids[path], "image_addr": hex(start), "image_size": end - start}
        for path, (start, end) in sorted(areas.items(), key=lambda area: area[1])
    ]


def frames(frame):
    """Returns the frames of a stack, innermost first, without those that were inlined: the service finds them."""
    found, is_exact = [], True
    while frame is not None and frame.is_valid():
        if frame.type() == gdb.SIGTRAMP_FRAME:
            is_exact = True
        elif frame.type() != gdb.INLINE_FRAME:
            found.append({"instruction_addr": hex(frame.pc())})
            if is_exact:
                # Where the program stopped, or a signal interrupted it: no return address, which is the one after the call.
                found[-1]["adjust_instruction_addr"] = False
            is_exact = False
        frame = frame.older()
    return found


def stacks():
    """Returns the stack of each thread; the one that crashed is the requesting one."""
    crashed = gdb.selected_thread()
    found = []
    for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num):
        thread.switch()
        found.append({"thread_id": thread.num, "is_requesting": thread.num == crashed.num, "frames": frames(gdb.newest_frame())})
    crashed.switch()
    return found


def main():
    gdb.execute("set backtrace limit 512")
    if gdb.selected_thread() is None:
        raise gdb.error("there is no process: name a core dump behind the program, or let it run with -ex run")
    request = {"modules": modules(), "stacktraces": stacks()}
    try:
        request["signal"] = int(gdb.parse_and_eval("$_siginfo.si_signo"))
    except gdb.error:
        pass  # Not every core dump tells.
    path = os.environ.get("OUT", "crash.json")
    with open(path, "w") as out:
        json.dump(request, out, indent=1)
    print(f"{path}: {len(request['stacktraces'])} threads, {len(request['modules'])} modules")


try:
    main()
except (gdb.error, OSError) as error:
    print(error, file=sys.stderr)
    gdb.execute("quit 1")
