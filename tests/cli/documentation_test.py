"""The manual page and the completions that the tool writes have what its --help has. Each shell completes with its own machinery.

    documentation_test.py NORMQUANT
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = sys.argv[1]
SKIPPED = 77


def documentation(form):
    return subprocess.run([TOOL, "documentation", form], check=True, capture_output=True, text=True).stdout


def read_help(path=()):
    """[(path, commands, options)] of the program and all below it, as --help says. Options: {(names...): takes a value}."""
    text = subprocess.run([TOOL, *path, "--help"], check=True, capture_output=True, text=True).stdout
    sections = {head: body for head, body in re.findall(r"^(\w+):[ ]*\n((?:  .*\n)+)", text, re.MULTILINE)}
    commands = re.findall(r"^  (\w\S*)", sections.get("Subcommands", ""), re.MULTILINE)
    options = {tuple(names.split(",")): bool(value)
               for names, value in re.findall(r"^  (-\S+)( [A-Z]+)?", sections["Options"], re.MULTILINE)}
    return [(path, commands, options)] + [entry for command in commands for entry in read_help((*path, command))]


HELP = read_help()


def accepted_names(path, name):
    """What an option takes, as the refusal of another value lists it; None where it takes something else."""
    kernels = ["--hidden", "64", "--arch", "all"]
    needed = {("quantize",): ["--input", "x.npy", "--weight", "w.npy", "--out", "out"], ("bench",): ["--shape", "64x1"],
              ("warmup",): kernels, ("cache", "explain"): kernels, ("cache", "export"): ["a.nqb"]}.get(path, [])
    if name in needed:
        at = needed.index(name)
        needed = needed[:at] + needed[at + 2:]
    said = subprocess.run([TOOL, *path, *needed, name, "no-such-name"], capture_output=True, text=True,
                          env=dict(os.environ, NORMQUANT_CACHE_DIR="/nonexistent", NORMQUANT_NVRTC="/nonexistent")).stderr
    if name == "--arch":
        targets, gpus = re.search(r"accepted: (.*?)(?:; GPUs: (.*); or (all))?$", said, re.MULTILINE).group(1, 2)
        return set(targets.split(", ")) | (set(gpus.split(", ")) | {"all"} if gpus else set())
    listed = re.search(r"'no-such-name' is not accepted: choose one of (.*)", said)
    return set(re.sub(r" \(or \w+\)", "", listed[1]).split(", ")) if listed and "," in listed[1] else None


NAMES = {(path, name): accepted for path, _, options in HELP for names, takes_value in options.items() if takes_value
         for name in names if (accepted := accepted_names(path, name))}


def words_of(commands, options):
    return set(commands) | {name for names in options for name in names}


class Terminal:
    """A shell on a terminal, in which `normquant ARGUMENT...` prints <ARGUMENT...>."""

    def __init__(self, directory, *command):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(directory)
            os.execvpe(command[0], command, {"PATH": os.environ["PATH"], "HOME": directory, "TERM": "dumb"})

    def run(self, text):
        """What is between < and > once `text` has been typed."""
        os.write(self.terminal, text.encode())
        seen = ""
        while not (found := re.search(r"<([^<>]*)>\r?\n", seen)):
            if not select.select([self.terminal], [], [], 60)[0]:
                raise AssertionError(f"no answer to {text!r}, but {seen!r}")
            seen += os.read(self.terminal, 4096).decode(errors="replace")
        return found[1]

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.child, 0)


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"there is no {program}")


class Documentation(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        (self.path / "a_file").touch()

    def test_help_was_understood(self):
        paths = [path for path, _, _ in HELP]
        self.assertEqual(len(paths), len(set(paths)))
        for path in [(), ("quantize",), ("cache",), ("cache", "extract")]:
            self.assertIn(path, paths)
        self.assertEqual(dict((path, options) for path, _, options in HELP)[("cache", "extract")][("-o", "--out")], True)

    def test_names_were_understood(self):
        self.assertEqual(NAMES[("quantize",), "--format"], {"nvfp4", "mxfp4"})
        self.assertIn("rtx5090", NAMES[("warmup",), "--arch"])
        self.assertGreater(len(NAMES), 30)

    def test_the_command_that_writes_them_is_hidden(self):
        for form in ["man", "bash", "zsh", "fish"]:
            self.assertNotRegex(documentation(form), r"(?m)^(?!#|\.\\\").*\bdocumentation\b")
        self.assertNotIn(("documentation",), [path for path, _, _ in HELP])
        refused = subprocess.run([TOOL, "documentation", "html"], capture_output=True, text=True)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("FORM 'html' is not accepted: choose one of man, bash, zsh, fish", refused.stderr)

    def test_the_manual_page_has_every_option(self):
        page = documentation("man").replace("\\-", "-")
        sections = re.split(r"^\.S[HS] ", page, flags=re.MULTILINE)
        for path, _, options in HELP:
            heading = " ".join(path) or "DESCRIPTION"
            section, = [text for text in sections if re.match(rf"{heading}( \[?[A-Z]+\]?)*\n", text)]
            self.assertEqual({tuple(re.findall(r"\\fB(.*?)\\fR", line)) for line in re.findall(r"^\.TP\n(.*)", section, re.MULTILINE)
                              if "-" in line}, set(options), heading)

    @needs("groff")
    def test_the_manual_page_is_sound(self):
        checked = subprocess.run(["groff", "-man", "-ww", "-z"], input=documentation("man"), capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def test_bash(self):
        (self.path / "completion").write_text(documentation("bash"))
        script = '. ./completion; COMP_WORDS=(normquant "$@"); COMP_CWORD=$#; _normquant; printf "%s\\n" "${COMPREPLY[@]}"'

        def complete(*words):
            out = subprocess.run(["bash", "--norc", "-euc", script, "bash", *words], check=True, capture_output=True, text=True,
                                 cwd=self.path).stdout
            return set(out.split())

        for path, commands, options in HELP:
            self.assertEqual(complete(*path, ""), words_of(commands, options), path)
            for names, takes_value in options.items():
                for name in names:
                    self.assertEqual(complete(*path, name), {word for word in words_of(commands, options) if word.startswith(name)})
                    offered = NAMES.get((path, name), set()) if takes_value else words_of(commands, options)
                    self.assertEqual(complete(*path, name, ""), offered, (path, name))
        self.assertEqual(complete("cache", "li"), {"list"})
        self.assertEqual(complete("quantize", "--layout", "s"), {"swizzled"})
        self.assertEqual(complete("quantize", "--layout", "="), {"linear", "swizzled"})
        self.assertEqual(complete("quantize", "--layout", "=", "s"), {"swizzled"})
        self.assertEqual(complete("warmup", "--layout", "linear,s"), {"linear,swizzled"})
        self.assertEqual(complete("warmup", "--arch", "h200,sm_12"), {"h200,sm_120", "h200,sm_120a", "h200,sm_120f",
                                                                     "h200,sm_121", "h200,sm_121a", "h200,sm_121f"})
        self.assertEqual(complete("quantize", "--out", "cache", "--re"), set())  # a value is no command

    @needs("fish")
    def test_fish(self):
        (self.path / "completion").write_text(documentation("fish"))
        environment = dict(os.environ, HOME=str(self.path), XDG_CONFIG_HOME=str(self.path), XDG_DATA_HOME=str(self.path))

        def complete(line):
            out = subprocess.run(["fish", "--no-config", "-c", "source completion; complete -C $argv[1]", line], check=True,
                                 capture_output=True, text=True, cwd=self.path, env=environment).stdout
            return {found.split("\t")[0] for found in out.splitlines()}

        for path, commands, options in HELP:
            line = "normquant " + "".join(word + " " for word in path)
            long_names = {name for names in options for name in names if name.startswith("--")}
            self.assertEqual(complete(line + "--"), long_names, path)
            if commands:
                self.assertEqual(complete(line), set(commands))
        for (path, name), accepted in NAMES.items():
            self.assertEqual(complete(f"normquant {' '.join(path)} {name} "), accepted, (path, name))
        self.assertEqual(complete("normquant quantize --input a_"), {"a_file"})
        self.assertEqual(complete("normquant quantize --layout=s"), {"--layout=swizzled"})
        self.assertEqual(complete("normquant warmup --layout linear,s"), {"linear,swizzled"})

    @needs("zsh")
    def test_zsh(self):
        (self.path / "_normquant").write_text(documentation("zsh"))
        (self.path / ".zshrc").write_text('PS1="" PS2="" RPS1=""\nfpath=($HOME $fpath)\nautoload -U compinit\ncompinit -u -d $HOME/dump\n'
                                          'normquant() { print -r -- "<$*>" }\nbindkey "^I" complete-word\nnormquant ready\n')
        terminal = Terminal(self.path, "zsh", "-i")
        self.addCleanup(terminal.close)
        self.assertEqual(terminal.run(""), "ready")
        for path, commands, options in HELP:
            line = "normquant " + "".join(word + " " for word in path)
            words = words_of(commands, options)
            for word in words:
                begun = word[:-1]
                if len([other for other in words if other.startswith(begun)]) > 1 or not begun.strip("-"):
                    continue
                self.assertEqual(terminal.run(line + begun + "\t\n").rstrip("="), " ".join([*path, word]))
        self.assertEqual(terminal.run("normquant quantize --input a_\t\n"), "quantize --input a_file")
        self.assertEqual(terminal.run("normquant quantize --layout sw\t\n"), "quantize --layout swizzled")
        self.assertEqual(terminal.run("normquant warmup --layout linear,sw\t\n").rstrip(","), "warmup --layout linear,swizzled")


outcome = unittest.main(argv=sys.argv[:1], exit=False).result
sys.exit(1 if not outcome.wasSuccessful() else SKIPPED if outcome.skipped else 0)
