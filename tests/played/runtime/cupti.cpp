// CUPTI's activities: what a profiler is told of calls and of work on devices, as far as Kineto asks.
//
// A call has a number, its correlation, which the work that it launches has too; the ids that a profiler has pushed on the
// thread are told as belonging to it (CUPTI's documentation, "External Correlation").  Records lie one behind the other in
// buffers that the profiler gives; of work they are written at a flush, once it is over.  Times are those of the profiler's
// clock.  One profiler at a time: who subscribes while another has, or plants one (played_profiler), is refused.
#include "played.h"

#include <cupti.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace played {

struct Known {  // a call that is told
    const char *name;
    CUpti_ActivityKind kind;
    CUpti_CallbackId id;
    const char *told;
};
static const CUpti_ActivityKind RUNTIME = CUPTI_ACTIVITY_KIND_RUNTIME, DRIVER = CUPTI_ACTIVITY_KIND_DRIVER;
static const Known known[] = {
    {"cudaLaunchKernel", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, "cudaLaunchKernel_v7000"},
    {"gemm", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, "cudaLaunchKernel_v7000"},
    {"cudaMemcpy", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020, "cudaMemcpy_v3020"},
    {"cudaMemcpyAsync", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, "cudaMemcpyAsync_v3020"},
    {"cudaMemcpyPeerAsync", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000, "cudaMemcpyPeerAsync_v4000"},
    {"cudaMemsetAsync", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020, "cudaMemsetAsync_v3020"},
    {"cudaGraphLaunch", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, "cudaGraphLaunch_v10000"},
    {"cudaStreamSynchronize", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020, "cudaStreamSynchronize_v3020"},
    {"cudaDeviceSynchronize", RUNTIME, CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020, "cudaDeviceSynchronize_v3020"},
    {"cuLaunchKernel", DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel"},
    {"nccl", DRIVER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, "cuLaunchKernelEx"},
};

struct Instant {  // the same moment on both clocks
    ns host;
    uint64_t told;
};

struct Launched {  // work that is not told yet
    Seen seen;
    uint32_t call, device, stream;
    When when;
};

static std::atomic<unsigned long> wanted{0};  // kinds, a bit each
static CUpti_TimestampCallbackFunc clock_of_profiler = nullptr;
static Instant origin;
static CUpti_BuffersCallbackRequestFunc give = nullptr;
static CUpti_BuffersCallbackCompleteFunc take = nullptr;
static uint8_t *buffer = nullptr;
static size_t room = 0, used = 0, dropped = 0;
static std::vector<Launched> launched;
static std::atomic<uint32_t> calls{0};
static thread_local uint32_t current_call = 0;
static thread_local std::map<CUpti_ExternalCorrelationKind, std::vector<uint64_t>> pushed;
static char a_subscriber;
static bool is_taken = false;  // by a subscriber
static std::atomic<bool> is_planted{false};  // another profiler

static bool wants(CUpti_ActivityKind kind) { return wanted >> kind & 1; }

static uint64_t told_now() {
    if (clock_of_profiler) return clock_of_profiler();
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static Instant both() {  // as close together as this thread gets
    Instant best = {0, 0};
    for (ns least = INT64_MAX, count = 0; count < 9; ++count) {
        ns before = now();
        uint64_t told = told_now();
        ns after = now();
        if (after - before < least) least = after - before, best = {before + least / 2, told};
    }
    return best;
}

static void hand_back() {
    if (buffer) take(nullptr, 0, buffer, room, used);
    buffer = nullptr;
    used = room = 0;
}

template <typename Record> static void put(const Record &record) {
    size_t most = 0;
    if (buffer && used + sizeof record > room) hand_back();
    if (!buffer && give) give(&buffer, &room, &most);
    if (!buffer) ++dropped;
    else memcpy(buffer + used, &record, sizeof record), used += sizeof record;
}

template <typename Record> static Record placed(const Launched &work, CUpti_ActivityKind kind, uint64_t start, uint64_t end) {
    Record record;
    memset(&record, 0, sizeof record);
    record.kind = kind;
    record.start = start;
    record.end = end;
    record.deviceId = work.device;
    record.contextId = work.device + 1;
    record.streamId = work.stream;
    record.correlationId = work.call;
    return record;
}

static void put_kernel(const Launched &work, uint64_t start, uint64_t end) {
    auto record = placed<CUpti_ActivityKernel10>(work, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, start, end);
    record.name = work.seen.name;
    record.gridX = work.seen.grid.x, record.gridY = work.seen.grid.y, record.gridZ = work.seen.grid.z;
    record.blockX = work.seen.block.x, record.blockY = work.seen.block.y, record.blockZ = work.seen.block.z;
    record.registersPerThread = 32;
    record.dynamicSharedMemory = work.seen.shared;
    put(record);
}

static void put_copy(const Launched &work, uint64_t start, uint64_t end) {
    auto record = placed<CUpti_ActivityMemcpy6>(work, CUPTI_ACTIVITY_KIND_MEMCPY, start, end);
    bool comes = !work.seen.from_device, goes = !work.seen.to_device;
    record.copyKind = comes ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD : goes ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
    record.srcKind = comes ? CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    record.dstKind = goes ? CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    record.bytes = work.seen.bytes;
    put(record);
}

static void put_set(const Launched &work, uint64_t start, uint64_t end) {
    auto record = placed<CUpti_ActivityMemset4>(work, CUPTI_ACTIVITY_KIND_MEMSET, start, end);
    record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    record.bytes = work.seen.bytes;
    put(record);
}

static void put_what_is_over() {
    Instant here = both();
    double pace = here.host > origin.host ? double(here.told - origin.told) / double(here.host - origin.host) : 1;
    auto told = [&](ns at) { return origin.told + (uint64_t)(int64_t)((at - origin.host) * pace); };
    std::vector<Launched> rest;
    for (Launched &each : launched) {
        if (!over(each.when)) rest.push_back(each);
        else (each.seen.kind == Seen::KERNEL ? put_kernel : each.seen.kind == Seen::COPY ? put_copy : put_set)(each, told(each.when->start), told(each.when->at));
    }
    launched.swap(rest);
}

void see(const Seen &seen, const Stream &on, const When &when) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_INVALID, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
    if (seen.kind != Seen::NOTHING && wants(kinds[seen.kind]))
        launched.push_back({seen, current_call, (uint32_t)on.device, on.number, when});
}

ToldCall::ToldCall(const char *name) : which(-1) {
    if (!wanted || current_call) return;
    auto found = std::find_if(std::begin(known), std::end(known), [&](const Known &each) { return !strcmp(each.name, name); });
    if (found == std::end(known)) return;
    which = found - known;
    current_call = ++calls;
    start = told_now();
    if (!wants(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) return;
    std::lock_guard<std::recursive_mutex> lock(all);
    for (auto &[kind, ids] : pushed)
        if (!ids.empty()) put(CUpti_ActivityExternalCorrelation{CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, kind, ids.back(), current_call, 0});
}

ToldCall::~ToldCall() {
    if (which < 0) return;
    std::lock_guard<std::recursive_mutex> lock(all);
    const Known &call = known[which];
    if (wants(call.kind)) put(CUpti_ActivityAPI{call.kind, call.id, start, told_now(), (uint32_t)getpid(), (uint32_t)pthread_self(), current_call, 0});
    current_call = 0;
}

static size_t size_of(const CUpti_Activity *record) {
    switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
        case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
        case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
        default: return sizeof(CUpti_ActivityAPI);
    }
}

}  // namespace played

