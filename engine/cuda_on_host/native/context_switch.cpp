// Switches between fibers in assembly; saves only the registers that a function call must preserve.

// Saves the running fiber's stack pointer to *save and continues at the saved stack pointer
// `target`.
extern "C" void coh_switch(void **save, void *target);

#if defined(__APPLE__)
#define COH_SWITCH_LABEL "_coh_switch"
#define COH_SWITCH_TYPE ""
#elif defined(__aarch64__)
#define COH_SWITCH_LABEL "coh_switch"
#define COH_SWITCH_TYPE ".type coh_switch,%function\n"
#else
#define COH_SWITCH_LABEL "coh_switch"
#define COH_SWITCH_TYPE ".type coh_switch,@function\n"
#endif

#if defined(__x86_64__)
asm(".text\n"
    ".globl " COH_SWITCH_LABEL "\n" COH_SWITCH_TYPE COH_SWITCH_LABEL ":\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n retq\n");

static void *first_frame(char *stack_top, void (*entry)()) {
    void **sp = (void **)((uintptr_t)stack_top & ~(uintptr_t)63);
    sp -= 3;  // so that `entry` sees rsp % 16 == 8, as after a call
    sp[0] = sp[1] = sp[2] = nullptr;
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}
#elif defined(__aarch64__)
asm(".text\n"
    ".p2align 2\n"
    ".globl " COH_SWITCH_LABEL "\n" COH_SWITCH_TYPE COH_SWITCH_LABEL ":\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n ret\n");

static void *first_frame(char *stack_top, void (*entry)()) {
    char *sp = (char *)((uintptr_t)stack_top & ~(uintptr_t)63) - 160;
    memset(sp, 0, 160);
    ((void **)sp)[11] = (void *)entry;  // x30, the return address
    return sp;
}
#else
#error "context_switch.cpp knows x86-64 and AArch64: add this processor's calling convention"
#endif
