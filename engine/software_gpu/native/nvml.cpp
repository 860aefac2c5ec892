// libnvidia-ml.so.1: the part of NVML's public API that nvidia-ml-py and Attune call. Values are those of an
// idle board of the table, or those currently in the file named by ATTUNE_SOFTWARE_NVML:
// "sm_clock_mhz=900 reasons=64 1:temperature_c=80" (the last for device 1 only), and return codes of functions:
// "nvmlDeviceGetPowerUsage=3", "1:*=3 1:nvmlDeviceGetName=0" (all functions but one).
#include <cstdio>
#include <cstring>
#include <fstream>

#include "table.h"

namespace {

// nvmlReturn_t, of nvml.h.
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

int sessions = 0;

// A GPU, or a MIG slice of one.
struct Handle {
    int number;
    bool is_slice;
};
std::vector<Device> devices;  // from the environment at the first initialisation
std::vector<Handle> handles;  // GPUs, then MIG slices

// The file's value `name` of a device (-1: of the system).
bool find(const std::string& name, int device, int64_t& value) {
    const char* path = std::getenv("ATTUNE_SOFTWARE_NVML");
    std::ifstream file(path ? path : "");
    bool found = false;
    for (std::string word; file >> word;) {
        const size_t equals = word.find('='), colon = word.find(':');
        if (equals == std::string::npos) continue;
        const size_t begin = colon < equals ? colon + 1 : 0;
        if (begin && std::atoi(word.c_str()) != device) continue;
        if (word.compare(begin, equals - begin, name)) continue;
        value = std::strtoll(word.c_str() + equals + 1, nullptr, 10), found = true;
    }
    return found;
}

int64_t setting(const char* name, int device, int64_t otherwise) {
    find(name, device, otherwise);
    return otherwise;
}

// The return code that the file sets for this call of `function`.
int planted(std::string function, int device) {
    if (const size_t at = function.rfind("_v"); at != std::string::npos) function.resize(at);
    int64_t code = SUCCESS;
    if (!find(function, device, code) && device >= 0) find("*", device, code);
    return static_cast<int>(code);
}

int put(char* to, unsigned size, const std::string& text) {
    if (!to) return INVALID_ARGUMENT;
    if (text.size() >= size) return INSUFFICIENT_SIZE;
    std::memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

const Device& of(const Handle* handle) { return devices[static_cast<size_t>(handle->number)]; }

// A value that exists only if the file sets it.
int put_said(unsigned* to, const char* name, const Handle* handle) {
    int64_t value;
    if (!find(name, handle->number, value)) return NOT_SUPPORTED;
    *to = static_cast<unsigned>(value);
    return SUCCESS;
}

}  // namespace

#define READY \
    if (!sessions) return UNINITIALIZED; \
    if (const int why_not = planted(__func__, -1)) return why_not;
#define BOARD \
    if (!sessions) return UNINITIALIZED; \
    if (!handle) return INVALID_ARGUMENT; \
    if (const int why_not = planted(__func__, handle->number)) return why_not;

extern "C" {

int nvmlInit_v2() {
    if (const int why_not = planted(__func__, -1)) return why_not;
    if (!sessions) {
        devices = read_table();
        handles.clear();
        for (const bool slices : {false, true})
            for (size_t n = 0; n < devices.size(); n++)
                if (!slices || is_slice(devices[n])) handles.push_back({static_cast<int>(n), slices});
    }
    return devices.empty() ? DRIVER_NOT_LOADED : (sessions++, SUCCESS);
}
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() {
    READY
    sessions--;
    return SUCCESS;
}

const char* nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char* to, unsigned size) {
    READY
    return put(to, size, "software");
}
int nvmlSystemGetCudaDriverVersion(int* version) {
    READY
    *version = static_cast<int>(setting("cuda_version", -1, 13000));
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }
int nvmlDeviceGetCount_v2(unsigned* count) {
    READY
    *count = static_cast<unsigned>(devices.size());
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, const Handle** out) {
    READY
    if (number >= devices.size()) return INVALID_ARGUMENT;
    *out = &handles[number];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char* text, const Handle** out) {
    READY
    for (const Handle& h : handles)
        if (uuid_text(h.number, h.is_slice) == text) return *out = &h, SUCCESS;
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, const Handle** out) {
    READY
    // NVML writes the domain with eight digits, CUDA with four.
    const char* colon = std::strchr(text, ':');
    for (const Handle& h : handles)
        if (colon && pci_bus_id(h.number).substr(4) == colon) return *out = &h, SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(const Handle* handle, unsigned* number) {
    BOARD
    *number = static_cast<unsigned>(handle->number);
    return SUCCESS;
}
int nvmlDeviceGetName(const Handle* handle, char* to, unsigned size) {
    BOARD
    return put(to, size, of(handle).name.substr(0, of(handle).name.find(SLICE)));  // name of the whole GPU
}
int nvmlDeviceGetUUID(const Handle* handle, char* to, unsigned size) {
    BOARD
    return put(to, size, uuid_text(handle->number, handle->is_slice));
}
int nvmlDeviceGetCudaComputeCapability(const Handle* handle, int* major, int* minor) {
    BOARD
    *major = static_cast<int>(of(handle).major), *minor = static_cast<int>(of(handle).minor);
    return SUCCESS;
}
// FP32 lanes: CUDA C++ Programming Guide, arithmetic instructions per compute capability.
int nvmlDeviceGetNumGpuCores(const Handle* handle, unsigned* cores) {
    BOARD
    const int64_t capability = of(handle).capability();
    *cores = static_cast<unsigned>(of(handle).sms * (capability == 75 || capability == 80 ? 64 : 128));
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(const Handle* handle, unsigned* count) {
    BOARD
    *count = is_slice(of(handle)) ? 7 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(const Handle* handle, unsigned number, const Handle** out) {
    BOARD
    for (const Handle& h : handles)
        if (h.is_slice && h.number == handle->number && number == 0) return *out = &h, SUCCESS;
    return NOT_FOUND;
}

struct Memory {
    unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(const Handle* handle, Memory* out) {
    BOARD
    const auto total = static_cast<unsigned long long>(of(handle).memory_bytes);
    const auto used = static_cast<unsigned long long>(setting("memory_used_bytes", handle->number, 0));
    *out = {total, total - used, used};
    return SUCCESS;
}
int nvmlDeviceGetMemoryBusWidth(const Handle* handle, unsigned* bits) {
    BOARD
    return put_said(bits, "memory_bus_bits", handle);
}

// Types: 0 graphics, 1 SM, 2 memory, 3 video.
int nvmlDeviceGetMaxClockInfo(const Handle* handle, int type, unsigned* mhz) {
    BOARD
    if (type == 2) return put_said(mhz, "max_memory_clock_mhz", handle);
    *mhz = static_cast<unsigned>(setting("max_sm_clock_mhz", handle->number, of(handle).clock_khz / 1000));
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(const Handle* handle, int type, unsigned* mhz) {
    BOARD
    if (type == 2) return put_said(mhz, "memory_clock_mhz", handle);
    *mhz = static_cast<unsigned>(setting("sm_clock_mhz", handle->number, of(handle).clock_khz / 1000));
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(const Handle* handle, unsigned long long* bits) {
    BOARD
    *bits = static_cast<unsigned long long>(setting("reasons", handle->number, 0));
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(const Handle* handle, unsigned long long* bits) {  // its name before driver 535
    BOARD
    *bits = static_cast<unsigned long long>(setting("reasons", handle->number, 0));
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(const Handle* handle, unsigned* milliwatts) {
    BOARD
    *milliwatts = static_cast<unsigned>(1000 * setting("power_w", handle->number, of(handle).power_w / 4));
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(const Handle* handle, unsigned* milliwatts) {
    BOARD
    *milliwatts = static_cast<unsigned>(1000 * setting("power_limit_w", handle->number, of(handle).power_w));
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementDefaultLimit(const Handle* handle, unsigned* milliwatts) {
    BOARD
    *milliwatts = static_cast<unsigned>(1000 * of(handle).power_w);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(const Handle* handle, int, unsigned* celsius) {
    BOARD
    *celsius = static_cast<unsigned>(setting("temperature_c", handle->number, 40));
    return SUCCESS;
}

struct Utilization {
    unsigned gpu, memory;  // percent
};
int nvmlDeviceGetUtilizationRates(const Handle* handle, Utilization* out) {
    BOARD
    *out = {static_cast<unsigned>(setting("utilization", handle->number, 0)), 0};
    return SUCCESS;
}
int nvmlDeviceGetMigMode(const Handle* handle, unsigned* now, unsigned* after_reset) {
    BOARD
    if (of(handle).capability() != 80 && of(handle).major < 9) return NOT_SUPPORTED;
    *now = *after_reset = is_slice(of(handle));
    return SUCCESS;
}

struct Process {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
};
// Another process, if foreign_pid is set: it uses all of memory_used_bytes.
int nvmlDeviceGetComputeRunningProcesses_v3(const Handle* handle, unsigned* count, Process* out) {
    BOARD
    const int64_t pid = setting("foreign_pid", handle->number, 0);
    const unsigned room = *count;
    *count = pid > 0;
    if (room < *count) return INSUFFICIENT_SIZE;
    if (*count) *out = {static_cast<unsigned>(pid), static_cast<unsigned long long>(setting("memory_used_bytes", handle->number, 0)), ~0u, ~0u};
    return SUCCESS;
}

int nvmlDeviceGetEccMode(const Handle* handle, unsigned* now, unsigned* after_reset) {
    BOARD
    *now = *after_reset = static_cast<unsigned>(setting("ecc", handle->number, 1));
    return SUCCESS;
}
// Types: 0 corrected, 1 uncorrected; in total or since the driver was loaded.
int nvmlDeviceGetTotalEccErrors(const Handle* handle, int type, int, unsigned long long* count) {
    BOARD
    if (!setting("ecc", handle->number, 1)) return NOT_SUPPORTED;
    *count = static_cast<unsigned long long>(setting(type ? "ecc_uncorrected" : "ecc_corrected", handle->number, 0));
    return SUCCESS;
}

}  // extern "C"
