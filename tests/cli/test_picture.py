"""Pictures of the program: test_picture.py STRATA DIR, where DIR has machine.json, and trace.json of a run of three steps."""
import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

LANES = ["compute", "upload", "download", "update", "update_device", "read_state", "read_weight", "read_activation", "write", "comm", "caller"]
COLOURS = ["#56b4e9", "#0072b2", "#e69f00", "#cc79a7", "#009e73", "#d55e00"]  # forward, backward, update, copy, read, write
GREY = "#8a8a8a"  # an op of no kind
SVG = "{http://www.w3.org/2000/svg}"

sys.dont_write_bytecode = True
STRATA, WORK = sys.argv[1:3]
PLAN = ["plan", "--model", "nano", "--machine", os.path.join(WORK, "machine.json"), "--nvme", WORK, "--seq-len", "32"]
OFFLOAD = ["--set", "zero_optimization.stage=3", "--set", "strata.cache=0"]
OFFLOAD += ["--set", "zero_optimization.offload_optimizer.device=nvme", "--set", "zero_optimization.offload_param.device=nvme"]


def run(*words):
    return subprocess.run([STRATA, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)


def path(name):
    return os.path.join(WORK, name)


def drawn(name, *words):
    """The root of the picture that a command draws, and what the command was."""
    done = run(*words, "--svg", path(name), "--overwrite")
    return xml.parse(path(name)).getroot(), done


def names(root):
    return [text.text for text in root.iter(SVG + "text") if text.get("class") == "name"]


def texts(root):
    return [text.text for text in root.iter(SVG + "text")]


def fills(group):
    return {p.get("fill") for p in group.iter(SVG + "path") if p.get("fill")}


def groups(root, key):
    return {g.get("data-name"): g for g in root.iter(SVG + "g") if g.get("data-" + key)}


def widths(group):
    """Of all rectangles of a lane but its ground, in pixels."""
    total = 0
    for p in group.iter(SVG + "path"):
        if p.get("class") != "ground":
            total += sum(float(w) for w in re.findall(r"h(-?[\d.]+)v", p.get("d")))
    return total


class Trace(unittest.TestCase):
    def test_every_lane_is_there(self):
        root, done = drawn("step.svg", "trace", path("trace.json"))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(names(root), ["stall"] + LANES)
        self.assertLessEqual(set(COLOURS), fills(root))
        self.assertLess(os.path.getsize(path("step.svg")), 100000)
        self.assertTrue(root.find(SVG + "title").text and root.find(SVG + "desc").text)

    def test_every_op_is_of_a_kind(self):
        root, _ = drawn("step.svg", "trace", path("trace.json"))
        lanes = groups(root, "busy")
        self.assertEqual([name for name in LANES if GREY in fills(lanes[name])], [])

    def test_steps_are_chosen(self):
        root, _ = drawn("step.svg", "trace", path("trace.json"), "--step", "1", "--width", "700")
        self.assertTrue(any(text.startswith("step 1: ") for text in texts(root)))
        self.assertEqual(root.get("width"), "700")
        done = run("trace", path("trace.json"), "--step", "999", "--svg", path("none.svg"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("step 999 is not recorded; there are 1 to 3", done.stderr)
        self.assertFalse(os.path.exists(path("none.svg")))

    def test_busy_is_what_the_trace_says(self):
        with open(path("trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        step = next(e for e in events if e.get("cat") == "step" and e["args"]["step"] == 3)
        begin, end = step["ts"], step["ts"] + step["dur"]
        thread = next(e["tid"] for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "compute")
        ops = [e for e in events if e.get("cat") == "op" and e["tid"] == thread]
        want = sum(max(0, min(e["ts"] + e["dur"], end) - max(e["ts"], begin)) for e in ops) * 1e-6
        root, _ = drawn("step.svg", "trace", path("trace.json"), "--step", "3")
        self.assertAlmostEqual(float(groups(root, "busy")["compute"].get("data-busy")), want, delta=1e-6)

    def test_nothing_is_overwritten(self):
        drawn("step.svg", "trace", path("trace.json"))
        before = os.path.getmtime(path("step.svg"))
        for words in (["trace", path("trace.json")], PLAN):
            done = run(*words, "--svg", path("step.svg"))
            self.assertEqual(done.returncode, 2)
            self.assertIn("--svg", done.stderr)
        done = run("trace", path("trace.json"), "--svg", path("trace.json"), "--overwrite")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(os.path.getmtime(path("step.svg")), before)


class Plan(unittest.TestCase):
    def test_the_lanes_are_the_simulation(self):
        root, done = drawn("plan.svg", *PLAN, *OFFLOAD, "--json")
        plan = json.loads(done.stdout)
        lanes = groups(root, "busy")
        self.assertEqual(list(lanes), ["stall"] + LANES)
        self.assertEqual(names(root), ["stall"] + LANES)
        seconds, busy = plan["predicted_seconds"], plan["predicted"]["busy_seconds"]
        for name in LANES:
            self.assertAlmostEqual(float(lanes[name].get("data-busy")), busy[name], delta=1e-6 * seconds)
        self.assertAlmostEqual(
            float(lanes["stall"].get("data-busy")), sum(plan["predicted"]["stall_seconds"].values()), delta=1e-6 * seconds
        )
        # What is drawn is as long as that, but for the least width of a span and the gaps that are merged.
        room = 1100 - 112 - 58
        self.assertAlmostEqual(widths(lanes["compute"]) / room, busy["compute"] / seconds, delta=0.1)
        self.assertGreater(busy["read_state"], 0)
        self.assertIn("#009e73", fills(lanes["read_state"]))

    def test_the_answer_is_drawn(self):
        root, done = drawn("answer.svg", "plan", "--model", "nano", "--gpu", "4090", "--batch-tokens", "1K", "--json")
        answer = json.loads(done.stdout)
        self.assertIn(" a step of ", root.find(SVG + "title").text)
        self.assertEqual(list(groups(root, "busy")), ["stall"] + LANES)
        for name, tier in groups(root, "bytes").items():
            self.assertAlmostEqual(float(tier.get("data-bytes")), answer["plan"]["tiers"][name]["needed"], delta=1e-8 * 1e10)

    def test_the_tiers_are_the_table(self):
        root, done = drawn("plan.svg", *PLAN, *OFFLOAD, "--json")
        plan = json.loads(done.stdout)
        tiers = groups(root, "bytes")
        self.assertEqual(list(tiers), ["device", "host", "nvme"])
        for name, tier in tiers.items():
            self.assertAlmostEqual(float(tier.get("data-bytes")), plan["tiers"][name]["needed"], delta=1e-8 * 1e10)
            rows = {item["name"] for item in plan["items"] if item["tier"] == name and item["bytes"] > 0}
            told = {title.text.rsplit(": ", 1)[0] for title in tier.iter(SVG + "title")}
            self.assertEqual(told, rows)

    def test_ranks_are_named(self):
        for words, ranks in ([], ""), (["--ranks", "4"], "; rank 0 of 4, ZeRO stage 3"):
            root, done = drawn("plan.svg", *PLAN, *OFFLOAD, *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = [text for text in texts(root) if text and " parameters, " in text]
            self.assertEqual(len(said), 1, texts(root))
            self.assertTrue(said[0].endswith(" sequences of 32 tokens" + ranks), said)

    def test_it_says_what_it_is_of(self):
        root, _ = drawn("plan.svg", *PLAN, *OFFLOAD)
        title = root.find(SVG + "title").text
        self.assertTrue(title.startswith('nano on <two> & "cores": a step of '), title)
        self.assertIn(title, texts(root))
        words = " ".join(texts(root))
        for word in ("gated update, vertical", "bound by", "any schedule on this hardware", "one simulated step"):
            self.assertIn(word, words)

    def test_frozen_parameters_are_counted(self):
        lora = ["--set", 'strata.lora={"r":4,"target_modules":"all-linear"}']
        root, _ = drawn("plan.svg", *PLAN, *OFFLOAD)
        self.assertTrue(any(text.startswith("859 thousand parameters, 4 blocks;") for text in texts(root)))
        root, _ = drawn("plan.svg", *PLAN, *OFFLOAD, *lora)
        said = [text for text in texts(root) if " parameters, of which " in text]
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], "^[0-9]+ thousand parameters, of which [0-9.]+ thousand are trained, 4 blocks;")

    def test_it_changes_nothing_that_is_printed(self):
        for words in ([], ["--json"], ["--ops"], ["--ops", "--json"]):
            _, done = drawn("plan.svg", *PLAN, *OFFLOAD, *words)
            self.assertEqual((done.returncode, done.stdout), (0, run(*PLAN, *OFFLOAD, *words).stdout))

    def test_what_does_not_fit_shows_what_lacks(self):
        root, done = drawn("plan.svg", *PLAN, "--micro-batch", "1", "--device-memory", "1MiB")
        self.assertEqual(done.returncode, 3)
        self.assertIn("does not fit", root.find(SVG + "title").text)
        self.assertIn("lacking ", " ".join(texts(root)))
        self.assertEqual(names(root), [])
        self.assertEqual([p.get("class") for p in groups(root, "bytes")["device"].iter(SVG + "path")].count("lacks"), 1)

    def test_without_rates_there_is_no_step(self):
        root, done = drawn("plan.svg", "plan", "--model", "nano", "--seq-len", "32", "--micro-batch", "1")
        self.assertEqual((done.returncode, names(root)), (0, []))
        self.assertIn("no rates are known", " ".join(texts(root)))

    def test_without_some_rates_there_are_bounds(self):
        with open(path("machine.json"), encoding="utf-8") as file:
            machine = json.load(file)
        del machine["update"]
        with open(path("lacks.json"), "w", encoding="utf-8") as file:
            json.dump(machine, file)
        words = [path("lacks.json") if word == path("machine.json") else word for word in PLAN]
        root, done = drawn("plan.svg", *words, *OFFLOAD)
        self.assertEqual((done.returncode, names(root)), (0, []))
        self.assertIn("a step of at least ", root.find(SVG + "title").text)
        self.assertIn("no step is drawn: a rate that the simulation needs is not known", texts(root))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
