// A source place in 32 bits, for the records of global memory: a program counter's offset in the
// kernel library plus 1, or, with the top bit set, a file number and a line.
namespace coh {

constexpr uint32_t IS_SITE = 1u << 31;
constexpr uint32_t LINE_BITS = 20, MAX_LINE = (1u << LINE_BITS) - 1, MAX_FILES = 1u << 11;
static std::mutex files_mutex;
static const char *files[MAX_FILES];
static uint32_t num_files = 0;

static uint32_t number_of(const char *file) {  // names are literals, so a file has few addresses
    static __thread const char *last_file;
    static __thread uint32_t last_number;
    if (file == last_file) return last_number;
    std::lock_guard<std::mutex> lock(files_mutex);
    const uint32_t number = (uint32_t)(std::find(files, files + num_files, file) - files);
    if (number == MAX_FILES) return MAX_FILES - 1;
    if (number == num_files) files[num_files++] = file;
    last_file = file;
    return last_number = number;
}

uint32_t compress(Place place) {
    if (place.file) {
        const uint32_t line = (uint32_t)std::min<uint64_t>(place.number, MAX_LINE);
        return IS_SITE | number_of(place.file) << LINE_BITS | line;
    }
    const uint64_t offset = place.number - launch.image_begin;
    return offset < IS_SITE - 1 ? (uint32_t)offset + 1 : 0;
}

Place expand(uint32_t compressed) {
    if (compressed & IS_SITE) {
        Place place;
        place.file = files[(compressed & ~IS_SITE) >> LINE_BITS];
        place.number = compressed & MAX_LINE;
        return place;
    }
    return compressed ? Place::at_program_counter(launch.image_begin + compressed - 1) : Place();
}

}  // namespace coh
