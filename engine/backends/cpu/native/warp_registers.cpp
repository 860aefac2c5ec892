// setmaxnreg: a CTA's warps move registers between them, and an SM has no more than it has.
namespace coh {

static constexpr long long SM_REGISTERS = 65536;

void set_max_registers(int count, Site site) {
    if (count < 24 || count > 256 || count % 8) {
        fail_at("bad setmaxnreg", site, "%d registers: a multiple of 8 from 24 to 256 is needed",
                count);
    }
    std::vector<int> &asked = hopper().registers;
    asked.resize((worker->num_threads + 31) / 32);
    asked[self->warp] = count;
    long long held = 0;
    for (const int registers : asked) held += 32ll * registers;
    if (held > SM_REGISTERS) {
        fail_at("setmaxnreg waits for ever", site, "the warps that asked so far hold %lld "
                "registers together, and an SM has %lld: let some warps keep fewer", held,
                SM_REGISTERS);
    }
}

}  // namespace coh
