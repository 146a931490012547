#!/usr/bin/env python3
"""The keys of DeepSpeed's configuration, read out of its sources: tests/offload/deepspeed_keys.txt, version by version.

    tools/ds_schema.py [--write FILE] VERSION[=DIRECTORY]...

DIRECTORY is an unpacked source distribution; without one `pip download` fetches it.  Nothing of DeepSpeed is imported or run: its
parser of configurations is followed with Python's ast, from DeepSpeedConfig._initialize_params on.  A value is a place in the
configuration (a path of keys) or unknown; subscripts, get() and `in` with a constant key make keys; functions and constructors that take
a place are entered; a pydantic model that takes a place adds its fields there.  Arguments of schedulers and of the optimizers that strata
has are those of the constructors.
"""
import argparse
import ast
import pathlib
import subprocess
import sys
import tarfile
import tempfile

OPTIMIZERS = {"ops/adam/cpu_adam.py": "DeepSpeedCPUAdam", "ops/adam/fused_adam.py": "FusedAdam",
              "ops/adagrad/cpu_adagrad.py": "DeepSpeedCPUAdagrad", "ops/lion/cpu_lion.py": "DeepSpeedCPULion",
              "ops/lion/fused_lion.py": "FusedLion"}
NOT_ARGUMENTS = {"self", "params", "model_params", "optimizer"}
ENTERED_MOST = 12  # calls inside calls


