#!/usr/bin/env python3
"""What each CUDA kernel takes of a multiprocessor, by architecture, as a table that is compared with a committed one.

    gpu_resources.py [--update] [--cuobjdump FILE] TABLE FOLDER/sm_ARCH/NAME.cubin ...

The build makes the cubins and calls this (target cuda_resources, CONTRIBUTING.md).  A kernel has a line with one column per
architecture: registers / blocks that a multiprocessor holds with them / instructions, and "+stack BYTES" where it has a stack or
spills.  A kernel with tensor products has a second line with one group per innermost loop around them:
instructions / HMMA / LDSM / MUFU / LDGSTS.

Exit code 1: a kernel is new or gone, has another count of blocks, or a larger stack.  Other differences are only named.
--update writes the table; columns of architectures that were not given stay.  cuobjdump and nvdisasm come with the toolkit, or
as PyPI's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

WARPS = {75: 32, 86: 48, 87: 48, 89: 48, 120: 48, 121: 48}  # of a multiprocessor; others: 64
BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24, 120: 24, 121: 24}  # others: 32
NOT_UNDERSTOOD = ValueError, KeyError, IndexError, StopIteration, ZeroDivisionError  # what other text than expected leads to
LOOP_COUNTS = ("HMMA", "LDSM", "MUFU", "LDGSTS")
PARTITIONS, PARTITION_REGISTERS, REGISTER_UNIT = 4, 16384, 256


def blocks_by_registers(arch, registers, threads):
    """How many blocks a multiprocessor holds if only registers and threads limit them."""
    warps = (threads + 31) // 32
    of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTITIONS * (PARTITION_REGISTERS // of_warp) // warps
    return min(by_registers, WARPS.get(arch, 64) // warps, BLOCKS.get(arch, 32))


def read(cuobjdump, option, cubin):
    env = dict(os.environ, PATH=f"{pathlib.Path(cuobjdump).resolve().parent}:{os.environ['PATH']}")  # nvdisasm lies beside it
    try:
        done = subprocess.run([cuobjdump, option, cubin], capture_output=True, text=True, env=env)
    except OSError as error:
        sys.exit(f"{cuobjdump}: {error.strerror}: --cuobjdump names the toolkit's or PyPI's")
    if done.returncode != 0:
        sys.exit(f"{cuobjdump} {option} {cubin}: {done.stderr.strip()}")
    return done.stdout


def resources(text):
    """{mangled name: (registers, stack)} of -res-usage."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    return {name: (int(registers), int(stack) + int(local)) for name, registers, stack, local in found}


def most_threads(text):
    """{mangled name: threads of a block} of -elf: the bound that the kernel was compiled for."""
    threads, name = {}, None
    lines = iter(text.splitlines())
    for line in lines:
        section = re.match(r"\.nv\.info\.(\S+)", line)
        if section:
            name = section.group(1)
        elif name and ("EIATTR_MAX_THREADS" in line or "EIATTR_REQNTID" in line):
            next(lines)
            x, y, z = (int(value, 16) for value in next(lines).split()[1:4])
            threads[name] = x * y * z
    return threads


