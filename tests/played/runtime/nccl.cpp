// NCCL between the processes of a host: an operation begins on a rank when its stream gets there, ends on all of them
// when the last has come, and moves the data.
//
// Ranks meet in files of the folder PLAYED_WORLD, a place for each communicator and, for sends, each pair of ranks.  A
// place has a ring of slots; operation k uses slot k % SLOTS, once the one before it has been left by all.
// PLAYED_COMM_NS is what an operation takes, PLAYED_ROOM_KB the most that a rank can put in.
#include "played.h"

#include <fcntl.h>
#define __CUDA_FP16_H__  // which nccl.h includes and does not need
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace played {

static const Setting comm_ns{"PLAYED_COMM_NS", 300000}, ROOM{"PLAYED_ROOM_KB", 1024, 10};
static const int SLOTS = 64;
static const Setting times{"PLAYED_TIMES", 0};  // 1: a line for each operation in times.PID: name number issued start end
static Log times_log{"times"};
static ncclResult_t planted = ncclSuccess;

struct Slot {
    std::atomic<unsigned long> turn;  // which operation of those that use it
    std::atomic<int> arrived, left;
    std::atomic<ns> started[16];
    std::atomic<size_t> sizes[16];

    bool agreed(int ranks) const {  // ranks that put in different sizes wait for each other for ever
        size_t size = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            size_t own = sizes[rank];
            if (own && size && own != size) return false;
            size = std::max(size, own);
        }
        return true;
    }
};

static void *shared(const std::string &name, size_t size) {
    const char *folder = getenv("PLAYED_WORLD");
    std::string path = std::string(folder ? folder : "/dev/shm") + "/played-" + name;
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, size)) abort();
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory;
}

static void nap() {
    timespec time = {0, 200000};
    nanosleep(&time, nullptr);
}

struct Place {  // where some ranks meet, one operation after the other
    int size;
    unsigned long next[2] = {0, 0};  // operations of this process, those that receive apart
    Slot *slots;
    char *data;

    Place(const std::string &name, int size) : size(size) {
        slots = (Slot *)shared(name, SLOTS * (sizeof(Slot) + size * ROOM));
        data = (char *)(slots + SLOTS);
    }
    Slot &slot(unsigned long number) { return slots[number % SLOTS]; }
    char *room(unsigned long number, int rank) { return data + ((number % SLOTS) * size + rank) * ROOM; }
};

}  // namespace played

struct ncclComm {
    std::string name;
    int size, rank, device, splits = 0;
    bool aborted = false;
    std::map<std::pair<int, int>, played::Place *> places;

    played::Place &place(int from = -1, int to = -1) {
        played::Place *&found = places[{from, to}];
        std::string pair = from < 0 ? "" : "-" + std::to_string(from) + "-" + std::to_string(to);
        if (!found) found = new played::Place(name + pair, from < 0 ? size : 2);
        return *found;
    }
};

namespace played {

// One operation: what this rank puts in, and what it takes out once all have come.
struct Call {
    ncclComm *comm;
    int from = -1, to = -1;  // of a send and its receive
    bool receives = false;
    const void *in = nullptr;
    size_t size_in = 0;
    std::function<void(std::function<char *(int)>)> take = nullptr;
    const char *name = "";
};

struct Operation : Meeting {
    Call call;
    Place &place;
    int rank;
    unsigned long number;
    bool came = false;
    ns issued = now(), ended = UNKNOWN;

    explicit Operation(const Call &call)
        : call(call), place(call.comm->place(call.from, call.to)), rank(call.from < 0 ? call.comm->rank : call.receives),
          number(place.next[call.receives]++) {}

    ns end(ns start) override {
        if (ended != UNKNOWN) return ended;
        if (call.comm->aborted) return ended = now();
        Slot &slot = place.slot(number);
        if (!came) {
            if (slot.turn != number / SLOTS) return UNKNOWN;
            if (call.in) memcpy(place.room(number, rank), call.in, std::min<size_t>(call.size_in, ROOM));
            slot.started[rank] = start;
            slot.sizes[rank] = call.size_in;
            ++slot.arrived;
            came = true;
        }
        if (slot.arrived < place.size || !slot.agreed(place.size)) return UNKNOWN;
        if (call.take) call.take([this](int of) { return place.room(number, of); });
        ended = comm_ns + *std::max_element(slot.started, slot.started + place.size);
        if (times) {
            std::string line = call.comm->name;
            for (ns each : {(ns)number, issued, slot.started[rank].load(), ended}) line += " " + std::to_string(each);
            write(times_log, line + "\n");
        }
        if (++slot.left == place.size) {
            slot.arrived = slot.left = 0;
            ++slot.turn;
        }
        return ended;
    }
};

struct Together : Meeting {  // the operations of a group call
    std::vector<std::shared_ptr<Operation>> operations;