using namespace played;
#define CUPTI EXPORTED CUptiResult
#define LOCKED std::lock_guard<std::recursive_mutex> lock(all)
#define ENTER(call) count(call); if (is_planted) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
#define NOTHING(name, ...) CUPTI name(__VA_ARGS__) { return CUPTI_SUCCESS; }

CUPTI cuptiGetVersion(uint32_t *out) { *out = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
CUPTI cuptiGetResultString(CUptiResult result, const char **out) {
    *out = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_PLAYED";
    return CUPTI_SUCCESS;
}
CUPTI cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **out) {
    CUpti_ActivityKind kind = domain == CUPTI_CB_DOMAIN_RUNTIME_API ? RUNTIME : DRIVER;
    auto found = std::find_if(std::begin(known), std::end(known), [&](const Known &each) { return each.kind == kind && each.id == id; });
    *out = found == std::end(known) ? nullptr : found->told;
    return *out ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

// who profiles

CUPTI cuptiSubscribe(CUpti_SubscriberHandle *out, CUpti_CallbackFunc, void *) {
    ENTER("cuptiSubscribe");
    LOCKED;
    if (is_taken) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    is_taken = true;
    *out = (CUpti_SubscriberHandle)&a_subscriber;
    return CUPTI_SUCCESS;
}
CUPTI cuptiUnsubscribe(CUpti_SubscriberHandle) { LOCKED; is_taken = false; return CUPTI_SUCCESS; }
CUPTI cuptiFinalize() { LOCKED; wanted = 0; hand_back(); return CUPTI_SUCCESS; }
NOTHING(cuptiEnableCallback, uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId)
NOTHING(cuptiEnableDomain, uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain)
EXPORTED void played_profiler(int holds) { is_planted = holds; }  // planted by a test, by ctypes

// what is told

CUPTI cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function) { LOCKED; clock_of_profiler = function; return CUPTI_SUCCESS; }
CUPTI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
    ENTER("cuptiActivityRegisterCallbacks");
    LOCKED;
    give = request;
    take = complete;
    return CUPTI_SUCCESS;
}
CUPTI cuptiActivityEnable(CUpti_ActivityKind kind) {
    ENTER("cuptiActivityEnable");
    LOCKED;
    if (!wanted) launched.clear(), origin = both();
    wanted |= 1UL << kind;
    return CUPTI_SUCCESS;
}
CUPTI cuptiActivityDisable(CUpti_ActivityKind kind) { count("cuptiActivityDisable"); wanted &= ~(1UL << kind); return CUPTI_SUCCESS; }
NOTHING(cuptiActivityEnableRuntimeApi, CUpti_CallbackId, uint8_t) NOTHING(cuptiActivityEnableDriverApi, CUpti_CallbackId, uint8_t)
NOTHING(cuptiActivityEnableCudaEventDeviceTimestamps, uint8_t) NOTHING(cuptiActivitySetAttribute, CUpti_ActivityAttribute, size_t *, void *)
CUPTI cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) { pushed[kind].push_back(id); return CUPTI_SUCCESS; }
CUPTI cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
    auto &ids = pushed[kind];
    if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
    if (last) *last = ids.back();
    ids.pop_back();
    return CUPTI_SUCCESS;
}
CUPTI cuptiActivityFlushAll(uint32_t) { LOCKED; put_what_is_over(); hand_back(); return CUPTI_SUCCESS; }
CUPTI cuptiActivityGetNextRecord(uint8_t *from, size_t valid, CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + size_of(*record) : from;
    if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUPTI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *out) { LOCKED; *out = dropped; dropped = 0; return CUPTI_SUCCESS; }
