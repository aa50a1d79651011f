"""The code that the target executes first: it connects to the command and starts the agent.

`delivery` has the target compile `bootstrap_text`, which is short because that holds the GIL, and sends `START` as
bytecode where it can; `probe.start` executes `START` itself.  This code runs in somebody else's process: it uses the
standard library only, leaves nothing in `__main__`, never raises, works on a thread of its own, and ends silently when
nobody waits at the rendezvous any more.  It is plain Python that every Python 3 accepts.
"""

from __future__ import annotations

_NAMES = r"""
PACKAGE = "_probe_agent"
SET_ASIDE = "_probe_laid_by"  # on the os module: the modules that agent/fork.py left for the next attach
"""
PATCHED = r'''
def _is_patched():
    """Whether what the agent's thread needs is gevent's or eventlet's: it would be a greenlet that nobody runs, or wait
    in a loop that nobody wakes.  A wrapper of start_new_thread alone, as debuggers have, is fine."""
    import _thread
    import sys
    needed = [_thread.get_ident, _thread.allocate_lock]
    select = sys.modules.get("select")
    if select is not None:
        needed.append(getattr(select, "poll", None))
    return any(type(each) is not type(len) for each in needed)
'''
_HELLO = (
    _NAMES
    + PATCHED
    + r'''
def _begin(path, key):
    import _thread
    if _is_patched():
        _connect(path, key)
    else:
        _thread.start_new_thread(_connect, (path, key))

def _connect(path, key):
    try:
        import _socket
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except BaseException:
        return
    try:
        connection.connect(path)
        try:
            _serve(connection, key)
        finally:
            connection.shutdown(_socket.SHUT_RDWR)  # a child forked meanwhile keeps its copy open
    except BaseException:
        pass
    finally:
        connection.close()
        globals().clear()  # these functions and their namespace refer to each other; nobody needs them any more

def _serve(connection, key):
    """Send hello, receive the order, and go on with the code in it, in these globals."""
    if _is_patched():  # without an import, whose locks would be greenlets' too
        connection.sendall(b'{"key": "' + key.encode() + b'", "patched": true}\n')
        return
    import json
    connection.sendall(json.dumps(_hello(key)).encode() + b"\n")
    order = json.loads(_receive(connection, int.from_bytes(_receive(connection, 8), "little")))
    _, _, source, code = order["start"]
    if code:
        import binascii
        import marshal
        code = marshal.loads(binascii.a2b_base64(code))
    exec(code or source, globals())
    _follow(connection, order)

def _receive(connection, count):
    """In one call where the kernel can: each call releases the GIL and waits to get it back."""
    import _socket
    parts = []
    while count:
        part = connection.recv(count, _socket.MSG_WAITALL)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

def _hello(key):
    import importlib.util
    import os
    import sys
    root = sys.modules.get(PACKAGE) or getattr(os, SET_ASIDE, {}).get(PACKAGE)
    return {
        "key": key,
        "version": list(sys.version_info[:3]),
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "abiflags": sys.abiflags,
        "executable": sys.executable,
        # of the agent's code that is loaded or set aside and need not be sent; an older root has none
        "has": getattr(root, "digest", None) if getattr(root, "loaded", False) else None,
    }
'''
)
START = (
    _NAMES
    + r'''
def _follow(connection, order):
    """Start the agent, send OK or ER and its text, a line."""
    import json
    try:
        import _socket
        import struct
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        order["facts"]["uid"] = struct.unpack("3i", credentials)[1]
        reply = _start(order)
    except BaseException as error:
        code = getattr(error, "probe_code", "agent-failed")
        text = str(error) if code != "agent-failed" else _traceback(error)
        connection.sendall(b"ER" + json.dumps([code, text]).encode("utf-8", "replace") + b"\n")
        return
    try:
        connection.sendall(b"OK" + json.dumps(reply).encode() + b"\n")
    except OSError:  # the command has given up meanwhile and said so
        if not reply.get("already"):
            _leave()
        raise

def _traceback(error):
    try:
        import traceback
        return traceback.format_exc()
    except BaseException:  # its standard library is out of reach
        return repr(error)

def _refusal(code, text):  # a class of our own would be a reference cycle, left to the collector
    refusal = RuntimeError(text)
    refusal.probe_code = code
    return refusal

def _start(order):
    """One agent per process: the first attach makes the package, the others find it under its lock."""
    import os
    import sys
    import _thread
    while True:
        root = sys.modules.get(PACKAGE)
        if root is None:
            root = sys.modules.setdefault(PACKAGE, _new_root(order))
        # by pid: a child forked while the lock was held must not wait for it
        lock = root.attaching.setdefault(os.getpid(), _thread.allocate_lock())
        if not lock.acquire(True, order["patience"]):
            raise _refusal("attach-running", "another attach is under way")
        try:
            if sys.modules.get(PACKAGE) is not root:
                continue
            if root.version == order["facts"]["version"]:
                return _load_and_start(root, order)
            _leave()
        finally:
            lock.release()

def _new_root(order):
    import os
    root = getattr(os, SET_ASIDE, {}).get(PACKAGE)
    if root is not None and root.digest == order["digest"]:
        return root
    root = _module(PACKAGE, True)
    root.attaching = {}
    root.version = order["facts"]["version"]
    root.digest = order["digest"]
    root.loaded = False
    return root

def _load_and_start(root, order):
    import sys
    try:
        if root.loaded:
            _take_back(root)
        else:
            _load(order["modules"])
            root.loaded = True
        reply = sys.modules[PACKAGE + ".agent.main"].start(order["facts"])
        _take_back(root)  # an agent that start() waited for has set them aside when it left
        return reply
    except BaseException:
        if getattr(sys.modules.get(PACKAGE + ".agent.main"), "_agent", None) is None:  # otherwise it runs, and stays
            _forget()
        raise

def _take_back(root):
    """Make the modules importable again that an agent set aside when it left."""
    import os
    import sys
    set_aside = getattr(os, SET_ASIDE, {})
    if set_aside.get(PACKAGE) is root:
        delattr(os, SET_ASIDE)
        sys.modules.update(set_aside)

def _module(name, is_package):
    import importlib.machinery
    import types
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=is_package)
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if is_package:
        module.__path__ = []
    return module

def _load(modules):
    import binascii
    import marshal
    import sys
    import time
    if not modules:
        raise _refusal("attach-running", "another attach or a detach has just ended")
    for name, is_package, source, code in modules:
        module = _module(PACKAGE + "." + name, is_package)
        parent, _, child = module.__name__.rpartition(".")
        module.__file__ = "<probe>/" + name.replace(".", "/") + ".py"
        sys.modules[module.__name__] = module
        ready = marshal.loads(binascii.a2b_base64(code)) if code else compile(source, module.__file__, "exec", 0, True)
        exec(ready, module.__dict__)
        setattr(sys.modules[parent], child, module)
        if not code:
            time.sleep(0)  # compiling keeps the GIL: the training waits no longer than one file takes

def _leave():
    """Take out the agent that is inside.  One that does not end stays, with its modules: another beside it would take
    its hooks for torch's own."""
    import sys
    main = sys.modules.get(PACKAGE + ".agent.main")
    try:
        if main is not None:
            main.stop()
    except BaseException as error:
        raise _refusal("attach-running", "the agent that is inside does not end: " + str(error))
    _forget()

def _forget():
    import os
    import sys
    os.__dict__.pop(SET_ASIDE, None)
    for name in [name for name in list(sys.modules) if name == PACKAGE or name.startswith(PACKAGE + ".")]:
        sys.modules.pop(name, None)
'''
)

# What the interpreter gets: one statement that binds no name and lets no exception out.
_WRAPPED = """\
try:
 __import__('builtins').exec({code!r}, {{'__name__': '_probe_bootstrap', '__builtins__': __import__('builtins')}})
except BaseException:
 pass
"""


def bootstrap_text(path: str, key: str) -> bytes:
    """Text for the interpreter, ending in NUL.  path: the rendezvous as the target sees it; key: to show there."""
    code = f"{_HELLO}\n_begin({path!r}, {key!r})\n"
    return _WRAPPED.format(code=code).encode() + b"\0"