    explicit Together(const std::vector<Call> &calls) {
        for (const Call &call : calls) operations.push_back(std::make_shared<Operation>(call));
    }

    ns end(ns start) override {
        ns last = start;
        bool known = true;
        for (auto &each : operations) {
            ns end = each->end(start);
            known = known && end != UNKNOWN;
            last = std::max(last, end);
        }
        return known ? last : UNKNOWN;
    }
};

static thread_local int depth = 0;
static thread_local std::map<cudaStream_t, std::vector<Call>> group;

static const char *kernel(const std::string &function) {
    static std::set<std::string> names;
    return names.insert("ncclDevKernel_" + function.substr(strlen("nccl"))).first->c_str();
}

static ncclResult_t launch_group() {
    if (group.empty()) return ncclSuccess;
    ToldCall told("nccl");
    std::lock_guard<std::recursive_mutex> lock(all);
    for (auto &[handle, calls] : group) {
        auto made = [calls = calls]() -> std::shared_ptr<Meeting> { return std::make_shared<Together>(calls); };
        Stream &on = *stream(handle);
        Seen seen{Seen::KERNEL, kernel(calls[0].name), {8, 1, 1}, {512, 1, 1}};
        if (!captured(on, 0, seen, made)) see(seen, on, issue(on, 0, {}, made()));
    }
    group.clear();
    return ncclSuccess;
}

static ncclResult_t operate(const Call &call, cudaStream_t on, const char *caller = __builtin_FUNCTION()) {
    if (enter("nccl")) return ncclUnhandledCudaError;
    if (call.size_in > (size_t)ROOM) report("room", "nccl", std::to_string(call.size_in) + " bytes: set PLAYED_ROOM_KB");
    group[on].push_back(call);
    group[on].back().name = caller;
    return depth ? ncclSuccess : launch_group();
}

static size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

template <typename T> static void reduce_as(char *out, const std::vector<char *> &from, size_t count, ncclRedOp_t how) {
    for (size_t at = 0; at < count; ++at) {
        T value = ((T *)from[0])[at];
        for (size_t rank = 1; rank < from.size(); ++rank) {
            T other = ((T *)from[rank])[at];
            value = how == ncclMax ? std::max(value, other) : how == ncclMin ? std::min(value, other) : how == ncclProd ? value * other : value + other;
        }
        ((T *)out)[at] = how == ncclAvg ? value / (T)from.size() : value;
    }
}

// Half precision is not played: every rank gets what the first has put in.
static void reduce(void *out, const std::vector<char *> &from, size_t count, ncclDataType_t type, ncclRedOp_t how) {
    char *to = (char *)out;
    if (type == ncclFloat32) reduce_as<float>(to, from, count, how);
    else if (type == ncclFloat64) reduce_as<double>(to, from, count, how);
    else if (type == ncclInt32) reduce_as<int32_t>(to, from, count, how);
    else if (type == ncclInt64) reduce_as<int64_t>(to, from, count, how);
    else if (type == ncclUint8) reduce_as<uint8_t>(to, from, count, how);
    else memcpy(to, from[0], count * size_of(type));
}

static std::vector<char *> rooms(const std::function<char *(int)> &room, int size, size_t offset = 0) {
    std::vector<char *> found;
    for (int rank = 0; rank < size; ++rank) found.push_back(room(rank) + offset);
    return found;
}

static ncclComm *joined(const std::string &name, int size, int rank) {
    auto *here = (std::atomic<int> *)shared(name + "-init", 4096);
    ++*here;
    while (*here < size) nap();  // as the bootstrap does
    ncclComm *made = new ncclComm;
    made->name = name;
    made->size = size;
    made->rank = rank;
    made->device = current;
    return made;
}

static std::string hex(const ncclUniqueId &id) {
    std::string out;
    char byte[3];
    for (int at = 0; at < 8; ++at) snprintf(byte, 3, "%02x", (unsigned char)id.internal[at]), out += byte;
    return out;
}

}  // namespace played

using namespace played;
#define NCCL EXPORTED ncclResult_t
#define NOTHING(name, ...) NCCL name(__VA_ARGS__) { return ncclSuccess; }

// communicators