class Module:
    def __init__(self, root, path):
        self.path = path
        self.tree = ast.parse(path.read_text())
        self.names, self.stars = {}, []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                self.add_import(root, node)
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.names[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.names[node.targets[0].id] = node.value

    def add_import(self, root, node):
        if node.level > 0:
            base = self.path.parent
            for _ in range(node.level - 1):
                base = base.parent
        elif node.module and node.module.startswith("deepspeed"):
            base = root.parent
        else:
            return
        target = base.joinpath(*(node.module or "").split("."))
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(target)
            else:
                self.names[alias.asname or alias.name] = (target, alias.name)


class Schema:
    def __init__(self, root):
        self.root = root
        self.modules = {}
        self.keys = set()
        self.entered = []

    def module(self, target):
        for path in (target.with_suffix(".py"), target / "__init__.py"):
            if path.is_file():
                if path not in self.modules:
                    self.modules[path] = Module(self.root, path)
                return self.modules[path]
        return None

    def resolve(self, module, name, seen=()):
        """The node that a name stands for, and the module it was found in."""
        if module is None or (module.path, name) in seen:
            return None, None
        seen += ((module.path, name),)
        found = module.names.get(name)
        if isinstance(found, tuple):
            inner = self.module(found[0])
            if inner is None or found[1] not in inner.names:
                submodule = self.module(found[0] / found[1])
                if submodule is not None:
                    return submodule, submodule
            return self.resolve(inner, found[1], seen)
        if found is not None:
            return found, module
        for star in module.stars:
            node, where = self.resolve(self.module(star), name, seen)
            if node is not None:
                return node, where
        return None, None

    def text(self, node, module, env):
        """The string that a key's expression stands for."""
        for _ in range(8):
            if isinstance(node, ast.Constant):
                return node.value if isinstance(node.value, str) else None
            if isinstance(node, ast.Name) and isinstance(env.get(node.id), str):
                return env[node.id]
            if isinstance(node, ast.Name):
                node, module = self.resolve(module, node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner, where = self.resolve(module, node.value.id)
                node, module = self.resolve(where, node.attr) if isinstance(owner, Module) else (None, None)
            else:
                return None
            if node is None:
                return None
        return None

    def member(self, place, key):
        if key is None:
            return None
        self.keys.add(".".join(place + (key,)))
        return place + (key,)

    # --- models ---

    def bases(self, node, module):
        for base in node.bases:
            if isinstance(base, ast.Name):
                yield base.id, self.resolve(module, base.id)

    def is_model(self, node, module):
        return any(name in ("DeepSpeedConfigModel", "BaseModel") or
                   (isinstance(inner[0], ast.ClassDef) and self.is_model(*inner)) for name, inner in self.bases(node, module))

    def mount(self, node, module, place):
        for _, (base, where) in self.bases(node, module):
            if isinstance(base, ast.ClassDef) and base.name != "DeepSpeedConfigModel":
                self.mount(base, where, place)
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
                continue
            names = [field.target.id]
            if isinstance(field.value, ast.Call):
                names += [self.text(k.value, module, {}) for k in field.value.keywords if k.arg == "alias"]
            for name in filter(None, names):
                inner = self.member(place, name)
                for part in ast.walk(field.annotation):
                    model, where = self.resolve(module, part.id) if isinstance(part, ast.Name) else (None, None)
                    if isinstance(model, ast.ClassDef) and self.is_model(model, where):
                        self.mount(model, where, inner)

    # --- functions ---

    def enter(self, function, module, places, owner=None):
        """places: by parameter's name."""
        mark = (module.path, function.name, tuple(sorted(places.items())))
        if mark in self.entered or len(self.entered) > 4000 or self.depth >= ENTERED_MOST:
            return self.results.get(mark)
        self.entered.append(mark)
        self.depth += 1
        env = dict(places)
        result = self.body(function.body, module, env, owner)
        self.depth -= 1
        self.results[mark] = result
        return result

    def body(self, statements, module, env, owner):
        result = None
        for s in statements:
            if isinstance(s, ast.FunctionDef):
                continue
            if isinstance(s, ast.Return):
                value = self.value(s.value, module, env, owner) if s.value is not None else None
                result = result if result is not None else value
                continue
            if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None:
                value = self.value(s.value, module, env, owner)
                for t in s.targets if isinstance(s, ast.Assign) else [s.target]:
                    name = ast.unparse(t)
                    if value is not None or name not in env:
                        env[name] = value
                continue
            if isinstance(s, ast.For) and isinstance(s.iter, (ast.List, ast.Tuple)) and isinstance(s.target, ast.Name):
                for item in s.iter.elts:
                    env[s.target.id] = self.text(item, module, env)
                    inner = self.body(s.body, module, env, owner)
                    result = result if result is not None else inner
                continue
            if isinstance(s, ast.For) and self.defaults_of(s, module, env, owner):
                continue
            for child in ast.iter_child_nodes(s):
                if isinstance(child, ast.expr):
                    self.value(child, module, env, owner)
            for part in ("body", "orelse", "finalbody"):
                inner = self.body(getattr(s, part, []), module, env, owner)
                result = result if result is not None else inner
            for handler in getattr(s, "handlers", []):
                self.body(handler.body, module, env, owner)
        return result

    def defaults_of(self, loop, module, env, owner):
        """for key, val in PLACE.items(): DEFAULTS[key] = val - the keys of DEFAULTS are those of the place."""
        call = loop.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "items"):
            return False
        place = self.value(call.func.value, module, env, owner)
        for key in env.get("literal keys", []) if isinstance(place, tuple) else []:
            self.member(place, key)
        return isinstance(place, tuple)

    def value(self, node, module, env, owner):
        if isinstance(node, (ast.Name, ast.Attribute)):
            known = env.get(ast.unparse(node))
            return known if known is not None else self.text(node, module, env)
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Subscript):
            base = self.value(node.value, module, env, owner)
            return self.member(base, self.text(node.slice, module, env)) if isinstance(base, tuple) else None
        if isinstance(node, ast.Compare):
            base = self.value(node.comparators[0], module, env, owner)
            if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(base, tuple):
                self.member(base, self.text(node.left, module, env))
            return None
        if isinstance(node, ast.DictComp):
            return self.comprehension(node, module, env, owner)
        if isinstance(node, ast.Call):
            return self.call(node, module, env, owner)
        if isinstance(node, ast.Dict):
            env["literal keys"] = [self.text(k, module, env) for k in node.keys if k is not None]
        found = None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                inner = self.value(child, module, env, owner)
                found = inner if found is None and isinstance(inner, tuple) else found
        return found if not isinstance(node, ast.Dict) else None

    def comprehension(self, node, module, env, owner):
        loop = node.generators[0]
        for item in getattr(loop.iter, "elts", []):
            env[loop.target.id] = self.text(item, module, env)
            self.value(node.value, module, env, owner)
        return self.value(node.value.func.value, module, env, owner) if isinstance(node.value, ast.Call) and \
            isinstance(node.value.func, ast.Attribute) else None

    def call(self, node, module, env, owner):
        f = node.func
        if isinstance(f, ast.Attribute) and not (isinstance(f.value, ast.Name) and f.value.id == "self"):
            base = self.value(f.value, module, env, owner)
            if isinstance(base, tuple) and f.attr in ("get", "pop") and node.args:
                return self.member(base, self.text(node.args[0], module, env))
            if isinstance(base, tuple):
                return base  # keys(), items(), copy(), lower()
        places = [self.value(a, module, env, owner) for a in node.args]
        named = {k.arg: self.value(k.value, module, env, owner) for k in node.keywords}
        name = f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else ""
        if name in ("get_scalar_param", "get_list_param", "get_dict_param"):
            return self.member(places[0], self.text(node.args[1], module, env)) if isinstance(places[0], tuple) else None
        if name in ("copy", "deepcopy", "dict") and places:
            return places[0]
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "self" and owner is not None:
            method = next((m for m in owner.body if isinstance(m, ast.FunctionDef) and m.name == f.attr), None)
            return self.enter_with(method, module, [None] + places, named, owner)
        target, where = self.resolve(module, name) if isinstance(f, ast.Name) else (None, None)
        if isinstance(target, ast.ClassDef) and isinstance(named.get(None), tuple) and self.is_model(target, where):
            self.mount(target, where, named[None])
        elif isinstance(target, ast.ClassDef):
            init = next((m for m in target.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
            self.enter_with(init, where, [None] + places, named, target)
        elif isinstance(target, ast.FunctionDef):
            return self.enter_with(target, where, places, named, None)
        return None

    def enter_with(self, function, module, places, named, owner):
        if function is None:
            return None
        names = [a.arg for a in function.args.args]
        given = {n: p for n, p in list(zip(names, places)) + list(named.items()) if isinstance(p, (tuple, str)) and n is not None}
        if not any(isinstance(p, tuple) for p in given.values()):
            return None
        for n, default in zip(reversed(names), reversed(function.args.defaults)):
            text = self.text(default, module, {})
            if n not in given and text is not None:
                given[n] = text
        return self.enter(function, module, given, owner)

    # --- the whole ---

    def taken_by_engine(self, module):
        """What the engine takes out of the optimizer's arguments, or refuses in them, before it constructs the optimizer."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "optimizer_parameters.pop":
                self.member(("optimizer", "params"), self.text(node.args[0], module, {}))
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).startswith("optimizer_parameters"):
                self.member(("optimizer", "params"), self.text(node.left, module, {}))

    def arguments(self, module, name, place):
        init = next(m for m in module.names[name].body if isinstance(m, ast.FunctionDef) and m.name == "__init__")
        for a in init.args.args + init.args.kwonlyargs:
            if a.arg not in NOT_ARGUMENTS:
                self.member(place, a.arg)

    def read(self):
        self.depth, self.results = 0, {}
        config = self.module(self.root / "runtime" / "config")
        owner = config.names["DeepSpeedConfig"]
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "_initialize_params", "_do_warning_check"):
                self.enter(method, config, {"param_dict": (), "config": (), "self._param_dict": ()}, owner)
        schedules = self.module(self.root / "runtime" / "lr_schedules")
        for name in ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
            self.arguments(schedules, name, ("scheduler", "params"))
        for path, name in OPTIMIZERS.items():
            self.arguments(self.module(self.root / path.removesuffix(".py")), name, ("optimizer", "params"))
        self.taken_by_engine(self.module(self.root / "runtime" / "engine"))
        for key in [k for k in self.keys if k.startswith("bfloat16.")]:  # the older name of a section that is read under both
            self.keys.add(key.replace("bfloat16", "bf16"))
        return self.keys - self.removed(config)

    def removed(self, config):
        """Keys that this version knows in order to refuse them."""
        gone = set()
        for name, prefix in (("_REMOVED_TOP_LEVEL_CONFIG_KEYS", ""), ("_REMOVED_ZERO_CONFIG_KEYS", "zero_optimization.")):
            for key in getattr(config.names.get(name), "keys", []):
                gone.add(prefix + key.value)
        return {k for k in self.keys for g in gone if k == g or k.startswith(g + ".")}


def fetch(version, into):
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", into,
                    f"deepspeed=={version}"], check=True)
    with tarfile.open(f"{into}/deepspeed-{version}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return pathlib.Path(into) / f"deepspeed-{version}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION[=DIRECTORY]")
    parser.add_argument("--write", metavar="FILE", help="default: standard output")
    args = parser.parse_args()
    keys = {}
    with tempfile.TemporaryDirectory() as scratch:
        for word in args.versions:
            version, _, directory = word.partition("=")
            root = pathlib.Path(directory) if directory else fetch(version, scratch)
            for key in Schema((root / "deepspeed").resolve()).read():
                keys.setdefault(key, []).append(version)
    text = "# Keys of DeepSpeed's configuration and the versions that take them, read by tools/ds_schema.py out of the sources of\n# " + \
        ", ".join(w.partition("=")[0] for w in args.versions) + ".  tests/offload/test_config_table.c compares them with the field table.\n"
    text += "".join(f"{key} {' '.join(versions)}\n" for key, versions in sorted(keys.items()))
    if args.write:
        pathlib.Path(args.write).write_text(text)
    else:
        sys.stdout.write(text)


main()
