// The devices of this process: one line each in ATTUNE_SOFTWARE_GPU_TABLE, which
// engine/software_gpu/process_environment.py writes in the order of these fields.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

struct Device {
    std::string name;
    int64_t major, minor, sms, clock_khz, memory_bytes, memory_mb_per_s, l2_bytes, power_w;
    int64_t warps_per_sm, ctas_per_sm, threads_per_cta, registers_per_sm, registers_per_cta;
    int64_t register_unit, warp_granularity, sub_partitions;
    int64_t smem_per_sm, smem_per_cta, smem_optin, smem_unit, smem_reserved;

    int64_t capability() const { return 10 * major + minor; }
};

inline std::vector<Device> read_table() {
    std::vector<Device> all;
    const char* text = std::getenv("ATTUNE_SOFTWARE_GPU_TABLE");
    std::istringstream lines(text ? text : "");
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        Device d;
        if (!std::getline(fields, d.name, ';')) continue;
        for (int64_t* field : {&d.major, &d.minor, &d.sms, &d.clock_khz, &d.memory_bytes, &d.memory_mb_per_s, &d.l2_bytes, &d.power_w,
                               &d.warps_per_sm, &d.ctas_per_sm, &d.threads_per_cta, &d.registers_per_sm, &d.registers_per_cta,
                               &d.register_unit, &d.warp_granularity, &d.sub_partitions,
                               &d.smem_per_sm, &d.smem_per_cta, &d.smem_optin, &d.smem_unit, &d.smem_reserved}) {
            std::string value;
            std::getline(fields, value, ';');
            *field = std::strtoll(value.c_str(), nullptr, 10);
        }
        all.push_back(d);
    }
    return all;
}

inline const std::vector<Device>& all_devices() {
    static const std::vector<Device> all = read_table();
    return all;
}

inline constexpr char SLICE[] = " MIG ";  // in the name of a part of a GPU
inline bool is_slice(const Device& d) { return d.name.find(SLICE) != std::string::npos; }

inline std::string uuid_bytes(int number) {  // 16 bytes, derived from the number only
    std::string bytes = "AttuneSoftGPU";
    bytes.resize(16, '\0');
    bytes[0] = static_cast<char>('A' + number);  // distinct first bytes, as CUDA accepts a UUID's beginning
    bytes[15] = static_cast<char>(number + 1);
    return bytes;
}

inline std::string uuid_text(int number, bool slice) {  // in NVML's format
    std::string text = slice ? "MIG-" : "GPU-";
    const std::string bytes = uuid_bytes(number);
    for (size_t n = 0; n < bytes.size(); n++) {
        char hex[4];
        std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(bytes[n]));
        if (n == 4 || n == 6 || n == 8 || n == 10) text += '-';
        text += hex;
    }
    return text;
}

inline std::string pci_bus_id(int number) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", number + 1);
    return text;
}

// The devices in CUDA's order, as CUDA C++ Programming Guide, "CUDA environment variables", says:
// the fastest first, or by PCI address with CUDA_DEVICE_ORDER=PCI_BUS_ID; of these, those that
// CUDA_VISIBLE_DEVICES lists by number or by the beginning of a UUID, up to the first invalid one.
inline const std::vector<int>& visible_devices() {
    static const std::vector<int> visible = [] {
        std::vector<int> all, found;
        for (size_t n = 0; n < all_devices().size(); n++) all.push_back(static_cast<int>(n));
        const char* order = std::getenv("CUDA_DEVICE_ORDER");
        if (!order || std::strcmp(order, "PCI_BUS_ID")) {
            auto speed = [](int n) {
                const Device& d = all_devices()[static_cast<size_t>(n)];
                return d.sms * d.clock_khz;
            };
            std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return speed(a) > speed(b); });
        }
        const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
        if (!wanted) return all;
        std::istringstream parts(wanted);
        for (std::string part; std::getline(parts, part, ',');) {
            int chosen = -1;
            if (!part.compare(0, 4, "GPU-") || !part.compare(0, 4, "MIG-")) {
                for (const int n : all)
                    if (!uuid_text(n, part[0] == 'M').compare(0, part.size(), part) && (part[0] == 'G' || is_slice(all_devices()[static_cast<size_t>(n)]))) chosen = n;
            } else {
                char* end = nullptr;
                const long n = std::strtol(part.c_str(), &end, 10);
                if (end != part.c_str() && n >= 0 && n < static_cast<long>(all.size())) chosen = all[static_cast<size_t>(n)];
            }
            if (chosen < 0) break;
            found.push_back(chosen);
        }
        return found;
    }();
    return visible;
}
