"""The text that the target executes first: it meets the command and lets the agent in.

`bootstrap_text` is called by `delivery`.  The code below `IN_THE_TARGET` runs in somebody else's process: the
standard library only, nothing left in `__main__`, nothing ever raised, all work on a thread of its own, and
silence when nobody waits at the rendezvous any more.  It is plain Python that every Python 3 accepts.
"""

from __future__ import annotations

IN_THE_TARGET = r'''
def _begin(path, key):
    import _thread
    _thread.start_new_thread(_meet, (path, key))


def _meet(path, key):
    """Hello, the parts, OK or ER: in this order, over one connection."""
    try:
        import _socket
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except BaseException:
        return
    try:
        connection.connect(path)
        _serve(connection, key)
    except BaseException:
        pass
    finally:
        connection.close()
        globals().clear()  # these functions and their namespace hold each other; nobody needs them any more


def _serve(connection, key):
    import json
    connection.sendall(json.dumps(_hello(key)).encode() + b"\n")
    length = int.from_bytes(_receive(connection, 8), "little")
    order = json.loads(_receive(connection, length))
    try:
        _import_threading(order["patience"])
        _import_zmq(order["zmq"])
        order["facts"]["uid"] = _peer_uid(connection)
        reply = _start(order)
    except BaseException as error:
        code = getattr(error, "probe_code", "agent-failed")
        text = str(error) if code != "agent-failed" else _traceback(error)
        connection.sendall(b"ER" + json.dumps([code, text]).encode("utf-8", "replace"))
        return
    try:
        connection.sendall(b"OK" + json.dumps(reply).encode())
    except OSError:  # the command gave up meanwhile and has said so
        if not reply.get("already"):
            _leave()
        raise


def _traceback(error):
    try:
        import traceback
        return traceback.format_exc()
    except BaseException:  # its standard library is out of reach
        return repr(error)


def _receive(connection, count):
    """All in one call where the kernel can: each one gives the GIL away and waits for its turn."""
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
    import importlib.machinery
    import importlib.util
    import sys
    return {
        "key": key,
        "version": list(sys.version_info[:3]),
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "abiflags": sys.abiflags,
        "suffixes": importlib.machinery.EXTENSION_SUFFIXES,
        "executable": sys.executable,
        "zmq": "zmq" in sys.modules,
        "has": _digest_here(),
    }


def _digest_here():
    """Of the agent's code that is inside or laid by, which need not be sent."""
    import os
    import sys
    root = sys.modules.get(PACKAGE) or getattr(os, LAID_BY, {}).get(PACKAGE)
    return getattr(root, "digest", None) if getattr(root, "loaded", False) else None  # an older one has no digest


def _peer_uid(connection):
    import _socket
    import struct
    return struct.unpack("3i", connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))[1]


def _refusal(code, text):  # a class of our own would be a circle, left to the collector
    refusal = RuntimeError(text)
    refusal.probe_code = code
    return refusal


def _import_threading(patience):
    """The main thread must be the first to import `threading`: up to 3.12 it takes the first one for the main
    thread, from 3.13 on only native_id is wrong then.  A pending call runs there once it reaches bytecode."""
    import sys
    import time
    if "threading" in sys.modules:
        return
    harmless = sys.version_info >= (3, 13)
    try:
        import ctypes
        text = b"try:\n __import__('threading')\nexcept BaseException:\n pass\n"
        api = ctypes.pythonapi
        api.Py_IncRef(ctypes.py_object(text))  # it may be executed long after we gave up
        api.Py_AddPendingCall(api.PyRun_SimpleString, ctypes.c_char_p(text))
    except ImportError as error:
        raise _refusal("main-thread-busy", "has no ctypes (%s)" % error)
    deadline = time.monotonic() + (min(patience, 0.2) if harmless else patience)
    while not hasattr(sys.modules.get("threading"), "_main_thread"):
        if time.monotonic() > deadline:
            if harmless:
                return
            raise _refusal("main-thread-busy", "its main thread stays in native code")
        time.sleep(0.001)


def _import_zmq(loan):
    """The target's own pyzmq, else the command's; its place never enters sys.path."""
    import importlib
    if loan is None:
        return
    try:
        importlib.import_module("zmq")
        return
    except ImportError as error:
        reason = str(error)
    if not loan["path"]:
        raise _refusal("no-pyzmq", "%s; %s" % (reason, loan["refused"]))
    import importlib.machinery
    import importlib.util
    import sys
    spec = importlib.machinery.PathFinder.find_spec("zmq", [loan["path"]])
    if spec is None:
        raise _refusal("no-pyzmq", "%s; it cannot read %s" % (reason, loan["path"]))
    module = importlib.util.module_from_spec(spec)
    sys.modules["zmq"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        for name in [name for name in sys.modules if name == "zmq" or name.startswith("zmq.")]:
            del sys.modules[name]
        raise _refusal("no-pyzmq", "%s; the one in %s failed: %r" % (reason, loan["path"], error))


PACKAGE = "_probe_agent"
LAID_BY = "_probe_laid_by"  # on the os module: what agent/fork.py has left for the next attach


def _start(order):
    """One agent a process: whoever comes first makes the package, under its lock everybody else finds it."""
    import os
    import sys
    import _thread
    while True:
        root = sys.modules.get(PACKAGE)
        if root is None:
            root = sys.modules.setdefault(PACKAGE, _new_root(order))
        # a child forked from under the lock must not wait for it
        lock = root.attaching.setdefault(os.getpid(), _thread.allocate_lock())
        if not lock.acquire(True, order["patience"]):
            raise _refusal("attach-running", "another attach to it has not ended")
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
    root = getattr(os, LAID_BY, {}).get(PACKAGE)
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
            _take_up(root)
        else:
            _load(order["modules"])
            root.loaded = True
        reply = sys.modules[PACKAGE + ".agent.main"].start(order["facts"])
        _take_up(root)  # the agent that start() waited for has laid them by
        return reply
    except BaseException:
        if getattr(sys.modules.get(PACKAGE + ".agent.main"), "_agent", None) is None:  # else it runs, and goes on
            _forget()
        raise


def _take_up(root):
    """The modules that an agent has laid by when it left are imported again."""
    import os
    import sys
    laid_by = getattr(os, LAID_BY, {})
    if laid_by.get(PACKAGE) is root:
        delattr(os, LAID_BY)
        sys.modules.update(laid_by)


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
        raise _refusal("attach-running", "another attach has just ended, or a detach")
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
    """Take out the agent that is inside."""
    import sys
    main = sys.modules.get(PACKAGE + ".agent.main")
    try:
        if main is not None:
            main.stop()
    finally:
        _forget()


def _forget():
    import os
    import sys
    os.__dict__.pop(LAID_BY, None)
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]:
        sys.modules.pop(name, None)
'''

# What the interpreter gets: one statement that binds no name and lets nothing out.
_WRAPPED = """\
try:
 __import__('builtins').exec({code!r}, {{'__name__': '_probe_bootstrap', '__builtins__': __import__('builtins')}})
except BaseException:
 pass
"""


def bootstrap_text(path: str, key: str) -> bytes:
    """For the interpreter; ends in NUL.  path: of the rendezvous as the target sees it; key: to be shown there."""
    code = f"{IN_THE_TARGET}\n_begin({path!r}, {key!r})\n"
    return _WRAPPED.format(code=code).encode() + b"\0"
