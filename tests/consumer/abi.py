"""What normquant.h promises to programs that are compiled already: functions, flags, enumerators, and the layout of structures on a
64-bit machine, as the compiler's debug information has it. It must equal abi.txt.

    abi.py CC [--update]   --update writes abi.txt
"""

import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
HEADER = INCLUDE / "normquant" / "normquant.h"
GOLDEN = HERE / "abi.txt"


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def debug_entries(cc):
    """{offset: entry} of the header's debug information; an entry has a tag, attributes by name and children."""
    with tempfile.TemporaryDirectory() as directory:
        unit = pathlib.Path(directory) / "unit"
        output_of(cc, "-std=c99", "-x", "c", "-c", "-gdwarf-4", "-fno-eliminate-unused-debug-types", f"-I{INCLUDE}", "-o", unit, HEADER)
        dump = output_of("readelf", "--debug-dump=info", unit)
    entries, parents, entry = {}, {}, None
    for line in dump.splitlines():
        if head := re.match(r" <(\d+)><([0-9a-f]+)>: .*\((DW_TAG_\w+)\)", line):
            depth = int(head[1])
            entry = {"tag": head[3][len("DW_TAG_"):], "children": []}
            entries[int(head[2], 16)] = parents[depth] = entry
            if depth:
                parents[depth - 1]["children"].append(entry)
        elif attribute := re.match(r"\s+<[0-9a-f]+>\s+DW_AT_(\w+)\s*: (?:\(.*?\)(?:: )?)?\s*(.*?)\s*$", line):
            entry[attribute[1]] = attribute[2]
    return entries


def type_name(entries, entry):
    if "type" not in entry:
        return "void"
    target = entries[int(entry["type"].strip("<>"), 16)]
    if "name" in target:
        return target["name"]
    return {"pointer_type": lambda: type_name(entries, target) + "*",
            "const_type": lambda: "const " + type_name(entries, target),
            "subroutine_type": lambda: "function"}[target["tag"]]()


def describe(cc):
    header = HEADER.read_text()
    for declaration in re.findall(r"^NQ_API ([^;]+);", header, re.MULTILINE):
        yield re.sub(r"\s+", " ", declaration)
    for flag, value in sorted(re.findall(r"^#define (NQ_\w+) (0x\w+)u\b", header, re.MULTILINE)):
        yield f"{flag} {value}"
    entries = debug_entries(cc)
    named = [entry for entry in entries.values() if entry.get("name", "").startswith("nq_") and entry["children"]]
    for entry in sorted(named, key=lambda entry: entry["name"]):
        if entry["tag"] == "enumeration_type":
            yield f"enum {entry['name']}, {entry['byte_size']} bytes"
            yield from (f"  {child['const_value']} {child['name']}" for child in entry["children"])
        elif entry["tag"] == "structure_type":
            yield f"struct {entry['name']}, {entry['byte_size']} bytes"
            yield from (f"  {child['data_member_location']} {child['name']}: {type_name(entries, child)}" for child in entry["children"])


def main():
    cc, update = sys.argv[1], sys.argv[2:] == ["--update"]
    found = "".join(line + "\n" for line in describe(cc))
    for needed in ("nq_launch(", "struct nq_tensors,", "enum nq_status,", "NQ_PROBLEM_OVERLAP "):
        if needed not in found:
            sys.exit(f"nothing is found of {needed.rstrip(' (,')}: this test cannot read what the compiler writes")
    if update:
        GOLDEN.write_text(found)
    elif found != GOLDEN.read_text():
        sys.stdout.writelines(difflib.unified_diff(GOLDEN.read_text().splitlines(True), found.splitlines(True), "abi.txt", "normquant.h"))
        sys.exit("Functions and enumerators may be added. Whatever else differs breaks programs that are compiled already, a field at\n"
                 "the end of a structure too, as a library refuses structures shorter than its own. It needs another SONAME: another minor\n"
                 "version while the major is 0, then another major. In either case, then: python3 tests/consumer/abi.py cc --update")


main()
