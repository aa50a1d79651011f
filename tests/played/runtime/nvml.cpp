// NVML, as nvidia-ml-py and torch ask for it: a device is its index + 1 as a handle, and its counters are made up of
// its index.  The signatures are those of nvml.h, whose structs are given by their layout where no header has them.
#include "played.h"

#include <string.h>
#include <unistd.h>

#include <cstdio>

using namespace played;
#define NVML(name, ...) EXPORTED int name(__VA_ARGS__)
#define NOTHING(name) NVML(name, ...) { count(#name); return 0; }
static const int NOT_SUPPORTED = 3, NOT_FOUND = 6, SUCCESS = 0;
typedef void *Device;
static int index_of(Device device) { return int((intptr_t)device) - 1; }
static Device handle_of(int device) { return (Device)(intptr_t)(device + 1); }

static void uuid_of(int device, char *out, unsigned room) {
    char byte[3];
    snprintf(byte, 3, "%02x", 0x10 + device);
    std::string text = "GPU-";
    for (int at = 0; at < 16; ++at) text += std::string(at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "") + byte;
    snprintf(out, room, "%s", text.c_str());
}

NOTHING(nvmlInit_v2) NOTHING(nvmlInit) NOTHING(nvmlShutdown)
NVML(nvmlInitWithFlags, unsigned) { return SUCCESS; }
EXPORTED const char *nvmlErrorString(int) { return "played error"; }
NVML(nvmlSystemGetDriverVersion, char *out, unsigned room) { snprintf(out, room, "580.00"); return SUCCESS; }
NVML(nvmlSystemGetCudaDriverVersion_v2, int *out) { *out = 13000; return SUCCESS; }
NVML(nvmlDeviceGetCount_v2, unsigned *out) { *out = devices; return SUCCESS; }
NVML(nvmlDeviceGetHandleByIndex_v2, unsigned device, Device *out) { *out = handle_of(device); return (int)device < devices ? SUCCESS : NOT_FOUND; }
NVML(nvmlDeviceGetHandleByUUID, const char *uuid, Device *out) {
    char own[80];
    for (int device = 0; device < devices; ++device) {
        uuid_of(device, own, sizeof own);
        if (!strcmp(own, uuid)) return *out = handle_of(device), SUCCESS;
    }
    return NOT_FOUND;
}
NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *bus, Device *out) {
    unsigned domain = 0, number = 0;
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || !number || (int)number > devices) return NOT_FOUND;
    *out = handle_of(number - 1);
    return SUCCESS;
}
NVML(nvmlDeviceGetIndex, Device device, unsigned *out) { *out = index_of(device); return SUCCESS; }
NVML(nvmlDeviceGetName, Device, char *out, unsigned room) { snprintf(out, room, "Played H100"); return SUCCESS; }
NVML(nvmlDeviceGetUUID, Device device, char *out, unsigned room) { uuid_of(index_of(device), out, room); return SUCCESS; }
NVML(nvmlDeviceGetMemoryInfo, Device, unsigned long long *out) { out[0] = 80ULL << 30; out[1] = 70ULL << 30; out[2] = 10ULL << 30; return SUCCESS; }
NVML(nvmlDeviceGetUtilizationRates, Device device, unsigned *out) { count("nvmlDeviceGetUtilizationRates"); out[0] = 50 + index_of(device); out[1] = 20; return SUCCESS; }
NVML(nvmlDeviceGetPowerUsage, Device device, unsigned *out) { *out = 300000 + 1000 * index_of(device); return SUCCESS; }
NVML(nvmlDeviceGetEnforcedPowerLimit, Device, unsigned *out) { *out = 700000; return SUCCESS; }
NVML(nvmlDeviceGetTemperature, Device device, int, unsigned *out) { *out = 60 + index_of(device); return SUCCESS; }
NVML(nvmlDeviceGetClockInfo, Device, int, unsigned *out) { *out = 1980; return SUCCESS; }
NVML(nvmlDeviceGetCurrentClocksThrottleReasons, Device, unsigned long long *out) { *out = 0; return SUCCESS; }
NVML(nvmlDeviceGetTotalEccErrors, Device, int, int, unsigned long long *out) { *out = 0; return SUCCESS; }
NVML(nvmlDeviceGetMigMode, Device, unsigned *now, unsigned *later) { *now = *later = 0; return SUCCESS; }
NVML(nvmlDeviceGetMaxMigDeviceCount, Device, unsigned *out) { *out = 0; return SUCCESS; }
NVML(nvmlDeviceGetMigDeviceHandleByIndex, Device, unsigned, Device *) { return NOT_FOUND; }
NVML(nvmlDeviceGetFieldValues, Device, int, void *) { return NOT_SUPPORTED; }
