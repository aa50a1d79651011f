// Writes down what breaks a rule of the runtime, a line of JSON each, into the folder PLAYED_LOG, a file per process.
//
// The stack is that of the Python thread, innermost first, as "file:line function".  For it this asks the interpreter
// of the process, if there is one; it takes the GIL where the thread has let go of it.
#include "played.h"

#include <Python.h>
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <map>

namespace played {

static thread_local std::map<std::string, long> *own_counts = nullptr;
static std::map<long, std::map<std::string, long> *> counts;  // by thread; never freed: threads end at any time
static std::mutex counting;
static Log rules{"rules"};

long tid() { return syscall(SYS_gettid); }

ns now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

Setting::operator long() const {
    if (!is_read) {
        const char *text = getenv(name);
        value = (text && *text ? atol(text) : otherwise) << shift;
        is_read = true;
    }
    return value;
}

static std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (char c : text)
        if (c == '"' || c == '\\') out += std::string("\\") + c;
        else if ((unsigned char)c >= 32) out += c;
    return out + "\"";
}

static std::string text_of(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    const char *text = value ? PyUnicode_AsUTF8(value) : nullptr;
    std::string found = text ? text : "?";
    Py_XDECREF(value);
    PyErr_Clear();
    return found;
}

static std::string python_stack() {
    if (!dlsym(RTLD_DEFAULT, "Py_IsInitialized") || !Py_IsInitialized() || !PyGILState_GetThisThreadState()) return "[]";
    PyGILState_STATE had = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    std::string out = "[";
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        std::string where = text_of(code, "co_filename") + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " ";
        out += (out == "[" ? "" : ", ") + quoted(where + text_of(code, "co_name"));
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(had);
    return out + "]";
}

void write(Log &log, const std::string &line) {
    if (log.opened_by != getpid()) {  // a forked child has its own
        const char *folder = getenv("PLAYED_LOG");
        std::string path = std::string(folder ? folder : "") + "/" + log.name + "." + std::to_string(getpid());
        log.file = folder ? fopen(path.c_str(), "ae") : nullptr;
        log.opened_by = getpid();
    }
    FILE *file = log.file ? log.file : stderr;
    fputs(line.c_str(), file);
    fflush(file);
}

void report(const char *rule, const char *call, const std::string &what) {
    char name[17] = {0};
    prctl(PR_GET_NAME, name);
    std::string stack = python_stack();
    std::string line = std::string("{\"rule\": ") + quoted(rule) + ", \"call\": " + quoted(call) + ", \"what\": " +
                       quoted(what) + ", \"pid\": " + std::to_string(getpid()) + ", \"tid\": " + std::to_string(tid()) +
                       ", \"thread\": " + quoted(name) + ", \"stack\": " + stack + "}\n";
    write(rules, line);
}

void count(const char *call) {
    static const Setting wanted{"PLAYED_COUNT", 0};
    if (!wanted) return;
    if (!own_counts) {
        own_counts = new std::map<std::string, long>;
        std::lock_guard<std::mutex> lock(counting);
        counts[tid()] = own_counts;
    }
    ++(*own_counts)[call];
}

// The calls of a thread so far, as "call number\n" lines; 0 for all threads.
EXPORTED int played_counts(long thread, char *out, int room) {
    std::map<std::string, long> sums;
    std::lock_guard<std::mutex> lock(counting);
    for (auto &[owner, own] : counts)
        if (!thread || owner == thread)
            for (auto &[call, number] : *own) sums[call] += number;
    int used = 0;
    for (auto &[call, number] : sums) used += snprintf(out + used, room > used ? room - used : 0, "%s %ld\n", call.c_str(), number);
    return used;
}

}  // namespace played
