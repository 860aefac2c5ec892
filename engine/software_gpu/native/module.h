// A loaded cubin and its kernels.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"
#include "memory.h"
#include "queue.h"
#include "reader.h"
#include "table.h"

struct CUmod_st : std::enable_shared_from_this<CUmod_st> {
    CUcontext context;
    std::vector<std::unique_ptr<struct CUfunc_st>> functions;
    std::map<std::string, std::pair<uint64_t, uint64_t>> globals;  // (address, bytes)
    std::vector<uint64_t> areas;  // allocations of its variables
};

struct Parameter {
    int64_t offset, size;
};

struct CUfunc_st {
    CUmod_st* module;
    std::string name;
    int64_t arch, registers, static_smem, frame, max_threads, parameter_offset;
    int64_t cluster[3];
    std::vector<Parameter> parameters;
    std::string bank[2];       // constant bank 0 of a launch, without and with clusters
    int64_t block_at, grid_at, cluster_at, reciprocals_at, clusters_at, cluster_ctas_at;  // offsets in bank 0; -1: none
    std::map<int, std::string> constants;      // contents of the other banks
    std::map<int, uint64_t> constant_areas;    // allocations of banks that programs may write: `__constant__`
    std::string listing, targets;
    std::vector<std::pair<int64_t, std::string>> lines;  // source lines by address
    int64_t reserved_smem, local_bytes;
    int64_t max_dynamic_smem = 0;  // as set by the host
    int64_t carveout = -1;
    bool large_clusters = false;
    emulator::Code* code = nullptr;
    ~CUfunc_st() {
        if (code) emulator::library()->free_code(code);
    }
};

namespace modules {

// Parses the reader's description of one cubin.
inline std::shared_ptr<CUmod_st> describe(const std::string& text, const Device& device, CUcontext context) {
    reader::Fields fields(text);
    auto module = std::make_shared<CUmod_st>();
    module->context = context;
    const int64_t areas = fields.number();
    for (int64_t n = 0; n < areas; n++) {
        const auto address = static_cast<uint64_t>(fields.number());
        const std::string content = fields.text();
        const uint64_t mapped = memory::page_aligned(std::max<uint64_t>(1, content.size()));
        uint8_t* host = memory::map_unwritten(mapped);
        if (!host) return nullptr;
        std::memcpy(host, content.data(), content.size());
        std::lock_guard<std::mutex> hold(memory::lock);
        memory::add({address, content.size(), host, mapped, memory::Kind::MODULE, context->device, context});
        module->areas.push_back(address);
    }
    const int64_t globals = fields.number();
    for (int64_t n = 0; n < globals; n++) {
        const std::string name = fields.text();
        const auto address = static_cast<uint64_t>(fields.number()), size = static_cast<uint64_t>(fields.number());
        module->globals[name] = {address, size};
    }
    const int64_t functions = fields.number();
    for (int64_t n = 0; n < functions; n++) {
        auto f = std::make_unique<CUfunc_st>();
        f->module = module.get();
        f->name = fields.text();
        for (int64_t* field : {&f->arch, &f->registers, &f->static_smem, &f->frame, &f->max_threads, &f->parameter_offset,
                               &f->cluster[0], &f->cluster[1], &f->cluster[2], &f->block_at, &f->grid_at, &f->cluster_at,
                               &f->reciprocals_at, &f->clusters_at, &f->cluster_ctas_at,
                               &f->reserved_smem, &f->local_bytes})
            *field = fields.number();
        f->parameters.resize(static_cast<size_t>(fields.number()));
        for (Parameter& p : f->parameters) p.offset = fields.number(), p.size = fields.number();
        for (std::string& bank : f->bank) bank = fields.text();
        for (int64_t banks = fields.number(); banks > 0; banks--) {
            const auto bank = static_cast<int>(fields.number());
            const auto area = static_cast<uint64_t>(fields.number());
            const std::string content = fields.text();
            if (area) f->constant_areas[bank] = area;
            else f->constants[bank] = content;
        }
        f->listing = fields.text(), f->targets = fields.text();
        for (int64_t lines = fields.number(); lines > 0; lines--) {
            const int64_t address = fields.number();
            f->lines.emplace_back(address, fields.text());
        }
        // Registers limit it, too, in units of their allocation.
        const int64_t per_warp = (f->registers * 32 + device.register_unit - 1) / device.register_unit * device.register_unit;
        const int64_t by_registers = per_warp ? device.registers_per_cta / per_warp / device.warp_granularity * device.warp_granularity * 32 : 1024;
        f->max_threads = std::min({f->max_threads, by_registers, device.threads_per_cta});
        f->max_dynamic_smem = std::max<int64_t>(0, device.smem_per_cta - f->static_smem);
        module->functions.push_back(std::move(f));
    }
    return module;
}

}  // namespace modules
