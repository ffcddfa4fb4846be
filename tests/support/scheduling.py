# SPDX-License-Identifier: Apache-2.0
"""Two processes of pytest share the tests by folder: see FolderScheduling."""
from xdist.scheduler import LoadScopeScheduling

# These mount, fill memory, kill and wait: one of them at a time, in their order.
ALONE = ("crash", "engines", "kernel", "scenarios", "semantics")


class FolderScheduling(LoadScopeScheduling):
    """The folders of ALONE stay together in one process, packaging in one, the others in one; the
    models are dealt out row by row, at the end. (Not xdist's groups: version 3.8 writes them into
    a field that pytest 9.2 does not read.)"""

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.removeprefix("tests/").partition("/")[0]
        if folder == "model":
            return nodeid
        if folder == "packaging":
            return folder
        return "alone" if folder in ALONE else "others"
