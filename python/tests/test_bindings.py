"""The bindings are those of the library in use; importing does nothing."""

from __future__ import annotations

import ctypes
import unittest

import strata
from strata._calls import blocked
from strata._handles import open_config
from strata._library import Library

from .common import python


class Bindings(unittest.TestCase):
    def test_every_struct_and_function_can_be_made(self) -> None:
        abi = Library.get().abi
        for name, told in abi._told["structs"].items():
            self.assertEqual(ctypes.sizeof(abi.struct(name)), told["bytes"], name)
        for name in abi._told["functions"]:
            self.assertTrue(callable(getattr(abi, name)), name)
        for name in abi._told["callbacks"]:
            abi.callback(name)

    def test_what_the_library_lacks_has_no_attribute(self) -> None:
        with self.assertRaisesRegex(AttributeError, "strata_frobnicate"):
            Library.get().abi.strata_frobnicate()

    def test_a_handle_of_another_kind_is_refused(self) -> None:
        abi = Library.get().abi
        with self.assertRaises(ctypes.ArgumentError):
            abi.strata_model_close(abi.handle("strata_config"))

    def test_an_error_has_its_parts(self) -> None:
        with self.assertRaises(strata.Error) as raised:
            strata.plan("nano", {"train_batch_size": 1, "no_such_key": 1, "nor_this": 2})
        error = raised.exception
        self.assertEqual((error.status, error.exit_code), ("E_CONFIG", 2))
        self.assertIn("no_such_key", error.cause)
        self.assertIn("nor_this", error.detail)
        self.assertIn(error.cause, str(error))

    def test_an_error_has_key_and_remedy(self) -> None:
        with self.assertRaises(strata.Error) as raised:
            strata.plan("nano", {"train_batch_size": 1}, overrides={"strata.threads": 100000})
        self.assertEqual(raised.exception.exit_code, 2)
        with self.assertRaises(strata.Error) as raised:
            strata.plan("nano", machine=strata.Machine(gpu="a card that is none"))
        self.assertEqual((raised.exception.status, raised.exception.key), ("E_INVAL", "machine.gpu"))

    def test_log_lines_go_to_logging(self) -> None:
        with self.assertLogs("strata", "INFO") as lines:
            blocked(lambda: open_config({"no_such_key": 1}, None, allow_unknown=True).close())
        self.assertTrue(any("no_such_key" in line for line in lines.output))


class Import(unittest.TestCase):
    def test_import_loads_starts_and_opens_nothing(self) -> None:
        done = python(
            "import os, sys, time\n"
            "before = time.perf_counter()\n"
            "import strata\n"
            "took = time.perf_counter() - before\n"
            "assert 'libstrata' not in open('/proc/self/maps').read(), 'the library is loaded'\n"
            "assert len(os.listdir('/proc/self/task')) == 1, 'a thread runs'\n"
            "assert not {'numpy', 'torch', 'asyncio'} & set(sys.modules), 'imports what is optional'\n"
            "print(took)\n"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 2.0)  # 0.05 s where nothing else runs

    def test_the_library_starts_no_thread_before_an_engine(self) -> None:
        done = python(
            "import strata\n"
            "strata.check({}), strata.plan('nano', measure=False), strata.info()\n"
            "from python.tests.common import threads\n"
            "assert threads(1) == 1, 'a thread runs'\n"
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_missing_library_is_said(self) -> None:
        done = python("import os; os.environ['STRATA_LIBRARY'] = '/nowhere/libstrata.so'\nimport strata; strata.info()")
        self.assertIn("ImportError", done.stderr)
        self.assertIn("STRATA_LIBRARY", done.stderr)


if __name__ == "__main__":
    unittest.main()
