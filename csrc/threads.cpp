#include "threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace limelight {
namespace {

constexpr int64_t kAskEvery = 100'000'000;  // nanoseconds between two looks at the signals
constexpr size_t kKeep = 8u << 20;          // floats of scratch that a thread keeps at most

std::atomic<bool (*)()> interrupt{nullptr};
std::atomic<bool> forked{false};

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

struct Run {
  int64_t count;
  JobFunction job;
  void* context;
  int64_t last_look;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // the first job's that threw

  Run(int64_t jobs, JobFunction one, void* data) : count(jobs), job(one), context(data), last_look(now()) {}
};

struct Here {
  Run* run = nullptr;
  bool caller = false;
};
thread_local Here here;

void work(Run& run, int worker) {
  const Here before = here;
  here = {&run, worker == 0};
  for (int64_t at; (at = run.next.fetch_add(1, std::memory_order_relaxed)) < run.count;) {
    if (interrupted()) break;
    try {
      run.job(run.context, at, worker);
    } catch (...) {  // out of memory, say: an exception must not leave a worker
      if (!run.failed.exchange(true)) run.failure = std::current_exception();
      run.stop.store(true, std::memory_order_relaxed);
    }
  }
  here = before;
}

// --- torch's OpenMP ---------------------------------------------------------------------------------

struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*limit)() = nullptr;
  int (*worker)() = nullptr;
  int (*inside)() = nullptr;

  OpenMp() {
    auto find = [](auto& into, const char* name) {
      into = reinterpret_cast<std::decay_t<decltype(into)>>(dlsym(RTLD_DEFAULT, name));
    };
    find(parallel, "GOMP_parallel");
    find(limit, "omp_get_max_threads");
    find(worker, "omp_get_thread_num");
    find(inside, "omp_in_parallel");
    if (!parallel || !limit || !worker || !inside) parallel = nullptr;
  }
};

const OpenMp& openmp() {
  static const OpenMp found;
  return found;
}

// --- the own pool -----------------------------------------------------------------------------------

class Pool {
 public:
  // Serves one call at a time; a second caller meanwhile works alone.
  void serve(Run& run, int threads) {
    std::unique_lock<std::mutex> mine(serving_, std::try_to_lock);
    if (!mine.owns_lock()) return work(run, 0);
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> hold(state_);
      run_ = &run, wanted_ = threads - 1, taken_ = 0, busy_ = 0, ++round_;
    }
    wake_.notify_all();
    work(run, 0);
    std::unique_lock<std::mutex> hold(state_);
    wanted_ = 0;
    done_.wait(hold, [&] { return busy_ == 0; });
    run_ = nullptr;
  }

 private:
  void grow(int workers) {
    while (static_cast<int>(threads_.size()) < workers) {
      threads_.emplace_back([this] { loop(); });
      threads_.back().detach();
    }
  }

  void loop() {
    uint64_t seen = 0;
    for (std::unique_lock<std::mutex> hold(state_);;) {
      wake_.wait(hold, [&] { return round_ != seen && taken_ < wanted_; });
      seen = round_;
      const int worker = ++taken_;
      Run* run = run_;
      ++busy_;
      hold.unlock();
      work(*run, worker);
      hold.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex serving_, state_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Run* run_ = nullptr;
  uint64_t round_ = 0;
  int wanted_ = 0, taken_ = 0, busy_ = 0;
};

// A pool is never destroyed: its threads may outlive the module, and a forked child must not touch the
// threads and locks of its parent, so it gets a pool of its own.
std::atomic<Pool*> pool{nullptr};

Pool& own_pool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found) return *found;
  auto fresh = std::make_unique<Pool>();
  if (pool.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *found;
}

void after_fork() {
  forked.store(true, std::memory_order_relaxed);
  pool.store(nullptr, std::memory_order_relaxed);
  here = {};
}

const int watch_forks = pthread_atfork(nullptr, nullptr, after_fork);

struct Scratch {
  float* data = nullptr;
  size_t floats = 0;
  ~Scratch() { std::free(data); }
};
thread_local Scratch own_scratch;

}  // namespace

int thread_limit() {
  if (openmp().parallel) return openmp().limit();
  const unsigned cores = std::thread::hardware_concurrency();
  return cores ? static_cast<int>(cores) : 1;
}

bool run_jobs(int64_t count, int threads, JobFunction job, void* context) {
  Run run(count, job, context);
  if (threads > count) threads = static_cast<int>(count);
  const OpenMp& omp = openmp();
  if (threads <= 1) {
    work(run, 0);
  } else if (!omp.parallel || forked.load(std::memory_order_relaxed)) {
    own_pool().serve(run, threads);
  } else if (omp.inside()) {
    work(run, 0);
  } else {
    omp.parallel([](void* data) { work(*static_cast<Run*>(data), openmp().worker()); }, &run,
                 static_cast<unsigned>(threads), 0);
  }
  if (run.failed) std::rethrow_exception(run.failure);
  return !run.stop.load(std::memory_order_relaxed);
}

bool interrupted() {
  Run* run = here.run;
  if (!run) return false;
  if (here.caller) {
    const auto asked = interrupt.load(std::memory_order_relaxed);
    const int64_t time = asked ? now() : 0;
    if (asked && time - run->last_look > kAskEvery) {
      run->last_look = time;
      if (asked()) run->stop.store(true, std::memory_order_relaxed);
    }
  }
  return run->stop.load(std::memory_order_relaxed);
}

void set_interrupt(bool (*asked)()) { interrupt.store(asked, std::memory_order_relaxed); }

float* scratch(size_t floats) {
  Scratch& mine = own_scratch;
  if (floats > mine.floats || (mine.floats > kKeep && floats <= kKeep)) {
    std::free(mine.data);
    mine.floats = 0;
    const size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
    mine.data = static_cast<float*>(std::aligned_alloc(4096, bytes));
    if (!mine.data) throw std::bad_alloc();
    mine.floats = bytes / sizeof(float);
  }
  return mine.data;
}

}  // namespace limelight
