"""tools/python/normquant.py against normquant.h: every constant, structure and function of the header, as a C compiler sees it.

    header_test.py LIBRARY HEADER C_COMPILER
"""

import ctypes
import pathlib
import re
import subprocess
import tempfile
import unittest

import support

LIBRARY, HEADER, COMPILER = support.arguments(3)
normquant = support.import_module()
TEXT = re.sub(r"/\*.*?\*/", "", pathlib.Path(HEADER).read_text(), flags=re.DOTALL)
CONSTANTS = re.findall(r"^#define (NQ_\w+) +[^{\\\s]", TEXT, re.MULTILINE) + re.findall(r"^ +(NQ_\w+) = ", TEXT, re.MULTILINE)
CONSTANTS.remove("NQ_API")
STRUCTS = {name: {field: kind.strip() for kind, field in re.findall(r"([^;]+?)(\w+);", body)}  # {structure: {field: type}}
           for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", TEXT, re.DOTALL)}
INITIAL = re.findall(r"^#define NQ_(\w+)_INIT", TEXT, re.MULTILINE)
FUNCTIONS = re.findall(r"^NQ_API (.*?)\b(nq_\w+)\((.*?)\);", TEXT, re.MULTILINE | re.DOTALL)


def python_class(struct):
    """nq_context_options -> ContextOptions."""
    return getattr(normquant, "".join(word.capitalize() for word in struct.split("_")[1:]))


def ask_compiler(statements):
    """What a C program with these statements prints, by line."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "ask.c"), pathlib.Path(folder, "ask")
        source.write_text("#include <normquant/normquant.h>\n#include <stdio.h>\n"
                          "static void show(const void *at, size_t size) {\n"
                          "    for (size_t i = 0; i < size; ++i) printf(\"%02x\", ((const unsigned char *)at)[i]);\n"
                          "    printf(\"\\n\");\n}\n"
                          "int main(void) {\n" + "".join(f"    {statement}\n" for statement in statements) + "    return 0;\n}\n")
        include = pathlib.Path(HEADER).resolve().parents[1]
        subprocess.run([COMPILER, "-std=c99", f"-I{include}", source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


class Header(support.TestCase):
    def test_the_header_is_understood(self):
        self.assertGreater(len(CONSTANTS), 50)
        self.assertIn("NQ_ERR_INTERNAL", CONSTANTS)
        self.assertIn("NQ_TENSORS_CONSTANT_WEIGHT", CONSTANTS)
        self.assertEqual(len(STRUCTS), TEXT.count("typedef struct") - 2)  # but for the two handles
        self.assertEqual(list(STRUCTS["nq_problem"])[:3], ["struct_size", "op", "hidden"])
        self.assertEqual((STRUCTS["nq_tensors"]["rows"], STRUCTS["nq_tensors"]["device_rows"]), ("int64_t", "const int32_t *"))
        self.assertEqual(len(FUNCTIONS), TEXT.count("\nNQ_API "))

    def test_constants(self):
        found = ask_compiler(f'printf("%lld\\n", (long long)({name}));' for name in CONSTANTS)
        self.assertEqual({name: getattr(normquant, name, None) for name in CONSTANTS}, dict(zip(CONSTANTS, map(int, found))))
        self.assertEqual({name for name in vars(normquant) if name.startswith("NQ_")}, set(CONSTANTS))

    def test_layouts(self):
        questions = []
        for struct, fields in STRUCTS.items():
            questions.append(f'printf("%zu\\n", sizeof({struct}));')
            questions += [f'printf("%zu %zu\\n", offsetof({struct}, {field}), sizeof((({struct} *)0)->{field}));' for field in fields]
        expected = iter(ask_compiler(questions))
        for struct, fields in STRUCTS.items():
            mirror = python_class(struct)
            self.assertEqual((struct, ctypes.sizeof(mirror)), (struct, int(next(expected))))
            self.assertEqual([name for name, _ in mirror._fields_], list(fields), struct)
            for field in fields:
                at = getattr(mirror, field)
                self.assertEqual((struct, field, f"{at.offset} {at.size}"), (struct, field, next(expected)))

    def test_kinds(self):
        """Of the same size, but read otherwise."""
        kinds = {"uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t,
                 "float": ctypes.c_float, "nq_status": ctypes.c_int, "const char *": ctypes.c_char_p,
                 "nq_log_callback": normquant.LogCallback, "nq_compile_callback": normquant.CompileCallback}
        for struct, fields in STRUCTS.items():
            for field, kind in python_class(struct)._fields_:
                self.assertEqual((struct, field, kind), (struct, field, kinds.get(fields[field], ctypes.c_void_p)))

    def test_initial_values(self):
        self.assertGreater(len(INITIAL), 5)
        structs = [f"nq_{name.lower()}" for name in INITIAL]
        questions = [f"{{ static const {struct} initial = NQ_{name}_INIT; show(&initial, sizeof initial); }}"
                     for struct, name in zip(structs, INITIAL)]
        for struct, expected in zip(structs, ask_compiler(questions)):
            self.assertEqual((struct, bytes(python_class(struct)()).hex()), (struct, expected))

    def test_functions(self):
        results = {"nq_status": ctypes.c_int, "uint32_t": ctypes.c_uint32, "const char *": ctypes.c_char_p, "void": None}
        self.assertEqual(sorted(normquant._FUNCTIONS), sorted(name for _, name, _ in FUNCTIONS))
        for result, name, parameters in FUNCTIONS:
            returns, takes = normquant._FUNCTIONS[name]
            self.assertEqual((name, returns), (name, results[result.strip()]))
            expected = [] if parameters == "void" else [" ".join(parameter.split()) for parameter in parameters.split(",")]
            self.assertEqual((name, len(takes)), (name, len(expected)))
            for kind, parameter in zip(takes, expected):
                size = 4 if re.match(r"(uint32_t|nq_status) \w+$", parameter) else 8
                self.assertEqual((parameter, ctypes.sizeof(kind)), (parameter, size))

    def test_the_library_is_of_the_header(self):
        self.assertEqual(normquant.Library(LIBRARY).c.nq_version(), normquant.NQ_VERSION)


class Structures(support.TestCase):
    def test_an_unknown_field_is_refused(self):
        self.assert_refused(TypeError, "Problem has no field hiden", normquant.Problem, hiden=64)
        self.assert_refused(TypeError, "ContextOptions has no field cachedir",
                            normquant.Context, normquant.Library(LIBRARY), cachedir="/tmp")


if __name__ == "__main__":
    unittest.main()
