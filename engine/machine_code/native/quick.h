// An instruction bound to a specialised function of engine/machine_code/native/execute_quick.h.
#pragma once

struct Warp;
struct Quick;
typedef void (*QuickRun)(Warp&, const Quick&);

struct Source {
    Kind kind = Kind::NONE;  // REG, UREG, IMM or CONST
    bool neg = false, abs = false, inv = false;
    bool as_it_is = false;   // a register without a sign or complement
    int16_t reg = RZ;
    uint32_t value = 0;      // IMM; the upper word of a 64-bit one is not used here
    const uint32_t* spread = nullptr;  // IMM: the number for each lane
    const Operand* operand = nullptr;
    bool plain() const { return !neg && !abs && !inv; }
};

// Operands of a wgmma (HGMMA, QGMMA).
struct GroupForm {
    bool is_known, in_bytes;
    bool plainly = false, negated = false;  // only by `multiply_group_plainly`; one of A and B negated
    bool a_in_registers = false, a_transposed = false, b_transposed = false;
    int descriptors = -1;  // the uniform register of A's descriptor; in the next two registers is B's
    int closes = 0;        // number of groups that it ends, 0 or 1
    const Operand* sums = nullptr;  // that the products are added to
    explicit GroupForm(const Instruction& i);
};

struct alignas(64) Quick {
    QuickRun run = nullptr;  // null: Warp::step's way
    const Instruction* full = nullptr;
    int16_t to = RZ;
    uint8_t guard = PT, how = 0;
    bool guard_not = false, guard_uniform = false, guarded = false, straight = false;
    int16_t predicate = PT;  // written, where one is
    uint8_t words = 0;       // registers written: inactive lanes keep them and the predicate
    bool any = false;        // inactive lanes do not matter
    int32_t offset = 0;      // of an address
    Source a, b, c;
};
