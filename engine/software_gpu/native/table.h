// The devices of this process: a line each of ATTUNE_SOFTWARE_GPU_TABLE, written by
// engine/software_gpu/environment.py in the order of these fields.
#pragma once

#include <cstdint>
#include <cstdlib>
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

// All of them, and those that CUDA_VISIBLE_DEVICES leaves: by number, up to the first that is none.
inline const std::vector<Device>& all_devices() {
    static const std::vector<Device> all = read_table();
    return all;
}

inline const std::vector<int>& visible_devices() {
    static const std::vector<int> visible = [] {
        std::vector<int> found;
        const int count = static_cast<int>(all_devices().size());
        const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
        std::istringstream parts(wanted ? wanted : "");
        if (!wanted)
            for (int n = 0; n < count; n++) found.push_back(n);
        for (std::string part; std::getline(parts, part, ',');) {
            char* end = nullptr;
            const long n = std::strtol(part.c_str(), &end, 10);
            if (end == part.c_str() || n < 0 || n >= count) break;
            found.push_back(static_cast<int>(n));
        }
        return found;
    }();
    return visible;
}

inline std::string uuid_bytes(int number) {  // 16 of them: made of the number alone
    std::string bytes = "AttuneSoftGPU";
    bytes.resize(16, '\0');
    bytes[15] = static_cast<char>(number + 1);
    return bytes;
}

inline std::string pci_bus_id(int number) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", number + 1);
    return text;
}
