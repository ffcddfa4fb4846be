# SPDX-License-Identifier: Apache-2.0
"""S35: data is never code; nothing listens; random bytes in the arena are misses or errors.

A million random inputs run under AddressSanitizer in cpp/tests/bad_input_test.cpp; ten million of
the fuzz targets of cpp/fuzz with --full-scenarios. The sanitizer build plays their corpus each
time.
"""
import ast
import json
import os
import random
import struct
import subprocess
from pathlib import Path

import kvshm
import pytest
from support import shm_dir
from support.cli import kvshm_cli
from support.oracle import Bytes, judge, raw_keys, store

UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml",
                  "torch.serialization"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_METHODS = {("np", "load"), ("numpy", "load"), ("torch", "load"), ("builtins", "eval"),
                  ("builtins", "exec")}


def package_files():
    folder = Path(kvshm.__file__).parent
    files = [p for p in folder.rglob("*.py") if "tools" not in p.relative_to(folder).parts]
    assert len(files) > 5
    return files


def only_dumps(path, tree, name):
    """vLLM's block hashes are digests of pickles: to make one reads nothing."""
    uses = [node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == name]
    return path.name == "hashes.py" and name == "pickle" and set(uses) == {
        "dumps", "HIGHEST_PROTOCOL"}


@pytest.mark.parametrize("path", package_files(), ids=lambda p: p.name)
def test_no_loader_that_runs_what_it_reads(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            unsafe = name.split(".")[0] in UNSAFE_MODULES
            assert not unsafe or only_dumps(path, tree, name), f"{path}:{node.lineno}"
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                assert called.id not in UNSAFE_CALLS, f"{path}:{node.lineno}: {called.id}"
            elif isinstance(called, ast.Attribute):  # numpy unpickles unless told not to
                owner = getattr(called.value, "id", "")
                assert (owner, called.attr) not in UNSAFE_METHODS, f"{path}:{node.lineno}"


def test_nothing_listens(player, arena_name):
    one = player()
    one.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=8, block_bytes=1024)")
    sockets = []
    for fd in os.scandir(f"/proc/{one.pid}/fd"):
        target = os.readlink(fd.path)
        if target.startswith("socket:"):
            sockets.append(target)
        assert "kvshm" not in target or "shm/kvshm." not in target, "no descriptor is kept open"
    assert sockets == []


GEOMETRY = 320  # in the superblock; its numbers 3 and 8 are buckets and the index's offset


def point_elsewhere(file, chance):
    """Index entries that keep their tag, so that they are followed, and name any block or none."""
    file.seek(GEOMETRY)
    numbers = struct.unpack("<12Q", file.read(96))
    buckets, index = numbers[3], numbers[8]
    file.seek(index)
    entries = list(struct.unpack(f"<{buckets * 8}Q", file.read(buckets * 64)))
    changed = 0
    for i, entry in enumerate(entries):
        if entry and chance.random() < 0.3:
            number = chance.choice((0, 65, 1000, 1 << 20, 1 << 31, 0xFFFFFFFF))
            entries[i] = entry >> 32 << 32 | number
            changed += 1
    file.seek(index)
    file.write(struct.pack(f"<{len(entries)}Q", *entries))
    assert changed, "the arena has 40 entries"


@pytest.mark.crash
def test_scribbled_shared_memory(player, arena_name, rounds):
    """Every byte of the metadata but the superblock, set at random while nobody looks.

    An attached process of the same user may do that. It may cost the cache; it may not kill.
    """
    chance = random.Random(35)
    path = shm_dir / f"kvshm.{arena_name}"
    for number in range(rounds(12, 200)):
        with kvshm.Arena.create(arena_name, blocks=64, block_bytes=1024, helper=False) as arena:
            store(arena, raw_keys(0, 40)).release()
            data_offset = arena.info().data_offset
        with open(path, "r+b") as file:
            point_elsewhere(file, chance)
            for _ in range(chance.randrange(1, 400)):
                file.seek(chance.randrange(4096, data_offset - 64))
                file.write(chance.choice((chance.randbytes(8), chance.randbytes(64), b"\xff" * 32,
                                          bytes(16))))
        victim = player()
        victim.do(f"""
            a = kvshm.Arena.attach({arena_name!r}, timeout=2)
            outcomes = []
            for n in range(60):
                for call in (lambda: a.match(raw_keys(n, 8)).release(),
                             lambda: store(a, raw_keys(100 + n, 2), timeout=0.01).release(),
                             lambda: a.evict(raw_keys(n, 2)), lambda: a.presence(raw_keys(n, 9)),
                             lambda: a.reap(), lambda: a.stats(), lambda: a.is_valid(),
                             lambda: a.block(n), lambda: a.processes(), lambda: a.tick()):
                    try:
                        call()
                        outcomes.append("ok")
                    except kvshm.Error as error:
                        outcomes.append(type(error).__name__)
        """, timeout=50)
        assert victim.get("len(outcomes)") == 600, number
        victim.do("a.close()")
        assert victim.end() == 0
        kvshm.remove(arena_name)