NCCL ncclGetVersion(int *out) { *out = NCCL_VERSION_CODE; return ncclSuccess; }
NCCL ncclGetUniqueId(ncclUniqueId *out) {
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = read(file, out, sizeof *out);
    close(file);
    return got == sizeof *out ? ncclSuccess : ncclSystemError;
}
NCCL ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *) {
    if (enter("ncclCommInitRank")) return ncclUnhandledCudaError;
    *out = joined(hex(id), size, rank);
    return ncclSuccess;
}
NCCL ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(out, size, id, rank, nullptr); }
NCCL ncclCommInitRankScalable(ncclComm_t *out, int size, int rank, int, ncclUniqueId *ids, ncclConfig_t *) { return ncclCommInitRankConfig(out, size, ids[0], rank, nullptr); }
NCCL ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *) {
    struct Choice { std::atomic<int> made; int color, key; };
    std::string name = comm->name + "-split" + std::to_string(comm->splits++);
    Choice *choices = (Choice *)shared(name, comm->size * sizeof(Choice));
    choices[comm->rank].color = color;
    choices[comm->rank].key = key;
    choices[comm->rank].made = 1;
    std::vector<int> members;
    for (int rank = 0; rank < comm->size; ++rank) {
        while (!choices[rank].made) nap();
        if (choices[rank].color == color) members.push_back(rank);
    }
    std::stable_sort(members.begin(), members.end(), [&](int one, int other) { return choices[one].key < choices[other].key; });
    int rank = std::find(members.begin(), members.end(), comm->rank) - members.begin();
    *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : joined(name + "-" + std::to_string(color), members.size(), rank);
    return ncclSuccess;
}
NCCL ncclCommGetAsyncError(ncclComm_t, ncclResult_t *out) { *out = planted; return ncclSuccess; }
NCCL ncclCommAbort(ncclComm_t comm) { std::lock_guard<std::recursive_mutex> lock(all); comm->aborted = true; return ncclSuccess; }
NCCL ncclCommCount(ncclComm_t comm, int *out) { *out = comm->size; return ncclSuccess; }
NCCL ncclCommUserRank(ncclComm_t comm, int *out) { *out = comm->rank; return ncclSuccess; }
NCCL ncclCommCuDevice(ncclComm_t comm, int *out) { *out = comm->device; return ncclSuccess; }
NOTHING(ncclCommFinalize, ncclComm_t) NOTHING(ncclCommDestroy, ncclComm_t)
NOTHING(ncclCommRegister, ncclComm_t, void *, size_t, void **) NOTHING(ncclCommDeregister, ncclComm_t, void *)
NCCL ncclRedOpCreatePreMulSum(ncclRedOp_t *out, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) { *out = ncclSum; return ncclSuccess; }
NOTHING(ncclRedOpDestroy, ncclRedOp_t, ncclComm_t)
EXPORTED const char *ncclGetErrorString(ncclResult_t) { return "played error"; }
EXPORTED const char *ncclGetLastError(ncclComm_t) { return ""; }
NCCL ncclGroupStart() { ++depth; return ncclSuccess; }
NCCL ncclGroupEnd() { return --depth ? ncclSuccess : launch_group(); }
EXPORTED void played_nccl_error(int code) { planted = (ncclResult_t)code; }  // planted by a test, by ctypes

// operations

NCCL ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t how, ncclComm_t comm, cudaStream_t on) {
    return operate({comm, -1, -1, false, in, count * size_of(type), [=](auto room) { reduce(out, rooms(room, comm->size), count, type, how); }}, on);
}
NCCL ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t how, int root, ncclComm_t comm, cudaStream_t on) {
    return operate({comm, -1, -1, false, in, count * size_of(type), [=](auto room) {
        if (comm->rank == root) reduce(out, rooms(room, comm->size), count, type, how);
    }}, on);
}
NCCL ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t how, ncclComm_t comm, cudaStream_t on) {
    size_t part = count * size_of(type);
    return operate({comm, -1, -1, false, in, part * comm->size, [=](auto room) {
        reduce(out, rooms(room, comm->size, part * comm->rank), count, type, how);
    }}, on);
}
NCCL ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on) {
    size_t part = count * size_of(type);
    return operate({comm, -1, -1, false, in, part, [=](auto room) {
        for (int rank = 0; rank < comm->size; ++rank) memcpy((char *)out + rank * part, room(rank), part);
    }}, on);
}
NCCL ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on) {
    size_t part = count * size_of(type);
    return operate({comm, -1, -1, false, in, part * comm->size, [=](auto room) {
        for (int rank = 0; rank < comm->size; ++rank) memcpy((char *)out + rank * part, room(rank) + comm->rank * part, part);
    }}, on);
}
NCCL ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t on) {
    size_t size = count * size_of(type);
    return operate({comm, -1, -1, false, comm->rank == root ? in : nullptr, size, [=](auto room) { memmove(out, room(root), size); }}, on);
}
NCCL ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t on) { return ncclBroadcast(data, data, count, type, root, comm, on); }
NCCL ncclSend(const void *in, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t on) {
    return operate({comm, comm->rank, to, false, in, count * size_of(type)}, on);
}
NCCL ncclRecv(void *out, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t on) {
    size_t size = count * size_of(type);
    return operate({comm, from, comm->rank, true, nullptr, size, [=](auto room) { memcpy(out, room(0), std::min<size_t>(size, ROOM)); }}, on);
}
