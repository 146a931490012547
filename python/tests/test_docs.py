"""The examples of docs/python.md run as they stand there."""

from __future__ import annotations

import importlib.util
import os
import re
import textwrap
import unittest

from .common import ROOT, InScratch, python


def examples() -> list[str]:
    """Blocks that begin with an import."""
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"(?m)(?:^    import .*\n)(?:^(?:    .*)?\n)+", text)
    return [textwrap.dedent(block) for block in blocks]


class Examples(InScratch):
    def test_each_runs(self) -> None:
        self.assertGreaterEqual(len(examples()), 2)
        for example in examples():
            with self.subTest(example.splitlines()[-1]):
                self.assertLessEqual(len([line for line in example.splitlines() if line.strip()]), 12)
                needs = {"torch": "torch", "strata.plot": "matplotlib"}
                if any(word in example and importlib.util.find_spec(need) is None for word, need in needs.items()):
                    continue
                if "import torch, deepspeed" in example:
                    (self.scratch / "train.py").write_text(example)
                    example = "import runpy, sys; sys.argv[1:] = ['train.py']"
                    example += "; runpy.run_module('strata.deepspeed', run_name='__main__')"
                done = python(f"import os; os.chdir({os.fspath(self.scratch)!r})\n{example}")
                self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
