namespace coh {
void reset_hopper(Worker *) {}
bool land_waited_copies(Worker *) { return false; }
size_t describe_mbarriers(Worker *, char *, size_t) { return 0; }
void finish_hopper(Fiber *) {}
}
