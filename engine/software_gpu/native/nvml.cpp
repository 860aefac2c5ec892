// libnvidia-ml.so.1: as much of NVML's public API as nvidia-ml-py and Attune call. What a board of
// the table would show at rest, or what ATTUNE_SOFTWARE_NVML says: "sm_clock_mhz=900 reasons=64
// power_w=70 temperature_c=80", read at every call from the file of that name.
#include <cstdio>
#include <cstring>
#include <fstream>

#include "table.h"

namespace {

// nvmlReturn_t, of nvml.h.
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

int sessions = 0;

int64_t setting(const char* name, int64_t otherwise) {
    const char* path = std::getenv("ATTUNE_SOFTWARE_NVML");
    if (!path) return otherwise;
    std::ifstream file(path);
    for (std::string word; file >> word;) {
        const size_t equals = word.find('=');
        if (equals != std::string::npos && word.substr(0, equals) == name) return std::strtoll(word.c_str() + equals + 1, nullptr, 10);
    }
    return otherwise;
}

int put(char* to, unsigned size, const std::string& text) {
    if (!to) return INVALID_ARGUMENT;
    if (text.size() >= size) return INSUFFICIENT_SIZE;
    std::memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

const Device& of(const void* handle) { return *static_cast<const Device*>(handle); }
int number_of(const void* handle) { return static_cast<int>(&of(handle) - all_devices().data()); }

std::string uuid(int number) {  // as NVML writes the driver's bytes
    std::string text = "GPU-";
    const std::string bytes = uuid_bytes(number);
    for (size_t n = 0; n < bytes.size(); n++) {
        char hex[4];
        std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(bytes[n]));
        if (n == 4 || n == 6 || n == 8 || n == 10) text += '-';
        text += hex;
    }
    return text;
}

}  // namespace

#define READY \
    if (!sessions) return UNINITIALIZED;
#define BOARD \
    READY \
    if (!handle) return INVALID_ARGUMENT;

extern "C" {

int nvmlInit_v2() { return all_devices().empty() ? DRIVER_NOT_LOADED : (sessions++, SUCCESS); }
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
    *version = 13000;
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }
int nvmlDeviceGetCount_v2(unsigned* count) {
    READY
    *count = static_cast<unsigned>(all_devices().size());
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, const void** out) {
    READY
    if (number >= all_devices().size()) return INVALID_ARGUMENT;
    *out = &all_devices()[number];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char* text, const void** out) {
    READY
    for (const Device& d : all_devices())
        if (uuid(number_of(&d)) == text) return *out = &d, SUCCESS;
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, const void** out) {
    READY
    // NVML writes the domain with eight digits, CUDA with four.
    const char* colon = std::strchr(text, ':');
    for (const Device& d : all_devices())
        if (colon && pci_bus_id(number_of(&d)).substr(4) == colon) return *out = &d, SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(const void* handle, unsigned* number) {
    BOARD
    *number = static_cast<unsigned>(number_of(handle));
    return SUCCESS;
}
int nvmlDeviceGetName(const void* handle, char* to, unsigned size) {
    BOARD
    return put(to, size, of(handle).name.substr(0, of(handle).name.find(" MIG ")));  // of the whole GPU
}
int nvmlDeviceGetUUID(const void* handle, char* to, unsigned size) {
    BOARD
    return put(to, size, uuid(number_of(handle)));
}
int nvmlDeviceGetCudaComputeCapability(const void* handle, int* major, int* minor) {
    BOARD
    *major = static_cast<int>(of(handle).major), *minor = static_cast<int>(of(handle).minor);
    return SUCCESS;
}

struct Memory {
    unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(const void* handle, Memory* out) {
    BOARD
    const auto total = static_cast<unsigned long long>(of(handle).memory_bytes);
    const auto used = static_cast<unsigned long long>(setting("memory_used_bytes", 0));
    *out = {total, total - used, used};
    return SUCCESS;
}

// Types: 0 graphics, 1 SM, 2 memory, 3 video.
int nvmlDeviceGetMaxClockInfo(const void* handle, int type, unsigned* mhz) {
    BOARD
    if (type == 2) return NOT_SUPPORTED;
    *mhz = static_cast<unsigned>(of(handle).clock_khz / 1000);
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(const void* handle, int type, unsigned* mhz) {
    BOARD
    if (type == 2) return NOT_SUPPORTED;
    *mhz = static_cast<unsigned>(setting("sm_clock_mhz", of(handle).clock_khz / 1000));
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(const void* handle, unsigned long long* bits) {
    BOARD
    *bits = static_cast<unsigned long long>(setting("reasons", 0));
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(const void* handle, unsigned* milliwatts) {
    BOARD
    *milliwatts = static_cast<unsigned>(1000 * setting("power_w", of(handle).power_w / 4));
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(const void* handle, unsigned* milliwatts) {
    BOARD
    *milliwatts = static_cast<unsigned>(1000 * of(handle).power_w);
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementDefaultLimit(const void* handle, unsigned* milliwatts) { return nvmlDeviceGetPowerManagementLimit(handle, milliwatts); }
int nvmlDeviceGetTemperature(const void* handle, int, unsigned* celsius) {
    BOARD
    *celsius = static_cast<unsigned>(setting("temperature_c", 40));
    return SUCCESS;
}

}  // extern "C"
