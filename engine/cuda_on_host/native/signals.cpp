// Turns faults of the fast build, and the time limit, into errors of the running thread.
#include <ucontext.h>

namespace coh {

constexpr int INTERRUPT_SIGNAL = SIGUSR2;
constexpr int FAULT_SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, INTERRUPT_SIGNAL};
constexpr size_t NUM_FAULT_SIGNALS = sizeof FAULT_SIGNALS / sizeof *FAULT_SIGNALS;

static uint64_t program_counter(void *context) {
    ucontext_t *u = (ucontext_t *)context;
#if defined(__APPLE__) && defined(__x86_64__)
    return u->uc_mcontext->__ss.__rip;
#elif defined(__APPLE__)
    return u->uc_mcontext->__ss.__pc;
#elif defined(__x86_64__)
    return (uint64_t)u->uc_mcontext.gregs[REG_RIP];
#else
    return u->uc_mcontext.pc;
#endif
}

static void record_fault(const char *kind, Place place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_error(kind, place, Place(), format, arguments);
    va_end(arguments);
}

static bool is_window_of_another_cta(Worker *w, uintptr_t address) {
    bool found = false;
    each_of_cluster(w, [&](Worker *of) {
        const size_t offset = address - (uintptr_t)of->window_mapping;
        found = found || (of != w && offset < WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES);
    });
    return found;
}

static void explain_memory_fault(Worker *w, uintptr_t address, Place place) {
    Buffer *b = buffer_around(address);
    if (b && b->sparse && address - (uintptr_t)b->base < b->size) {
        record_fault("global memory of another head", place,
                     "access at byte %lld of %s, which belongs to no (batch, head) pair of the CTAs "
                     "that this partial run executes: an offset is wrong, or too large for its type",
                     (long long)(address - (uintptr_t)b->base), b->name);
    } else if (b) {
        record_fault("global memory out of bounds", place,
                     "access at byte %lld of %s (%zu bytes)",
                     (long long)(address - (uintptr_t)b->base), b->name, b->size);
    } else if (is_window_of_another_cta(w, address)) {
        record_fault("shared memory of a CTA that has left", place,
                     "all threads of that CTA of the cluster have returned, or the address lies "
                     "outside of its shared memory");
    } else if (address - (uintptr_t)w->window_mapping < WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES) {
        record_fault("shared memory out of bounds", place,
                     "access at byte %lld of dynamic shared memory (%u bytes)",
                     (long long)(address - (uintptr_t)self->dynamic_smem),
                     self->dynamic_smem_bytes);
    } else if (address - (uintptr_t)w->stacks < FIBER_STACK_BYTES * w->num_fibers) {
        record_fault("stack overflow", place, "the thread used up its %zu KB of local memory",
                     FIBER_STACK_BYTES >> 10);
    } else if (address < PAGE_BYTES) {
        record_fault("illegal address", place,
                     "fault at address 0x%llx: a null pointer or a misaligned vector access",
                     (unsigned long long)address);
    } else {
        record_fault("illegal address", place, "fault at address 0x%llx, which is in no buffer",
                     (unsigned long long)address);
    }
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    Worker *w = worker;
    if (!w || !w->leader->in_cta) {  // not caused by the kernel
        if (signal_number == INTERRUPT_SIGNAL) return;
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    const bool is_access = signal_number == SIGSEGV || signal_number == SIGBUS;
    Buffer *b = is_access ? buffer_around((uintptr_t)info->si_addr) : nullptr;
    if (b && b->sparse) {
        if (open_on_access(*b, (uintptr_t)info->si_addr)) return;
        if (w->settings->touched) {
            w->touched = Touched{(int32_t)(b - buffers.data()),
                                 (int64_t)((char *)info->si_addr - b->base)};
            w->in_cta = false;
            siglongjmp(w->fault_exit, 1);
        }
    }
    // One past the instruction, as for a return address: the reader of the line table subtracts 1.
    Place place = Place::at_program_counter(program_counter(context) + 1);
    if (w->touching.file) place = w->touching;
    switch (signal_number) {
        case INTERRUPT_SIGNAL:
            record_fault("time limit", place, "the kernel was still running here");
            break;
        case SIGFPE: record_fault("arithmetic fault", place, "integer division by zero"); break;
        case SIGILL: record_fault("trap", place, "trap or illegal instruction"); break;
        default: explain_memory_fault(w, (uintptr_t)info->si_addr, place);
    }
    w->leader->in_cta = false;
    siglongjmp(w->leader->fault_exit, 1);
}

class FaultHandlers {
    struct sigaction previous_[NUM_FAULT_SIGNALS];

public:
    FaultHandlers() {
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (size_t i = 0; i < NUM_FAULT_SIGNALS; i++) {
            sigaction(FAULT_SIGNALS[i], &action, &previous_[i]);
        }
    }
    ~FaultHandlers() {
        for (size_t i = 0; i < NUM_FAULT_SIGNALS; i++) {
            sigaction(FAULT_SIGNALS[i], &previous_[i], nullptr);
        }
    }
};

// The handler left by siglongjmp, which does not restore the signal mask.
static void unblock_fault_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal_number : FAULT_SIGNALS) sigaddset(&signals, signal_number);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace coh

// Stops the launch in flight, from any thread; it then reports the line that was running.
extern "C" __attribute__((visibility("default"))) void coh_interrupt() {
    std::lock_guard<std::mutex> lock(coh::launch.workers_mutex);
    for (coh::Worker *w : coh::launch.running) pthread_kill(w->host_thread, coh::INTERRUPT_SIGNAL);
}
