"""Go into a sandbox that another program has built, and give up the rights that it takes to do so.

bubblewrap builds walls and then starts a program afresh. A process that has imported PyTorch cannot be started afresh
without importing it again, so it goes in through the door that Linux has for this: `setns` (man 2 setns).
"""

import ctypes
import fcntl
import os

_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38  # linux/prctl.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_OTHERS = ("ipc", "net", "uts", "cgroup", "pid", "mnt")  # mnt last: with it /proc is another one


def enter_walls_of(pid: int) -> None:
    """Enter all namespaces of the process `pid`; children of this process are born in them.

    Raises:
        OSError: they are the same as this process's, or belong to somebody else.
    """
    users = [os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)]  # bubblewrap may have put one into another
    outside = os.stat("/proc/self/ns/user").st_ino
    while os.stat(parent := fcntl.ioctl(users[0], _NS_GET_PARENT)).st_ino != outside:
        users.insert(0, parent)
    paths = [(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}") for kind in _OTHERS]
    others = [os.open(path, os.O_RDONLY) for path, own in paths if os.stat(path).st_ino != os.stat(own).st_ino]
    for namespace in (users[0], *others, *users[1:]):  # the outermost user namespace owns the others
        _checked(ctypes.CDLL(None, use_errno=True).setns(namespace, 0))
    for descriptor in (parent, *users, *others):
        os.close(descriptor)


def give_up_rights() -> None:
    """Drop all capabilities for good, as `bwrap --cap-drop ALL` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):  # there are no more of them
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(libc.capset(header, (ctypes.c_uint32 * 6)()))


def _checked(returned: int) -> None:
    if returned:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
