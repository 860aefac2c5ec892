// An instruction bound to a specialised function of engine/machine_code/native/execute_quick.h.
#pragma once

struct Warp;
struct Quick;
typedef void (*QuickRun)(Warp&, const Quick&);

struct Source {
    Kind kind = Kind::NONE;  // REG, UREG, IMM or CONST
    bool neg = false, abs = false, inv = false;
    bool as_it_is = false;   // a register without negation or complement
    int16_t reg = RZ;
    uint32_t value = 0;      // IMM; without the upper word of a 64-bit one
    const uint32_t* spread = nullptr;  // IMM: the value, repeated for each lane
    const Operand* operand = nullptr;
    bool plain() const { return !neg && !abs && !inv; }
};

// Operands of a wgmma (HGMMA, QGMMA).
struct GroupForm {
    bool is_known, in_bytes;
    bool plainly = false, negated = false;  // executed by `multiply_group_plainly`; one of A and B is negated
    bool a_in_registers = false, a_transposed = false, b_transposed = false;
    int descriptors = -1;  // uniform register of A's descriptor; B's is in the next two
    int closes = 0;        // number of groups that it closes, 0 or 1
    const Operand* sums = nullptr;  // accumulator operand
    explicit GroupForm(const Instruction& i);
};

struct alignas(64) Quick {
    QuickRun run = nullptr;  // null: executed by Warp::step
    const Instruction* full = nullptr;
    int16_t to = RZ;
    uint8_t guard = PT, how = 0;
    bool guard_not = false, guard_uniform = false, guarded = false, straight = false;
    int16_t predicate = PT;  // predicate written, PT: none
    uint8_t words = 0;       // number of registers written; inactive lanes keep them and the predicate
    bool any = false;        // inactive lanes need no restoring
    int32_t offset = 0;      // offset of an address
    Source a, b, c;
};
