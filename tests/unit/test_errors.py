# SPDX-License-Identifier: Apache-2.0
"""kvshm.errors: every code of the header has its class, and says what happened."""
import errno
import re
from pathlib import Path

import kvshm
import pytest
from kvshm import errors

HEADER = Path(__file__).resolve().parents[2] / "include" / "kvshm.h"


def own_codes():
    """The enumeration of own codes, as the header has it."""
    text = HEADER.read_text()
    first, listed = re.search(r"(?s)enum \{\s*KVSHM_ECLOSED = (\d+),(.*?)\};", text).groups()
    names = re.findall(r"\bKVSHM_E[A-Z]+\b", re.sub(r"(?s)/\*.*?\*/", "", listed))
    return {name: int(first) + i for i, name in enumerate(["KVSHM_ECLOSED", *names])}


EXPECTED = {
    "KVSHM_ECLOSED": kvshm.Closed, "KVSHM_EFORKED": kvshm.Forked,
    "KVSHM_ELAYOUT": kvshm.LayoutMismatch, "KVSHM_EIDENTITY": kvshm.IdentityMismatch,
    "KVSHM_EGEOMETRY": kvshm.LayoutMismatch, "KVSHM_ENOTREADY": kvshm.ArenaNotReady,
    "KVSHM_ENOSLOT": kvshm.NoSlot, "KVSHM_ENOSPACE": kvshm.NoSpace,
    "KVSHM_ENOTMINE": kvshm.Misuse, "KVSHM_ESTATE": kvshm.Misuse, "KVSHM_EPART": kvshm.Misuse,
    "KVSHM_EPENDING": kvshm.Busy, "KVSHM_EUNSUPPORTED": kvshm.Unsupported,
    "KVSHM_EINUSE": kvshm.Busy, "KVSHM_ECANCELED": kvshm.Cancelled,
    "KVSHM_EQUOTA": kvshm.OverQuota, "KVSHM_EPINNED": kvshm.OverPinBudget,
    "KVSHM_ETOOLARGE": kvshm.TooLarge,
}


def test_every_code_of_the_header_has_its_class():
    codes = own_codes()
    assert codes.keys() == EXPECTED.keys()
    for name, code in codes.items():
        error = errors.from_code(-code, "try", "text")
        assert type(error) is EXPECTED[name], name
        assert error.code == code


@pytest.mark.parametrize("code, kind", [
    (errno.EINVAL, kvshm.InvalidArgument), (errno.ESTALE, kvshm.ArenaReplaced),
    (errno.ENOENT, kvshm.ArenaNotFound), (errno.EEXIST, kvshm.ArenaExists),
    (errno.ETIMEDOUT, kvshm.TimedOut), (errno.EACCES, kvshm.PermissionDenied),
    (errno.EBADF, kvshm.Misuse), (errno.ENOSPC, kvshm.NoSpace), (errno.EIO, kvshm.Error)])
def test_errno(code, kind):
    assert type(errors.from_code(-code, "a", "b")) is kind


def test_text_prefers_what_the_library_found():
    assert str(errors.from_code(-22, "open", "invalid", "size 7 is odd")) == "open: size 7 is odd"
    assert str(errors.from_code(-22, "open", "invalid")) == "open: invalid"


def test_hierarchy():
    for name in errors.__all__:
        thing = getattr(errors, name)
        if isinstance(thing, type):
            assert issubclass(thing, kvshm.Error) and thing.__doc__
            assert getattr(kvshm, name) is thing
    assert issubclass(kvshm.TimedOut, TimeoutError)
    assert issubclass(kvshm.InvalidArgument, ValueError)
    assert issubclass(kvshm.NoSpaceInTime, kvshm.NoSpace)


def test_errors_of_the_library_say_what_and_where(arena):
    with pytest.raises(kvshm.ArenaNotFound, match="no-such-arena") as missing:
        kvshm.Arena.attach("no-such-arena")
    assert missing.value.code == errno.ENOENT
    with pytest.raises(kvshm.InvalidArgument, match="Not A Name"):
        kvshm.Arena.open("Not A Name", blocks=1)
    fill = arena.allocate(16)
    with pytest.raises(kvshm.NoSpace, match="1 block") as full:
        arena.allocate(1)
    assert len(fill) == 16
    assert full.value.code in own_codes().values()
    with pytest.raises(kvshm.InvalidArgument, match="17"):
        arena.allocate(17)
