// A whole launch: CTAs run on all host threads, interleaved if they wait for each other. Included by
// emulator.cpp.

constexpr int64_t TURN = 1 << 24;  // warp instructions that a CTA executes before others run
constexpr int64_t TURN_IN_CLUSTER = 1 << 16;
constexpr size_t MAX_LIVE = 1024;  // maximum of started CTAs that wait for their turn

struct Task {  // the CTAs of a cluster, interleaved on one host thread
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<std::unique_ptr<Cta>> ctas;
    std::vector<bool> done;
    Cluster cluster;

    Task(const Request& launch, int64_t number, GlobalRaces& global) {
        const uint32_t size[3] = {launch.cluster[0], launch.cluster[1], launch.cluster[2]};
        const int64_t wide = launch.grid[0] / size[0], high = launch.grid[1] / size[1];
        const uint32_t origin[3] = {static_cast<uint32_t>(number % wide) * size[0], static_cast<uint32_t>(number / wide % high) * size[1], static_cast<uint32_t>(number / wide / high) * size[2]};
        for (uint32_t n = 0; n < size[0] * size[1] * size[2]; n++) {
            auto request = std::make_unique<Request>(launch);
            request->cta[0] = origin[0] + n % size[0];
            request->cta[1] = origin[1] + n / size[0] % size[1];
            request->cta[2] = origin[2] + n / size[0] / size[1];
            ctas.push_back(std::make_unique<Cta>(*request));
            requests.push_back(std::move(request));
            Cta& cta = *ctas.back();
            cta.rank = n, cta.cluster = &cluster;
            cluster.ctas.push_back(&cta);
            cta.begin();
            if (launch.hazards) {
                const int warps = static_cast<int>(cta.warps.size());
                if (!n) cluster.races.begin(static_cast<int>(size[0] * size[1] * size[2]), warps);
                cluster.races.cluster = number, cluster.races.global = &global;
                constexpr size_t MAX_FOLLOWED = 256;  // maximum of warps, plus one for the copies of each CTA
                if (cluster.races.size() > MAX_FOLLOWED) throw std::runtime_error("clusters of so many warps are not checked for hazards");
                cta.shadow.begin(cta.smem.size(), cluster.races.size());
            }
        }
        done.assign(ctas.size(), false);
    }

    // Gives each CTA a turn; returns whether all have ended.
    bool turn() {
        bool moved = false, left = false;
        int64_t rounds = 0;
        do {
            moved = left = false;
            for (size_t k = 0; k < ctas.size(); k++) {
                const size_t n = requests[0]->reversed ? ctas.size() - 1 - k : k;
                if (done[n]) continue;
                current = n;
                done[n] = ctas[n]->advance(ctas.size() > 1 ? TURN_IN_CLUSTER : TURN, moved);
                left |= !done[n];
            }
        } while (left && moved && ctas.size() > 1 && ++rounds < TURN / TURN_IN_CLUSTER);
        if (left && !moved)
            for (size_t n = 0; n < ctas.size(); n++)
                if (!done[n]) current = n, ctas[n]->deadlock();
        return !left;
    }
    size_t current = 0;

    // The instruction at which it continues.
    std::string place() {
        for (size_t n = 0; n < ctas.size(); n++)
            for (const Warp* w : ctas[n]->warps)
                if (!done[n] && w->alive) {
                    current = n;
                    return place_of(ctas[n]->code[static_cast<size_t>(w->pc[__builtin_ctz(w->alive)])]);
                }
        return "";
    }
};

struct Execution {
    const Request& launch;
    int64_t tasks, next = 0, running = 0, steps = 0;
    std::deque<std::unique_ptr<Task>> live;
    std::mutex lock;
    std::condition_variable changed;
    std::string error;
    std::map<std::array<int32_t, 3>, Hazard> hazards;
    GlobalRaces global;
    uint32_t cta[3] = {};
    std::chrono::steady_clock::time_point deadline;
    bool late = false;

    explicit Execution(const Request& r) : launch(r) {
        tasks = r.chosen ? r.chosen_count : static_cast<int64_t>(r.grid[0]) * r.grid[1] * r.grid[2] / (r.cluster[0] * r.cluster[1] * r.cluster[2]);
    }

    void take(const Races& races) {
        for (const auto& [key, hazard] : races.found) {
            const auto [known, fresh] = hazards.try_emplace(key, hazard);
            if (!fresh) known->second.count += hazard.count;
        }
    }

    // Time limit reached: reports what was executed, and where the started CTAs are.
    void stop() {
        for (const auto& task : live)
            for (const auto& each : task->ctas) steps += each->steps;
        if (live.empty()) return;
        Task& task = *live.front();
        error = task.place();
        std::copy(task.requests[task.current]->cta, task.requests[task.current]->cta + 3, cta);
    }

    bool over() const { return late || !error.empty(); }

    void work() {
        std::unique_lock<std::mutex> hold(lock);
        while (!over()) {
            std::unique_ptr<Task> task;
            int64_t number = -1;
            if (next < tasks && live.size() < MAX_LIVE) number = next++;
            else if (!live.empty()) task = std::move(live.front()), live.pop_front();
            else if (running) { changed.wait(hold); continue; }
            else break;
            running++;
            hold.unlock();
            bool done = false;
            std::string what;
            try {
                if (launch.reversed) number = tasks - 1 - number;
                if (!task) task = std::make_unique<Task>(launch, launch.chosen ? launch.chosen[number] : number, global);
                done = task->turn();
            } catch (const std::exception& problem) {
                what = problem.what();
            }
            hold.lock();
            running--;
            if (task && (done || !what.empty())) take(task->cluster.races);
            late |= std::chrono::steady_clock::now() > deadline;
            if (!what.empty()) {
                if (error.empty()) {
                    error = what;
                    if (task) std::copy(task->requests[task->current]->cta, task->requests[task->current]->cta + 3, cta);
                }
            } else if (done) {
                for (const auto& each : task->ctas) steps += each->steps;
            } else {
                live.push_back(std::move(task));
            }
            changed.notify_all();
        }
        changed.notify_all();
    }
};
