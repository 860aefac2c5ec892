// Reads cubins through engine/software_gpu/reader.py in a separate process, as the engine's reader of cubins is
// in Python.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

namespace reader {

struct Answer {
    uint32_t error;  // a CUresult; if not 0, the text is a message
    std::string text;
};

inline bool write_all(int to, const void* data, size_t size) {
    for (auto* p = static_cast<const char*>(data); size;) {
        const ssize_t n = write(to, p, size);
        if (n <= 0) return false;
        p += n, size -= static_cast<size_t>(n);
    }
    return true;
}

inline bool read_all(int from, void* data, size_t size) {
    for (auto* p = static_cast<char*>(data); size;) {
        const ssize_t n = read(from, p, size);
        if (n <= 0) return false;
        p += n, size -= static_cast<size_t>(n);
    }
    return true;
}

inline int to_reader = -1, from_reader = -1;

inline bool start() {
    if (to_reader >= 0) return true;
    const char* command = std::getenv("ATTUNE_SOFTWARE_GPU_READER");  // a shell command
    int asks[2], answers[2];
    if (!command || pipe2(asks, O_CLOEXEC) || pipe2(answers, O_CLOEXEC)) return false;
    // Its Python must not use this process's libraries and modules.
    std::vector<char*> environment;
    for (char** e = environ; *e; e++)
        if (std::strncmp(*e, "LD_LIBRARY_PATH=", 16) && std::strncmp(*e, "PYTHONPATH=", 11)) environment.push_back(*e);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, asks[0], 0);
    posix_spawn_file_actions_adddup2(&files, answers[1], 1);
    const char* arguments[] = {"/bin/sh", "-c", command, nullptr};
    pid_t child;
    const int failed = posix_spawn(&child, "/bin/sh", &files, nullptr, const_cast<char**>(arguments), environment.data());
    posix_spawn_file_actions_destroy(&files);
    close(asks[0]), close(answers[1]);
    if (failed) return false;
    to_reader = asks[1], from_reader = answers[0];
    return true;
}

// `base`: first address of the cubin's variables.
inline Answer read_cubin(const void* cubin, uint64_t size, uint64_t base) {
    static std::mutex lock;
    std::lock_guard<std::mutex> hold(lock);
    const uint64_t head[2] = {base, size};
    uint64_t reply[2];
    Answer answer{999, "the process that reads cubins does not start or has ended"};
    if (!start() || !write_all(to_reader, head, sizeof head) || !write_all(to_reader, cubin, size)) return answer;
    if (!read_all(from_reader, reply, sizeof reply)) return answer;
    answer.error = static_cast<uint32_t>(reply[0]);
    answer.text.resize(reply[1]);
    if (!read_all(from_reader, answer.text.data(), reply[1])) answer.error = 999;
    return answer;
}

// Numbers and strings in the order in which reader.py writes them.
class Fields {
public:
    explicit Fields(const std::string& text) : text_(text) {}
    int64_t number() {
        int64_t value = 0;
        take(&value, 8);
        return value;
    }
    std::string text() {
        const auto size = static_cast<size_t>(number());
        if (size > text_.size() - at_) return {};
        at_ += size;
        return text_.substr(at_ - size, size);
    }

private:
    void take(void* to, size_t size) {
        if (size > text_.size() - at_) return;
        std::memcpy(to, text_.data() + at_, size);
        at_ += size;
    }
    const std::string& text_;
    size_t at_ = 0;
};

}  // namespace reader
