// Events, and the capture of graphs with its rules (CUDA C++ Programming Guide, "Stream Capture";
// cudaThreadExchangeStreamCaptureMode says who is kept from which calls).
#include "played.h"

#include <algorithm>
#include <set>

#undef cudaStreamGetCaptureInfo

namespace played {

struct Item {  // a node of a graph
    ns duration = 0;
    Seen seen;
    std::function<std::shared_ptr<Meeting>()> meeting;
    std::function<void()> action;
    Event *event = nullptr;  // to be recorded at each replay
};

struct Capture {
    unsigned long long id;
    cudaStreamCaptureMode mode;
    long thread;
    bool broken = false;
    std::vector<Item> items;
    std::set<Stream *> streams;
};

using Graph = std::vector<Item>;

static std::set<std::shared_ptr<Capture>> captures;
static unsigned long long captures_so_far = 0;
static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

static void break_it(const std::shared_ptr<Capture> &capture, const char *call, const char *why) {
    capture->broken = true;
    report("capture", call, why);
}

cudaError_t unsafe(const char *call) {
    std::unique_lock<std::recursive_mutex> lock(all);
    if (mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    auto known = captures;
    lock.unlock();  // a report waits for the GIL
    for (auto &each : known) {
        bool own = each->thread == tid() && each->mode != cudaStreamCaptureModeRelaxed;
        bool others = each->thread != tid() && each->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
        if (own || others) {
            break_it(each, call, own ? "in a capture of this thread" : "in a capture of another thread");
            return failed(cudaErrorStreamCaptureUnsupported);
        }
    }
    return cudaSuccess;
}

bool captured(Stream &stream, ns duration, const Seen &seen, std::function<std::shared_ptr<Meeting>()> meeting, std::function<void()> action) {
    if (stream.capture) stream.capture->items.push_back({duration, seen, std::move(meeting), std::move(action)});
    return bool(stream.capture);
}

static cudaError_t record(Event *event, cudaStream_t handle, unsigned flags) {
    if (cudaError_t error = enter("cudaEventRecord")) return error;
    std::unique_lock<std::recursive_mutex> lock(all);
    Stream &on = *stream(handle);
    if (on.device != event->device) {
        lock.unlock();
        report("device", "cudaEventRecord", "an event of device " + std::to_string(event->device) + " on a stream of " + std::to_string(on.device));
        return failed(cudaErrorInvalidResourceHandle);
    }
    event->captured = on.capture && !(flags & cudaEventRecordExternal);
    event->capture = on.capture;
    if (!on.capture) event->when = tail(on);
    else if (!event->captured) on.capture->items.push_back({0, {}, nullptr, nullptr, event});
    return cudaSuccess;
}

// What no mode allows: an event that stands in a capture has no time.
static cudaError_t stands_in_a_capture(Event *event, const char *call) {
    if (!event->captured) return cudaSuccess;
    if (auto capture = event->capture.lock()) break_it(capture, call, "on an event that was captured");
    return failed(cudaErrorCapturedEvent);
}

static cudaError_t elapsed(float *ms, Event *from, Event *to) {
    if (cudaError_t error = enter("cudaEventElapsedTime")) return error;
    for (Event *each : {from, to})
        if (!each->when || each->captured || each->flags & cudaEventDisableTiming) return failed(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::recursive_mutex> lock(all);
    if (!over(from->when) || !over(to->when)) return failed(cudaErrorNotReady);
    *ms = float((to->when->at - from->when->at) / 1e6);
    return cudaSuccess;
}

}  // namespace played

using namespace played;
#define CUDA EXPORTED cudaError_t
#define LOCKED std::lock_guard<std::recursive_mutex> lock(all)
#define ENTER(call) if (cudaError_t error = enter(call)) return error
#define SAFE(call) if (cudaError_t error = unsafe(call)) return error

CUDA cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER("cudaEventCreate");
    Event *made = new Event;
    made->device = current;
    made->flags = flags;
    *out = (cudaEvent_t)made;
    return cudaSuccess;
}
CUDA cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
CUDA cudaEventDestroy(cudaEvent_t event) {
    ENTER("cudaEventDestroy");
    delete (Event *)event;
    return cudaSuccess;
}
CUDA cudaEventRecord(cudaEvent_t event, cudaStream_t on) { return record((Event *)event, on, 0); }
CUDA cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t on, unsigned flags) { return record((Event *)event, on, flags); }
CUDA cudaEventQuery(cudaEvent_t handle) {
    ENTER("cudaEventQuery");
    Event *event = (Event *)handle;
    if (cudaError_t error = stands_in_a_capture(event, "cudaEventQuery")) return error;
    SAFE("cudaEventQuery");
    LOCKED;
    return !event->when || over(event->when) ? cudaSuccess : failed(cudaErrorNotReady);
}
CUDA cudaEventSynchronize(cudaEvent_t handle) {
    ENTER("cudaEventSynchronize");
    Event *event = (Event *)handle;
    if (cudaError_t error = stands_in_a_capture(event, "cudaEventSynchronize")) return error;
    SAFE("cudaEventSynchronize");
    if (event->when) wait_for(event->when);
    return cudaSuccess;
}
CUDA cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) { return elapsed(ms, (Event *)from, (Event *)to); }
CUDA cudaEventElapsedTime_v2(float *ms, cudaEvent_t from, cudaEvent_t to) { return elapsed(ms, (Event *)from, (Event *)to); }
CUDA cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
    ENTER("cudaStreamWaitEvent");
    LOCKED;
    Stream &on = *stream(handle);
    Event *event = (Event *)awaited;
    if (event->captured) {  // the stream joins that capture
        if ((on.capture = event->capture.lock())) on.capture->streams.insert(&on);
    } else if (event->when && !on.capture) {
        if (event->when->at == UNKNOWN || !on.unknown.empty()) issue(on, 0, {event->when});
        else on.busy = std::max(on.busy, event->when->at.load());
    }
    return cudaSuccess;
}

