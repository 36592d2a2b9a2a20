"""Prints backtraces of one module of a running program. gdb runs this script.

Its input are convenience variables of gdb: $function, at whose calls to break; $module, the end of the module's path; $least,
the minimum number of frames of a backtrace in the module; $most, the maximum number of backtraces. Each backtrace is a line:
the word `stack`, then the addresses of its frames in the module, innermost first, relative to the module. The address of a
caller is the last byte of the call.
"""

import gdb


def text(name):
    return gdb.convenience_variable(name).string()


def mapped(module):
    """Returns the first address of the mapped module, and the address after the last."""
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        areas = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(module)]
    bounds = [int(bound, 16) for area in areas for bound in area]
    return min(bounds), max(bounds)


class Sampled(gdb.Breakpoint):
    """Prints the backtrace of each call that is deep enough. Stops the program when there are enough backtraces."""

    def __init__(self):
        super().__init__(text("function"))
        self.taken = 0

    def stop(self):
        start, end = mapped(text("module"))
        frame, addresses = gdb.newest_frame(), []
        while frame is not None and frame.is_valid():
            address = frame.pc() - (1 if addresses else 0)
            if start <= address < end:
                addresses.append(address - start)
            frame = frame.older()
        if len(addresses) < int(gdb.convenience_variable("least")):
            return False
        print("stack", *(hex(address) for address in addresses))
        self.taken += 1
        return self.taken == int(gdb.convenience_variable("most"))


gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set breakpoint pending on")
gdb.execute("set backtrace limit 512")
gdb.execute("handle all nostop noprint pass")
Sampled()
gdb.execute("run")
if gdb.selected_inferior().pid:
    gdb.execute("kill")
