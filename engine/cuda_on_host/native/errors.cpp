// Errors: the first one of a launch is reported; other workers stop at their next fiber switch.
namespace coh {

Launch launch;
__thread Worker *worker __attribute__((tls_model("initial-exec")));
__thread Thread *self __attribute__((tls_model("initial-exec")));

void leave_cta() {
    Worker *leader = worker->leader;
    leader->in_cta = false;
    void *abandoned;
    coh_switch(&abandoned, leader->scheduler_stack_pointer);
    __builtin_unreachable();
}

static void report_place(ReportedPlace &out, Place place) {
    if (place.file) {
        snprintf(out.file, sizeof out.file, "%s", place.file);
        out.line = (uint32_t)place.number;
    } else if (place.number >= launch.image_begin && place.number < launch.image_end) {
        out.program_counter = place.number - launch.image_begin;
    }
}

static void fill_report(const char *kind, Place place, Place other, const char *format,
                        va_list arguments) {
    Report &report = launch.report;
    report = Report{};
    snprintf(report.kind, sizeof report.kind, "%s", kind);
    vsnprintf(report.message, sizeof report.message, format, arguments);
    const bool is_elsewhere = !strcmp(kind, "uninitialised shared memory") ||
                              !strcmp(kind, "shared memory out of bounds") ||
                              !strcmp(kind, "asynchronous copy not complete") ||
                              !strcmp(kind, "illegal address");
    if (worker && worker->reads_by_descriptor && is_elsewhere) {
        const size_t length = strlen(report.message);
        snprintf(report.message + length, sizeof report.message - length, "; the address follows "
                 "from a wgmma descriptor: its start, leading, stride or swizzle is wrong, or the "
                 "destination of a TMA box is");
    }
    report_place(report.place, place);
    report_place(report.other_place, other);
    if (self) {
        report.has_thread = 1;
        report.cta[0] = self->block_idx.x;
        report.cta[1] = self->block_idx.y;
        report.cta[2] = self->block_idx.z;
        report.thread[0] = self->thread_idx.x;
        report.thread[1] = self->thread_idx.y;
        report.thread[2] = self->thread_idx.z;
    }
}

bool record_error(const char *kind, Place place, Place other, const char *format,
                  va_list arguments) {
    std::lock_guard<std::mutex> lock(launch.report_mutex);
    if (launch.aborted.load()) return false;
    if (worker && worker->settings->touched) return false;  // probes report no errors
    fill_report(kind, place, other, format, arguments);
    launch.report.failed = 1;
    launch.aborted.store(true);
    return true;
}

bool record_error_at_two(const char *kind, Place place, Place other, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const bool is_first = record_error(kind, place, other, format, arguments);
    va_end(arguments);
    return is_first;
}

// Records a warning, the first one of the launch; the launch continues.
void warn(const char *kind, Place place, const char *format, ...) {
    std::lock_guard<std::mutex> lock(launch.report_mutex);
    if (launch.report.kind[0] || worker->settings->touched) return;
    va_list arguments;
    va_start(arguments, format);
    fill_report(kind, place, Place(), format, arguments);
    va_end(arguments);
}

void fail_at(const char *kind, Place place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_error(kind, place, Place(), format, arguments);
    va_end(arguments);
    leave_cta();
}

void fail_at_two(const char *kind, Place place, Place other, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_error(kind, place, other, format, arguments);
    va_end(arguments);
    leave_cta();
}

void fail(const char *kind, Site site, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_error(kind, site, Place(), format, arguments);
    va_end(arguments);
    leave_cta();
}

}  // namespace coh