def loops_with_products(code):
    """One text per innermost loop that has HMMA; code: [(address, instruction)]."""
    def name(instruction):
        return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")[0]

    loops = []
    for address, instruction in code:
        jump = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", instruction)
        if jump and int(jump.group(1), 16) < address:
            first = int(jump.group(1), 16)
            body = [name(i) for at, i in code if first <= at <= address]
            if "HMMA" in body:
                loops.append((first, address, body))
    inner = [a for a in loops if not any(b is not a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return " ".join("/".join(str(n) for n in [len(body)] + [body.count(c) for c in LOOP_COUNTS]) for _, _, body in inner)


def disassembled(text):
    """{mangled name: [(address, instruction)]} of -sass."""
    kernels, code = {}, None
    for line in text.splitlines():
        function = re.match(r"\s*Function : (\S+)", line)
        instruction = re.match(r"\s*/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", line)
        if function:
            code = kernels.setdefault(function.group(1), [])
        elif instruction:
            code.append((int(instruction.group(1), 16), instruction.group(2)))
    return kernels


def readable(names):
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True)
    plain = [re.sub(r"^void |\(anonymous namespace\)::|\([\w ]+\)|(?<=\d)u\b| ", "", n) for n in done.stdout.splitlines()]
    return dict(zip(names, plain))


def measure_cubin(rows, arch, cuobjdump, cubin):
    code, threads = disassembled(read(cuobjdump, "-sass", cubin)), most_threads(read(cuobjdump, "-elf", cubin))
    used = resources(read(cuobjdump, "-res-usage", cubin))
    names = readable(list(used))
    for mangled, (registers, stack) in used.items():
        key = pathlib.Path(cubin).stem, f"{names[mangled]} x{threads.get(mangled, 1024)}"
        cell = f"{registers}/{blocks_by_registers(arch, registers, threads.get(mangled, 1024))}/{len(code[mangled])}"
        rows.setdefault((*key, ""), {})[arch] = cell + (f"+stack{stack}" if stack else "")
        loops = loops_with_products(code[mangled])
        if loops:
            rows.setdefault((*key, "loops"), {})[arch] = loops


def measure(cuobjdump, cubins):
    """{(file, kernel, "" or "loops"): {arch: cell}}, and the architectures seen."""
    rows, archs = {}, set()
    for cubin in cubins:
        folder = pathlib.Path(cubin).parent.name
        if not re.fullmatch(r"sm_\d+", folder):
            sys.exit(f"{cubin}: its folder is {folder!r}, and is to name its architecture, such as sm_90")
        archs.add(int(folder[3:]))
        try:
            measure_cubin(rows, int(folder[3:]), cuobjdump, cubin)
        except NOT_UNDERSTOOD as error:
            sys.exit(f"{cubin}: what {cuobjdump} says of it is not understood: {error!r}")
    return rows, archs


def load(path):
    """Rows and architectures of a table; none if it is not there."""
    rows, archs, file, kernel = {}, [], "", ""
    for line in path.read_text().splitlines() if path.exists() else []:
        cells = [c.strip() for c in line.split("|")]
        if line.startswith("#") or not line:
            continue
        if not archs:
            archs = [int(c.removeprefix("sm_")) for c in cells[1:]]
        elif len(cells) == 1:
            file = cells[0]
        else:
            kind = "loops" if cells[0] == "loops" else ""
            kernel = kernel if kind else cells[0]
            rows[(file, kernel, kind)] = {a: c for a, c in zip(archs, cells[1:]) if c and (kind or parts(c))}
    return rows, set(archs)


def table(rows, archs):
    columns = sorted(archs)
    lines = [["kernel, threads of a block"] + [f"sm_{a}" for a in columns]]
    file = None
    for key in sorted(rows):
        if key[0] != file:
            file = key[0]
            lines.append([file])
        lines.append(["  loops" if key[2] else key[1]] + [rows[key].get(a, "") for a in columns])
    wide = [max(len(line[i]) for line in lines if len(line) > i) for i in range(len(columns) + 1)]
    head = ["# Made by tools/gpu_resources.py, which says what the numbers are: registers / blocks by registers / instructions;",
            "# loops with tensor products: instructions / HMMA / LDSM / MUFU / LDGSTS."]
    return "\n".join(head + [" | ".join(c.ljust(w) for c, w in zip(line, wide)).rstrip() for line in lines]) + "\n"


def parts(cell):
    """(registers, blocks, instructions, stack) of a kernel's cell."""
    numbers, _, stack = cell.partition("+stack")
    return (*map(int, numbers.split("/")), int(stack or 0))


def compare(old, new, archs):
    """Prints what differs; the count of differences that matter."""
    matter = 0
    for key in sorted(old.keys() | new.keys()):
        for arch in sorted(archs):
            was, now = old.get(key, {}).get(arch), new.get(key, {}).get(arch)
            if was == now:
                continue
            kernel = f"{key[0]}: {key[1]}{' ' + key[2] if key[2] else ''}, sm_{arch}"
            if key[2]:
                bad = ""
            elif was is None or now is None:
                bad = "new" if was is None else "gone"
            else:
                bad = "other blocks" if parts(was)[1] != parts(now)[1] else ""
                bad = "larger stack" if parts(now)[3] > parts(was)[3] else bad
            matter += bad != ""
            print(f"{'FAIL ' + bad if bad else 'note'}: {kernel}: {was or '-'} -> {now or '-'}")
    return matter


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--cuobjdump", default="cuobjdump", help="the program, if it is not on PATH")
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("cubins", nargs="+")
    args = parser.parse_args()
    try:
        old, columns = load(args.table)
    except NOT_UNDERSTOOD as error:
        sys.exit(f"{args.table}: is no table of this tool: {error!r}: remove it, and write it again with --update")
    new, archs = measure(args.cuobjdump, args.cubins)
    if args.update:
        for key, cells in old.items():
            kept = {a: c for a, c in cells.items() if a not in archs}
            if kept:
                new.setdefault(key, {}).update(kept)
        args.table.write_text(table(new, columns | archs))
        return 0
    matter = compare(old, new, archs)
    if matter:
        print(f"{matter} differences from {args.table} that matter.  If they are wanted: cuda_resources_update")
    return 1 if matter else 0


if __name__ == "__main__":
    sys.exit(main())
