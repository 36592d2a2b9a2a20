"""Prints as JSON what PyPI's `minidump` or `pycrashreport` reads in a crash file: crash_reader.py minidump|ips FILE."""

import json
import logging
import signal
import sys

from minidump.minidumpfile import MinidumpFile
from pycrashreport.crash_report import get_crash_report_from_file

# The reader of minidumps also searches the environment of Windows, and logs that it is missing.
logging.disable(logging.CRITICAL)


def minidump(path):
    dump = MinidumpFile.parse(path)
    threads = dump.threads.threads
    exceptions = dump.exception.exception_records if dump.exception else []
    records = [(each.ThreadId, each.ExceptionRecord) for each in exceptions]
    return {
        "threads": [
            {"id": each.ThreadId, "rip": each.ContextObject.Rip, "rsp": each.ContextObject.Rsp} for each in threads
        ],
        "modules": [{"name": each.name, "start": each.baseaddress, "size": each.size} for each in dump.modules.modules],
        "exceptions": [
            {"thread": thread, "signal": signal.Signals(record.ExceptionCode_raw).name}
            for thread, record in records
        ],
    }


def ips(path):
    with open(path, encoding="utf-8") as file:
        report = get_crash_report_from_file(file)
    return {
        "type": report.exception_type,
        "subtype": report.exception_subtype,
        "registers": {register.name: register.value for register in report.registers},
        "frames": [
            {"image": each.image_name, "address": each.image_base + each.image_offset} for each in report.frames
        ],
    }


def main(kind, path):
    print(json.dumps({"minidump": minidump, "ips": ips}[kind](path)))


main(*sys.argv[1:])
