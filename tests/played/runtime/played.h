// What the parts of the played runtime share: rules, time, streams, and the memory in which ranks meet.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace played {

// ---- report.cpp: what was done against the rules, by which thread, in which Python frames

long tid();
struct Setting {  // of the environment, read at its first use: a job may be a fork of what has loaded this
    const char *name;
    long otherwise;
    int shift = 0;
    mutable long value = 0;
    mutable bool is_read = false;
    operator long() const;
};
struct Log {  // a file NAME.PID in the folder PLAYED_LOG
    const char *name;
    FILE *file = nullptr;
    pid_t opened_by = 0;
};
void write(Log &log, const std::string &line);
void report(const char *rule, const char *call, const std::string &what);
void count(const char *call);  // one call into the runtime by this thread

// ---- time.cpp: when work ends.  No kernel runs; a stream is busy until a time, or until other ranks have come.

using ns = long long;
constexpr ns UNKNOWN = -1, NEVER = INT64_MAX / 2;
ns now();

struct Moment {  // the end of some work, and when it began
    std::atomic<ns> at{UNKNOWN}, start{UNKNOWN};
};
using When = std::shared_ptr<Moment>;

struct Meeting {  // work of several ranks, which ends at once for all of them
    virtual ~Meeting() = default;
    virtual ns end(ns start) = 0;  // this rank could start then; UNKNOWN until all ranks have said so
};

struct Work {
    ns issued, duration;
    std::vector<When> after;  // beside what its stream did before
    std::shared_ptr<Meeting> meeting;
    std::function<void()> action;  // when its turn has come
    When end = std::make_shared<Moment>();
};

struct Capture;

struct Stream {
    int device = 0;
    unsigned flags = 0;
    unsigned number = 7;          // as profilers have it; the legacy stream is 7
    ns busy = 0;                  // until when the work is that is known
    std::deque<Work> unknown;     // what comes after it
    std::shared_ptr<Capture> capture;
};

struct Event {
    int device = 0;
    unsigned flags = 0;
    When when;                    // null: never recorded
    bool captured = false;        // last recorded into a capture, which is this one
    std::weak_ptr<Capture> capture;
};

extern std::recursive_mutex all;  // over all that follows
Stream *stream(cudaStream_t handle);
When issue(Stream &stream, ns duration, std::vector<When> after = {}, std::shared_ptr<Meeting> meeting = nullptr,
           std::function<void()> action = nullptr);
When tail(Stream &stream);        // the end of all that it was given
void settle();                    // work out what can be known by now
bool over(const When &when);
void wait_for(const When &when);  // without the lock

// ---- cupti.cpp: what a profiler is told

struct Seen {  // a piece of work
    enum { NOTHING, KERNEL, COPY, SET } kind = NOTHING;
    const char *name = "";  // of a kernel; it stays
    dim3 grid = {1, 1, 1}, block = {128, 1, 1};
    size_t shared = 0, bytes = 0;
    bool from_device = true, to_device = true;  // a copy
};
struct ToldCall {  // into the runtime or the driver, until the end of the scope; another one within it is a part of it
    explicit ToldCall(const char *name);
    ~ToldCall();
    ToldCall(const ToldCall &) = delete;
    int which;
    uint64_t start = 0;
};
void see(const Seen &seen, const Stream &on, const When &when);  // under the lock: the current call has launched it

// ---- runtime.cpp: devices, contexts, errors

extern const Setting devices, kernel_ns;
extern thread_local int current;
cudaError_t failed(cudaError_t error);         // for cudaGetLastError
cudaError_t enter(const char *call);           // a call that needs a context: not allowed in a forked child
bool has_context(int device);
cudaError_t launch(const char *call, cudaStream_t stream, ns duration, const Seen &seen, std::function<void()> action = nullptr);

// ---- events.cpp

cudaError_t unsafe(const char *call);          // a call that a capture forbids
bool captured(Stream &stream, ns duration, const Seen &seen, std::function<std::shared_ptr<Meeting>()> meeting = nullptr,
              std::function<void()> action = nullptr);

}  // namespace played