// graphs

CUDA cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *wanted) {
    count("cudaThreadExchangeStreamCaptureMode");
    std::swap(mode, *wanted);
    return cudaSuccess;
}
CUDA cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode how) {
    ENTER("cudaStreamBeginCapture");
    LOCKED;
    Stream *on = stream(handle);
    on->capture = std::make_shared<Capture>(Capture{++captures_so_far, how, tid()});
    on->capture->streams.insert(on);
    captures.insert(on->capture);
    return cudaSuccess;
}
CUDA cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    ENTER("cudaStreamEndCapture");
    LOCKED;
    auto capture = stream(handle)->capture;
    if (!capture) return failed(cudaErrorIllegalState);
    captures.erase(capture);
    for (Stream *each : capture->streams) each->capture = nullptr;
    *out = capture->broken ? nullptr : (cudaGraph_t) new Graph(capture->items);
    return capture->broken ? failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
CUDA cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *out) {
    ENTER("cudaStreamIsCapturing");
    LOCKED;
    auto capture = stream(handle)->capture;
    *out = !capture ? cudaStreamCaptureStatusNone : capture->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
CUDA cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *out, unsigned long long *id, cudaGraph_t *graph,
                              const cudaGraphNode_t **before, const cudaGraphEdgeData **edges, size_t *number) {
    static Graph none;
    cudaError_t error = cudaStreamIsCapturing(handle, out);
    LOCKED;
    auto capture = stream(handle)->capture;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = (cudaGraph_t)&none;
    if (before) *before = nullptr;
    if (edges) *edges = nullptr;
    if (number) *number = 0;
    return error;
}
CUDA cudaStreamGetCaptureInfo_v3(cudaStream_t handle, cudaStreamCaptureStatus *out, unsigned long long *id, cudaGraph_t *graph,
                                 const cudaGraphNode_t **before, const cudaGraphEdgeData **edges, size_t *number) {
    return cudaStreamGetCaptureInfo(handle, out, id, graph, before, edges, number);
}
CUDA cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t *, const cudaGraphEdgeData *, size_t, unsigned) { return cudaSuccess; }
CUDA cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    ENTER("cudaGraphInstantiate");
    *out = (cudaGraphExec_t) new Graph(*(Graph *)graph);
    return cudaSuccess;
}
CUDA cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) { return cudaGraphInstantiateWithFlags(out, graph, flags); }
CUDA cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *number) { *number = ((Graph *)graph)->size(); return cudaSuccess; }
CUDA cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
    ToldCall told("cudaGraphLaunch");
    ENTER("cudaGraphLaunch");
    LOCKED;
    Stream &on = *stream(handle);
    for (Item &each : *(Graph *)exec) {
        see(each.seen, on, issue(on, each.duration, {}, each.meeting ? each.meeting() : nullptr, each.action));
        if (each.event) each.event->when = tail(on);
    }
    return cudaSuccess;
}
CUDA cudaGraphDestroy(cudaGraph_t graph) { delete (Graph *)graph; return cudaSuccess; }
CUDA cudaGraphExecDestroy(cudaGraphExec_t exec) { delete (Graph *)exec; return cudaSuccess; }