def test_the_inspector_reads_what_it_finds(arena_name, tmp_path, rounds):
    """Any bytes and any length in the place of an arena: an answer or an error code, in JSON."""
    chance = random.Random(36)
    with kvshm.Arena.create(arena_name, blocks=64, block_bytes=1024, helper=False) as arena:
        store(arena, raw_keys(0, 40)).release()
        data_offset = arena.info().data_offset
        whole = (shm_dir / f"kvshm.{arena_name}").read_bytes()
    numbers = struct.unpack("<12Q", whole[GEOMETRY:GEOMETRY + 96])
    path = tmp_path / "kvshm.damaged"
    codes = set()
    for _ in range(rounds(40, 3000)):
        found = bytearray(whole)
        # The superblock, all but that, or the descriptors, the index and the free map.
        first, end = chance.choice(((8, 4096), (4096, data_offset), (numbers[6], numbers[11])))
        for _ in range(chance.randrange(1, 60)):
            at = chance.randrange(first, end)
            junk = chance.choice((chance.randbytes(1), chance.randbytes(8), chance.randbytes(64),
                                  b"\xff" * 8, bytes(8)))
            found[at:at + len(junk)] = junk
        if chance.random() < 0.2:
            found = found[:chance.randrange(len(found))]
        path.write_bytes(found)
        for verb in (("list",), ("stat", "damaged"), ("verify", "damaged")):
            outcome = kvshm_cli(verb[0], "-j", "--dir", tmp_path, *verb[1:])
            assert outcome.code in (0, 1, 3, 4, 5, 6), outcome
            if outcome.out:
                json.loads(outcome.out)
            codes.add((verb[0], outcome.code))
    assert {("verify", 1), ("verify", 5)} <= codes, "damage is seen, and what is no arena, too"


ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("attach", "live", "keys", "capi")


def test_the_corpus_is_kept():
    corpus = ROOT / "cpp" / "fuzz" / "corpus"
    for target in TARGETS:
        assert len(list((corpus / target).glob("*.bin"))) > 20, target
    assert sum(path.stat().st_size for path in corpus.rglob("*.bin")) < 500_000
    named = {path.stem for path in corpus.rglob("*.bin") if "-" in path.stem}
    assert "allocate-of-a-held-block" in named, "what ended a target once is played for ever"


@pytest.mark.slow
def test_ten_million_inputs(request):
    if not request.config.getoption("--full-scenarios"):
        pytest.skip("ten million inputs take some ten minutes: --full-scenarios")
    done = subprocess.run([ROOT / "tools" / "fuzz", "--executions", "10000000", "--json"],
                          capture_output=True, text=True, timeout=5400)
    if done.returncode == 2 and "Clang with libFuzzer is missing" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["executions"] >= 10_000_000
    assert result["crashes"] == 0
    for target in TARGETS:
        one = result["targets"][target]
        assert one["executions"] > 1_000_000, target
        assert one["coverage"] > one["edges"] / 20, target


def test_the_oracle_tells_all_apart():
    """The checker that these scenarios trust."""
    from support.oracle import payload
    key, other = raw_keys(0, 2)
    right = payload(key, 4096, 7)
    assert judge(right, key, 7) is Bytes.RIGHT
    assert judge(payload(key, 4096, 6), key, 7) is Bytes.STALE
    assert judge(payload(other, 4096, 7), key, 7) is Bytes.FOREIGN
    torn = right.copy()
    torn[2048:] = payload(key, 4096, 6)[2048:]
    assert judge(torn, key, 7) is Bytes.TORN
    torn[:] = right
    torn[4095] ^= 1
    assert judge(torn, key, 7) is Bytes.TORN
    assert judge(bytes(4096), key, 7) is Bytes.UNWRITTEN
    swapped = right.copy()
    swapped[:8], swapped[8:16] = right[8:16], right[:8]
    assert judge(swapped, key, 7) is Bytes.TORN
